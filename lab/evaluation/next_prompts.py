"""How often is the next prompt of a conversation foreseen, up to the results that are still to come?

Of every answer that asked for tools, and whose calls came back in a later request of its run, that request is
compared with what would have been sent ahead: the same conversation, and the answer as its client sends it
back, by what was learned from the client's earlier requests alone. Edited histories and compaction count as
wrong.
"""

import argparse
import json
from collections import Counter
from pathlib import Path
from typing import Any, Final

import msgspec

from gateway.domain.ids import TenantId
from gateway.prefill_ahead.next_prompt import compare, may_be_foreseen
from gateway.prefill_ahead.rewrite_stats import Client, Echoing
from gateway.requests.facts import read_facts
from gateway.responses.content import Kind, ResponseContent
from lab.evaluation.recording import Exchange, read_recording

_TENANT: Final = TenantId("t")


class _Asked(msgspec.Struct):
    """An answer whose results are awaited."""

    client: Client
    body: bytes
    said: ResponseContent
    calls: tuple[bytes, ...]


def add_prompts(subjects: Any) -> None:
    prompts = subjects.add_parser("prompts", help="how often the next prompt is foreseen")
    prompts.add_argument("files", nargs="+", type=Path, metavar="FILE", help="exchanges, as above")
    prompts.set_defaults(command=_prompts)


def _prompts(arguments: argparse.Namespace) -> int:
    """Of each file and of all: prompts that could be compared, the share foreseen, and the same of those that
    would have been sent."""
    report, together = {}, Counter[str]()
    for path in arguments.files:
        counts = follow(read_recording(path))
        report[path.name] = _shares(counts)
        together += counts
    print(json.dumps({"all": _shares(together), "per_file": report}, indent=2))
    return 0


def _shares(counts: Counter[str]) -> dict[str, float]:
    return {
        "compared": counts["followed"],
        "foreseen": counts["right"] / max(1, counts["followed"]),
        "sent": counts["sent"],
        "foreseen_of_sent": counts["right_sent"] / max(1, counts["sent"]),
    }


def follow(exchanges: list[Exchange]) -> Counter[str]:
    echoing, counts = Echoing(), Counter[str]()
    waiting: dict[str, list[_Asked]] = {}
    for exchange in exchanges:
        protocol = exchange.endpoint.protocol
        if not exchange.is_turn or not may_be_foreseen(protocol):
            continue
        body = exchange.body_bytes(without_ids=False)
        asked = waiting.setdefault(exchange.truth.run or exchange.truth.session, [])
        for each in [each for each in asked if any(call in body for call in each.calls)]:
            asked.remove(each)
            manner, is_sent = echoing.manner(each.client), echoing.is_worth_it(each.client)
            found = compare(protocol, each.body, each.said, manner, body)
            is_right = found is not None and found.was_right
            counts.update(followed=1, right=is_right, sent=is_sent, right_sent=is_sent and is_right)
            if found is not None:
                echoing.learn(each.client, found)
        said = ResponseContent()
        exchange.answer(said)
        calls = tuple(part.id.encode() for part in said.parts if part.kind is Kind.CALL)
        if calls and said.is_whole and not exchange.is_broken:
            facts = read_facts(exchange.endpoint, exchange.header_lines(without_ids=False), body)
            client = Client(_TENANT, protocol, facts.client, facts.transcript.agent_type)
            asked.append(_Asked(client, body, said, calls))
    return counts
