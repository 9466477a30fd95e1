"""TraceLab's round traces: Claude Code and Codex, a line for each call of the model.

**Source**: uw-syfi/TraceLab (Apache-2.0, its data CC-BY-4.0), files named `round_trace.jsonl`; the lines of a
session stand together.

**Taken**: prompt and output lengths; every tool's name and time; a person's pause, from a round's last event
to the message that opens the next. A prompt that is no shorter than the one before it shares that one and its
output; a shorter one what the provider had cached.

**Composed**: nothing. All sessions arrive at 0.

**Lost**: what an agent does between a tool's result and its next request; what sessions share.
"""

from collections.abc import Iterable, Iterator
from datetime import datetime
from itertools import groupby
from typing import Annotated, Final

import msgspec
from msgspec import Meta

from lab.workload.problems import Problems
from lab.workload.records import Member, lines_as
from lab.workload.trace.format import Session, Thread, Tool, Turn, TurnRef
from lab.workload.trace.importer import Choices, Corpus

_FILE: Final = "round_trace"


class _Event(msgspec.Struct):
    event_type: str
    timestamp: datetime


class _Call(msgspec.Struct):
    tool_name: str
    tool_wall_latency_ms: float | None = None


class _Round(msgspec.Struct):
    provider: str
    session_id: str
    input_tokens_total: Annotated[int, Meta(ge=1)]
    prefix_tokens: Annotated[int, Meta(ge=0)]
    output_tokens: Annotated[int, Meta(ge=0)]
    timing_events: Annotated[list[_Event], Meta(min_length=1)]
    tools: list[_Call] = []


def _tracelab(members: Iterable[Member], problems: Problems, choices: Choices) -> Iterator[Session]:
    for member in members:
        if member.name.rpartition("/")[2] != _FILE:
            continue
        rounds = (found for _, found in lines_as(_Round, member, problems))
        for name, group in groupby(rounds, key=lambda found: found.session_id):
            theirs = list(group)
            turns = tuple(_turn(theirs, at) for at in range(len(theirs)))
            yield Session(id=name, agent_type=theirs[0].provider, threads=(Thread(turns=turns),))


def _turn(rounds: list[_Round], at: int) -> Turn:
    this = rounds[at]
    before = rounds[at - 1] if at else None
    tokens, pause_s = 0, 0.0
    if before is not None:
        grows = this.input_tokens_total >= before.input_tokens_total
        tokens = before.input_tokens_total + before.output_tokens if grows else this.prefix_tokens
        if not before.tools:
            waited = this.timing_events[0].timestamp - before.timing_events[-1].timestamp
            pause_s = max(0.0, waited.total_seconds())
    is_last = at == len(rounds) - 1
    tools = [
        Tool(name=call.tool_name, duration_s=(call.tool_wall_latency_ms or 0.0) / 1e3) for call in this.tools
    ]
    return Turn(
        input_tokens=this.input_tokens_total,
        output_tokens=max(1, this.output_tokens),
        prefix_of=TurnRef(0, at - 1) if at else None,
        prefix_tokens=min(tokens, this.input_tokens_total),
        tools=() if is_last else tuple(tools),
        pause_s=pause_s,
        is_pause_human=before is not None and not before.tools,
    )


TRACELAB: Final = Corpus(
    read=_tracelab,
    origin="TraceLab round traces (CC-BY-4.0)",
    how="lengths, tools and pauses as recorded; prefixes from lengths; arrivals all 0",
)
