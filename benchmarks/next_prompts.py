"""How often is the next prompt of a conversation foreseen, up to the results that are still to come?

    python -m benchmarks.next_prompts RECORDING... [--json]

Recordings as `turnpike eval sessions` reads them. Of every answer that asked for tools, and whose calls came
back in a later request of its run, that request is compared with what would have been sent ahead: the same
conversation, and the answer as its client sends it back, by what was learned from the client's earlier
requests alone. Edited histories and compaction count as wrong. `told`: as judged by what an engine reads;
`worth it`: of those that would really have been sent.
"""

import argparse
import sys
from collections import Counter
from pathlib import Path
from typing import Final

import msgspec

from benchmarks.verdict import Verdict
from gateway.domain.ids import TenantId
from gateway.wire.echoing import Client, Echoing
from gateway.wire.facts import read_facts
from gateway.wire.next_prompt import compare, may_be_foreseen
from gateway.wire.said import Kind, Said
from lab.evaluation.recording import Exchange, read_recording

_TENANT: Final = TenantId("t")
_FLOOR: Final = 0.9


class _Asked(msgspec.Struct):
    """An answer whose results are awaited."""

    client: Client
    body: bytes
    said: Said
    calls: tuple[bytes, ...]


def main() -> int:
    parser = argparse.ArgumentParser(
        prog="benchmarks.next_prompts", description=(__doc__ or "").split("\n")[0]
    )
    parser.add_argument("recordings", type=Path, nargs="+")
    parser.add_argument("--json", action="store_true", help="print the last line alone")
    options = parser.parse_args()
    verdict, all_of = Verdict(), Counter[str]()
    for path in options.recordings:
        counts = follow(read_recording(path))
        if counts["followed"]:
            verdict.tell(f"{path.name.partition('.')[0]}_right", counts["right"] / counts["followed"])
            verdict.tell(f"{path.name.partition('.')[0]}_followed", counts["followed"])
            all_of += counts
    verdict.at_least("right", all_of["right"] / max(1, all_of["followed"]), _FLOOR)
    verdict.at_least("right_of_worth_it", all_of["right_sent"] / max(1, all_of["sent"]), _FLOOR)
    verdict.tell("worth_it", all_of["sent"] / max(1, all_of["followed"]))
    return verdict.report(is_json_alone=options.json)


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
        said = Said()
        exchange.answer(said)
        calls = tuple(part.id.encode() for part in said.parts if part.kind is Kind.CALL)
        if calls and said.is_whole and not exchange.is_broken:
            facts = read_facts(exchange.endpoint, exchange.header_lines(without_ids=False), body)
            client = Client(_TENANT, protocol, facts.client, facts.transcript.agent_type)
            asked.append(_Asked(client, body, said, calls))
    return counts


if __name__ == "__main__":
    sys.exit(main())
