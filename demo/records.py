"""What the gateway said while it worked: its information stream, read back from the file."""

from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path

import msgspec

from demo.hop import Exchange
from gateway.domain.admission_records import SessionAdmitted, SessionHeld
from gateway.domain.decision import WaitReason
from gateway.domain.records import GpuEnd, Record, ToolEnd, TurnArrived

CLOCK_SLACK_S = 0.005
"""Two processes read the same clock; a turn is not matched to a request sent later than this after it."""


@dataclass(kw_only=True)
class SessionStory:
    """One session as the gateway saw it."""

    turns: int = 0
    """Requests that offered tools."""
    side_requests: int = 0
    tool_phases: int = 0
    """Gaps between a response that asked for tools and the request that brought their results."""
    tool_s: float = 0.0
    prompt_tokens: int = 0
    cached_tokens: int = 0
    output_tokens: int = 0


WITHIN_S = 0.3
"""A gateway that runs has told of all that is over, after so long."""


class Held(msgspec.Struct, kw_only=True):
    """Sessions that waited for a place, for one reason."""

    sessions: int = 0
    seconds: float = 0.0
    """All together."""


@dataclass
class Stream:
    """All records of one gateway process, in order."""

    records: list[Record] = field(default_factory=list)

    def stories(self) -> dict[str, SessionStory]:
        """What happened to each session."""
        stories: dict[str, SessionStory] = {}
        for record in self.records:
            session = getattr(record, "session", None)
            if session is not None:
                _tell(stories.setdefault(session, SessionStory()), record)
        return stories

    def held(self) -> dict[WaitReason, Held]:
        """Who waited for a place and got it, by what kept them out when they came."""
        reasons: dict[str, WaitReason] = {}
        held: dict[WaitReason, Held] = {}
        for record in self.records:
            if isinstance(record, SessionHeld):
                reasons[record.session] = record.reason
            elif isinstance(record, SessionAdmitted) and record.session in reasons:
                of = held.setdefault(reasons.pop(record.session), Held())
                of.sessions += 1
                of.seconds += record.waited_ms / 1000
        return held

    def added_ms(self, exchanges: Iterable[Exchange]) -> list[float]:
        """For each request that was answered: how much longer it took for the agent than upstream.

        That is everything between the two measurements: reading, recognising, queueing, passing on, and
        both local connections.
        """
        ends = {record.turn: record for record in self.records if isinstance(record, GpuEnd)}
        arrivals = [record for record in self.records if isinstance(record, TurnArrived)]
        added = []
        for exchange in sorted(exchanges, key=lambda exchange: exchange.sent_at_s):
            arrival = _arrival_of(exchange, arrivals)
            if arrival is None or exchange.answered_at_s is None:
                continue
            arrivals.remove(arrival)
            if arrival.turn in ends:
                total_ms = 1000 * (exchange.answered_at_s - exchange.sent_at_s)
                added.append(total_ms - ends[arrival.turn].duration_ms)
        return added


def read(path: Path) -> Stream:
    """Whole lines: of a gateway that still runs, what it has told so far."""
    decoder = msgspec.json.Decoder(Record)
    whole, _, _ = path.read_bytes().rpartition(b"\n")
    return Stream([decoder.decode(line) for line in whole.splitlines()])


def _tell(story: SessionStory, record: Record) -> None:
    match record:
        case TurnArrived():
            story.turns += record.tool_count > 0
            story.side_requests += record.tool_count == 0
        case ToolEnd():
            story.tool_phases += 1
            story.tool_s += record.duration_ms / 1000
        case GpuEnd():
            story.prompt_tokens += record.usage.prompt_tokens or 0
            story.cached_tokens += record.usage.cached_tokens or 0
            story.output_tokens += record.usage.output_tokens or 0
        case _:
            pass


def _arrival_of(exchange: Exchange, arrivals: Iterable[TurnArrived]) -> TurnArrived | None:
    """The first turn of the exchange's session that arrived after the exchange was sent."""
    for arrival in arrivals:
        if arrival.session == exchange.session and arrival.at_s > exchange.sent_at_s - CLOCK_SLACK_S:
            return arrival
    return None
