"""Records of single turns, for tests that say what happens when."""

import time
from typing import Any

from gateway.domain import records as rec
from gateway.domain.decision import Edge, PlacementReason, SessionSource
from gateway.domain.ids import ReplicaId, RequestId, SessionId, TenantId, ThreadId
from gateway.domain.request import Protocol, Usage
from tests.dashboard.world import World

REPLICA = ReplicaId("default-0")
TENANT = TenantId("team-a")


def session_started(
    session: str, *, at_s: float, schema: str = "codex", parent: str | None = None
) -> rec.Record:
    return rec.SessionStarted(
        at_s=at_s,
        session=SessionId(session),
        tenant=TENANT,
        source=SessionSource.NEW,
        confidence=1.0,
        schema=schema,
        parent=SessionId(parent) if parent else None,
    )


def arrived(
    session: str, turn: str, *, at_s: float, thread: str = "1", edge: Edge = Edge.OPENS
) -> rec.Record:
    return rec.TurnArrived(
        at_s=at_s,
        turn=RequestId(turn),
        session=SessionId(session),
        tenant=TENANT,
        protocol=Protocol.CHAT,
        model="m",
        source=SessionSource.NEW,
        confidence=1.0,
        body_bytes=4000,
        message_count=2,
        tool_count=1,
        thread=ThreadId(f"{session}.{thread}"),
        edge=edge,
    )


def sent(session: str, turn: str, *, at_s: float, waited_ms: float = 0.0) -> list[rec.Record]:
    told: dict[str, Any] = {"turn": RequestId(turn), "session": SessionId(session), "replica": REPLICA}
    expected = rec.Expected(
        prompt_tokens=1000,
        cached_tokens=750,
        output_tokens=100,
        first_token_ms=300.0,
        first_token_p10_ms=200.0,
        first_token_p90_ms=500.0,
        completion_ms=2000.0,
        completion_p10_ms=1000.0,
        completion_p90_ms=4000.0,
    )
    return [
        rec.Routed(at_s=at_s, reason=PlacementReason.SESSION_LIVES_THERE, waited_ms=waited_ms, **told),
        rec.GpuSubmit(at_s=at_s, prompt_bytes=4000, attempt=1, expected=expected, **told),
    ]


def first_token(session: str, turn: str, *, at_s: float) -> rec.Record:
    return rec.GpuFirstToken(
        at_s=at_s, turn=RequestId(turn), session=SessionId(session), replica=REPLICA, launch_delay_ms=300.0
    )


def ended(session: str, turn: str, *, at_s: float, outcome: str = "finished") -> rec.Record:
    return rec.GpuEnd(
        at_s=at_s,
        turn=RequestId(turn),
        session=SessionId(session),
        replica=REPLICA,
        outcome=outcome,
        status=200,
        usage=Usage(prompt_tokens=1000, cached_tokens=750, output_tokens=80),
        finish_reason="tool_calls",
        duration_ms=1800.0,
    )


def whole_turn(session: str, turn: str, *, at_s: float) -> list[rec.Record]:
    """Three seconds, from its arrival to its end."""
    return [
        arrived(session, turn, at_s=at_s),
        *sent(session, turn, at_s=at_s + 1),
        first_token(session, turn, at_s=at_s + 1.5),
        ended(session, turn, at_s=at_s + 3),
    ]


def tools_started(session: str, turn: str, *names: str, at_s: float) -> rec.Record:
    return rec.ToolStart(at_s=at_s, session=SessionId(session), turn=RequestId(turn), names=names)


def tools_ended(session: str, turn: str, *names: str, at_s: float) -> rec.Record:
    return rec.ToolEnd(
        at_s=at_s, session=SessionId(session), turn=RequestId(turn), names=names, duration_ms=900.0
    )


def now() -> float:
    return time.time()


def lived(*, faults: bool = True, seconds: float = 240.0) -> tuple[World, list[rec.Record]]:
    """A made-up fleet, and all that happened there until now."""
    world = World(began_s=now() - seconds, has_faults=faults)
    return world, list(world.until(now()))
