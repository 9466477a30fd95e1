"""The gateway's own information stream: what ran, to be run again.

**Source**: the file that `stream.path` names, JSON lines of records (`gateway/domain/records.py`); or one
that `serve --record` wrote, which has them among the brain's answers.

**Taken**: every turn that was answered, with the tokens that the backend counted; sessions, threads, tenants
and arrivals as the gateway saw them. A turn that continues another one shares its prompt and output; one that
repeats a failed attempt, what the attempt shared; after a compaction and for side requests, what the backend
had cached. A gap belongs to the tools that were called, all of them as long, else to a person. A sub-agent's
thread is started by a tool of the turn that it follows from, and waited for if the thread's next turn came
after it.

**Composed**: for a thread that follows from no turn that is known, the turn that starts it: the main thread's
latest before it.

**Lost**: turns whose tokens nobody counted (they are reported); what sessions share with one another. A
session is held in memory until it ends, and until all that began before it have.
"""

from collections.abc import Iterable, Iterator
from itertools import chain
from typing import Any, Final, cast

import msgspec

from gateway.domain.ids import RequestId, SessionId
from gateway.domain.records import GpuEnd, Record, SessionEnded, ToolStart, TurnArrived
from lab.workload.problems import Problems
from lab.workload.records import Member, lines_as
from lab.workload.trace.format import Session
from lab.workload.trace.importer import Choices, Corpus
from lab.workload.trace.observed import ObservedTurn, session_of

_ANSWERED: Final = "finished"


class _Logged(msgspec.Struct):
    """A line of an event log, as far as it matters here."""

    records: list[Record]


class _Run(msgspec.Struct):
    turns: dict[RequestId, ObservedTurn] = {}
    begun_s: float = 0.0
    is_over: bool = False


def _gateway_stream(members: Iterable[Member], problems: Problems, choices: Choices) -> Iterator[Session]:
    stream = _Stream(problems)
    for member in members:
        for record in _records(member, problems):
            stream.take(record)
            yield from stream.sessions()
    stream.end()
    yield from stream.sessions()


def _records(member: Member, problems: Problems) -> Iterator[Record]:
    lines = iter(member.lines)
    first = next(lines, b"")
    if b'"turnpike_events"' not in first:
        whole = Member(member.name, chain([first], lines))
        for _, record in lines_as(cast(type[Any], Record), whole, problems):
            yield record
        return
    for _, logged in lines_as(_Logged, Member(member.name, chain([b""], lines)), problems):
        yield from logged.records


class _Stream:
    """The sessions under way, in the order in which they began."""

    def __init__(self, problems: Problems) -> None:
        self._problems = problems
        self._runs: dict[SessionId, _Run] = {}
        self._begun_s: float | None = None

    def take(self, record: Record) -> None:
        match record:
            case TurnArrived(session=session) if session is not None:
                self._begun_s = record.at_s if self._begun_s is None else self._begun_s
                run = self._runs.setdefault(session, _Run(begun_s=record.at_s - self._begun_s))
                run.turns[record.turn] = ObservedTurn(arrived=record)
            case GpuEnd() if record.outcome == _ANSWERED:
                if (turn := self._turn(record.session, record.turn)) is not None:
                    turn.ended = record
            case ToolStart():
                if (turn := self._turn(record.session, record.turn)) is not None:
                    turn.tools = record.names
            case SessionEnded() if record.session in self._runs:
                self._runs[record.session].is_over = True
            case _:
                pass

    def _turn(self, session: SessionId | None, turn: RequestId) -> ObservedTurn | None:
        run = self._runs.get(session) if session is not None else None
        return run.turns.get(turn) if run is not None else None

    def end(self) -> None:
        """Nothing more comes: all sessions are over."""
        for run in self._runs.values():
            run.is_over = True

    def sessions(self) -> Iterator[Session]:
        """Those that are over, as long as none that began before them goes on."""
        while self._runs:
            name, run = next(iter(self._runs.items()))
            if not run.is_over:
                return
            del self._runs[name]
            for turn in run.turns.values():
                if turn.ended is not None and not turn.is_counted:
                    self._problems.add(f"turn {turn.arrived.turn}", "nobody counted its tokens")
            session = session_of(name, run.turns, arrival_s=round(run.begun_s, 6))
            if session is not None:
                yield session


GATEWAY_STREAM: Final = Corpus(
    read=_gateway_stream,
    origin="an information stream of the gateway",
    how="turns, tokens, tools, gaps and tenants as observed; prefixes from lineage and lengths",
)
