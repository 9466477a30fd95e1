"""Workloads from recorded messages: the sessions that become exchanges, without their content.

**Source**: what the importers of exchanges read (docs/contribute/exchanges.md): tau-bench, LMCache's traces,
SWE-agent.

**Taken**: a turn for every exchange, in order of time. It shares the messages that are equal to those of the
turn before it in its own conversation, that one's answer included. A system prompt is a text that all
sessions open with that have it.

**Composed**: tokens, from bytes (`estimates`). The gap to the next turn belongs to the tools that the answer
calls; where it calls none, to a person, or, in corpora without persons, to a tool. How long an answer took,
and the times that the corpus does not have, as for exchanges.

**Lost**: tool schemas; that conversations of one session may run side by side.
"""

from collections.abc import Iterable, Iterator, Sequence
from functools import partial
from hashlib import blake2b
from typing import Any, Final

import msgspec

from lab.workload import lmcache, sessions, swe_agent, tau_bench
from lab.workload.problems import Problems
from lab.workload.records import Member
from lab.workload.trace.estimates import message_tokens
from lab.workload.trace.format import Session, Thread, Tool, Turn, TurnRef
from lab.workload.trace.importer import Choices, Corpus

_ESTIMATED: Final = "tokens estimated, 4 bytes each; "


def _read(
    importer: sessions.Importer,
    has_persons: bool,
    members: Iterable[Member],
    problems: Problems,
    choices: Choices,
) -> Iterator[Session]:
    for recorded in importer(members, problems, choices.seed):
        session = _session(recorded, has_persons=has_persons)
        if session is not None:
            yield session


def _session(recorded: sessions.Session, *, has_persons: bool) -> Session | None:
    turns: list[Turn] = []
    latest: dict[str | None, tuple[int, list[Any]]] = {}
    shared_key, shared_tokens = None, 0
    ends_s = 0.0
    for at, exchange in enumerate(recorded.turns):
        messages: list[dict[str, Any]] = exchange.body["messages"]
        base, known = latest.get(exchange.thread, (None, []))
        common = _common(messages, known)
        if at == 0 and messages[0]["role"] == "system":
            shared_key = f"{recorded.client}/{_digest(messages[0])}"
            shared_tokens = message_tokens(messages[0])
        gap_s = round(max(0.0, exchange.at_s - ends_s), 6) if at else 0.0
        tools = _tools(known, gap_s, has_persons=has_persons) if at and base == at - 1 else ()
        if tools:
            turns[-1] = msgspec.structs.replace(turns[-1], tools=tools)
        turns.append(
            Turn(
                input_tokens=sum(map(message_tokens, messages)),
                output_tokens=message_tokens(exchange.response),
                prefix_of=None if base is None else TurnRef(0, base),
                prefix_tokens=sum(map(message_tokens, messages[:common])),
                pause_s=0.0 if tools else gap_s,
                is_pause_human=bool(at) and has_persons and not tools,
            )
        )
        latest[exchange.thread] = at, [*messages, exchange.response]
        ends_s = exchange.at_s + exchange.lasts_s
    if not turns:
        return None
    thread = Thread(turns=tuple(turns), shared_key=shared_key, shared_tokens=shared_tokens)
    return Session(id=recorded.name, agent_type=recorded.client, threads=(thread,))


def _common(messages: Sequence[Any], known: Sequence[Any]) -> int:
    """How many messages both begin with."""
    count = 0
    for message, other in zip(messages, known, strict=False):
        if message != other:
            break
        count += 1
    return count


def _tools(conversation: Sequence[Any], gap_s: float, *, has_persons: bool) -> tuple[Tool, ...]:
    """Those that the conversation's last answer calls; each is taken to last for the whole gap."""
    calls = conversation[-1].get("tool_calls") or []
    names = [str(call.get("function", {}).get("name", "tool")) for call in calls]
    if not names and not has_persons:
        names = ["tool"]
    return tuple(Tool(name=name, duration_s=gap_s) for name in names)


def _digest(message: dict[str, Any]) -> str:
    return blake2b(msgspec.json.encode(message), digest_size=6).hexdigest()


TAU_BENCH: Final = Corpus(
    read=partial(_read, tau_bench.tau_bench, True),
    origin="tau-bench, historical trajectories (MIT)",
    how=_ESTIMATED + "all times drawn; the customer is a person; tool schemas missing",
    knows=frozenset({"seed"}),
)
LMCACHE: Final = Corpus(
    read=partial(_read, lmcache.lmcache, False),
    origin="LMCache agent traces: mini-swe-agent, tau-bench (Apache-2.0)",
    how=_ESTIMATED + "gaps as recorded less the answers' drawn times; system prompts and tools missing",
    knows=frozenset({"seed"}),
)
SWE_AGENT: Final = Corpus(
    read=partial(_read, swe_agent.swe_agent, False),
    origin="SWE-agent trajectories (MIT)",
    how=_ESTIMATED + "times drawn but for some tools'; tool schemas missing",
    knows=frozenset({"seed"}),
)
