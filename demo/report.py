"""What is printed at the end: the truth about every run beside what the gateway made of it."""

import statistics
from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

from demo.records import SessionStory, Stream
from demo.runs import AgentRun
from demo.telemetry import EngineTelemetry


@dataclass(frozen=True, kw_only=True)
class Row:
    """One agent run."""

    run: str
    identity: str
    """`sent`, `stripped`, or `none` where the client never says who it is."""
    recognised_by: str
    sessions: int
    """Sessions that the run's turns were taken for; one is right."""
    is_recognised: bool
    """Exactly one session, and no other run's."""
    turns: int
    tool_phases: int
    tool_s: float
    prompt_tokens: int
    cached_tokens: int
    replicas: int
    """How many of them the run's turns were spread over."""
    is_done: bool
    """The agent finished, the file is edited, and the test passes."""


@dataclass(frozen=True, kw_only=True)
class Report:
    """Everything the demo found out."""

    rows: list[Row]
    side_requests: int
    added_ms: list[float]
    queued_ms: list[float]
    replicas: Counter[str]
    engines: EngineTelemetry

    @property
    def is_good(self) -> bool:
        return bool(self.rows) and all(row.is_recognised and row.is_done for row in self.rows)

    def totals(self) -> dict[str, Any]:
        """The whole report for a program."""
        rows = self.rows
        return {
            "ok": self.is_good,
            "runs": len(rows),
            "recognised": sum(row.is_recognised for row in rows),
            "done": sum(row.is_done for row in rows),
            "turns": sum(row.turns for row in rows),
            "tool_phases": sum(row.tool_phases for row in rows),
            "tool_s": round(sum(row.tool_s for row in rows), 3),
            "side_requests": self.side_requests,
            "prompt_tokens": sum(row.prompt_tokens for row in rows),
            "cached_tokens": sum(row.cached_tokens for row in rows),
            "added_ms": _spread(self.added_ms),
            "queued_ms": _spread(self.queued_ms),
            "replicas": dict(self.replicas),
            "hints_followed": self.engines.hints_followed,
            "turns_held": self.engines.turns_held,
            "turns_returned": self.engines.turns_returned,
            "most_blocks_retained": self.engines.most_retained,
            "blocks": self.engines.blocks,
            "sessions": [asdict(row) for row in rows],
        }


def make(runs: Sequence[AgentRun], stream: Stream, engines: EngineTelemetry) -> Report:
    """Puts the runs (the truth), the gateway's stream (its inference) and what engines did of it together."""
    stories = stream.stories()
    requests = [exchange for run in runs for exchange in (*run.turns, *run.side_requests)]
    return Report(
        rows=[_row(run, runs, stories) for run in runs],
        side_requests=sum(len(run.side_requests) for run in runs),
        added_ms=stream.added_ms(requests),
        queued_ms=[exchange.queue_ms for exchange in requests],
        replicas=Counter(exchange.replica or "?" for exchange in requests),
        engines=engines,
    )


def _row(run: AgentRun, runs: Sequence[AgentRun], stories: dict[str, SessionStory]) -> Row:
    others = {session for other in runs if other is not run for session in other.sessions}
    mine = [stories[session] for session in run.sessions if session in stories]
    return Row(
        run=run.plan.name,
        identity=_identity(run),
        recognised_by=_recognised_by(run),
        sessions=len(run.sessions),
        is_recognised=len(run.sessions) == 1 and None not in run.sessions and run.sessions.isdisjoint(others),
        turns=sum(story.turns for story in mine),
        tool_phases=sum(story.tool_phases for story in mine),
        tool_s=sum(story.tool_s for story in mine),
        prompt_tokens=sum(story.prompt_tokens for story in mine),
        cached_tokens=sum(story.cached_tokens for story in mine),
        replicas=len({exchange.replica for exchange in run.turns}),
        is_done=run.is_done,
    )


def _identity(run: AgentRun) -> str:
    if not run.plan.agent.has_identity:
        return "none"
    return "stripped" if run.plan.strip else "sent"


def _recognised_by(run: AgentRun) -> str:
    """How its turns were recognised, in the order it happened: `new, call-id`."""
    return ", ".join(dict.fromkeys(exchange.source or "?" for exchange in run.turns))


def _spread(values: Sequence[float]) -> dict[str, float] | None:
    if not values:
        return None
    ordered = sorted(values)
    p99 = ordered[min(len(ordered) - 1, int(0.99 * len(ordered)))]
    return {"median": round(statistics.median(ordered), 2), "p99": round(p99, 2), "requests": len(ordered)}
