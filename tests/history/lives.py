"""Turns as the stream tells them, for a store to keep."""

from typing import Any

from gateway.domain import records as rec
from gateway.domain.decision import Edge, PlacementReason, RefusalReason, SessionSource
from gateway.domain.ids import ReplicaId, RequestId, SessionId, TenantId, ThreadId
from gateway.domain.request import Protocol, Usage

A, B = ReplicaId("a"), ReplicaId("b")
EXPECTED = rec.Expected(
    prompt_tokens=100, cached_tokens=40, output_tokens=30, first_token_ms=60.0, first_token_p10_ms=40.0,
    first_token_p90_ms=60.0, completion_ms=500.0, completion_p10_ms=400.0, completion_p90_ms=600.0,
)  # fmt: skip


def begun(session: str, at_s: float, *, tenant: str = "t", parent: str | None = None) -> list[rec.Record]:
    return [
        rec.SessionStarted(
            at_s=at_s, session=SessionId(session), tenant=TenantId(tenant), source=SessionSource.NEW,
            confidence=1.0, schema="codex", parent=SessionId(parent) if parent is not None else None,
        )
    ]  # fmt: skip


def arrival(
    turn: str, session: str, at_s: float, *, tenant: str = "t", model: str = "m", parent: str | None = None
) -> rec.TurnArrived:
    return rec.TurnArrived(
        at_s=at_s, turn=RequestId(turn), session=SessionId(session), tenant=TenantId(tenant),
        protocol=Protocol.CHAT, model=model, source=SessionSource.CALL_ID, confidence=0.99, body_bytes=4000,
        message_count=5, tool_count=2, thread=ThreadId(f"{session}.1"), is_streamed=True,
        edge=Edge.CONTINUES if parent is not None else Edge.OPENS,
        parent=RequestId(parent) if parent is not None else None,
    )  # fmt: skip


def sent(turn: str, session: str, at_s: float, *, replica: ReplicaId = A) -> list[rec.Record]:
    ids: dict[str, Any] = {"turn": RequestId(turn), "session": SessionId(session), "replica": replica}
    return [
        rec.Routed(at_s=at_s, reason=PlacementReason.LEAST_LOADED, waited_ms=20.0, **ids),
        rec.GpuSubmit(at_s=at_s, prompt_bytes=4000, attempt=1, expected=EXPECTED, **ids),
    ]


def ended(
    turn: str,
    session: str,
    at_s: float,
    *,
    replica: ReplicaId = A,
    outcome: str = "finished",
    ms: float = 1000.0,
) -> list[rec.Record]:
    ids: dict[str, Any] = {"turn": RequestId(turn), "session": SessionId(session), "replica": replica}
    return [
        rec.GpuFirstToken(at_s=at_s - 0.5, launch_delay_ms=ms / 2, **ids),
        rec.GpuEnd(
            at_s=at_s, outcome=outcome, status=200, finish_reason="stop", duration_ms=ms,
            usage=Usage(prompt_tokens=100, cached_tokens=60, output_tokens=7), **ids,
        ),
        rec.ToolStart(at_s=at_s, turn=ids["turn"], session=ids["session"], names=("bash",)),
    ]  # fmt: skip


def whole(turn: str, session: str, at_s: float, *, replica: ReplicaId = A, **more) -> list[rec.Record]:
    return [
        arrival(turn, session, at_s, **more),
        *sent(turn, session, at_s + 0.02, replica=replica),
        *ended(turn, session, at_s + 1.0, replica=replica),
    ]


def refused(turn: str, session: str, at_s: float) -> list[rec.Record]:
    return [
        arrival(turn, session, at_s),
        rec.Refused(
            at_s=at_s + 0.1, turn=RequestId(turn), session=SessionId(session), tenant=TenantId("t"),
            reason=RefusalReason.QUEUE_FULL, waited_ms=100.0,
        ),
    ]  # fmt: skip
