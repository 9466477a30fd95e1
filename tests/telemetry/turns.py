"""What a session's turns make the stream say."""

from typing import Any

from gateway.domain import records as rec
from gateway.domain.decision import Edge, PlacementReason, SessionSource
from gateway.domain.ids import PoolId, ReplicaId, RequestId, SessionId, TenantId, ThreadId
from gateway.domain.request import Protocol, Usage


def turn(
    name: str,
    session: str,
    at_s: float,
    *,
    queue_s: float = 0.0,
    prefill_s: float = 1.0,
    decode_s: float = 1.0,
    alone_s: float | None = 1.0,
    tenant: str = "t",
    agent: str = "a",
    replica: str = "r0",
    pool: str = "p",
    service_class: str | None = "reactive",
    edge: Edge = Edge.OPENS,
    parent: str | None = None,
    prompt: int | None = 1000,
    cached: int | None = 0,
    output: int = 101,
    outcome: str = "finished",
    status: int = 200,
    streamed: bool = True,
) -> list[rec.Record]:
    ids: dict[str, Any] = {"turn": RequestId(name), "session": SessionId(session)}
    there = {**ids, "replica": ReplicaId(replica)}
    sent_s = at_s + queue_s
    first_s, end_s = sent_s + prefill_s, sent_s + prefill_s + decode_s
    return [
        rec.TurnArrived(
            at_s=at_s, tenant=TenantId(tenant), protocol=Protocol.CHAT, model="m", body_bytes=4,
            source=SessionSource.NEW, confidence=1.0, message_count=1, tool_count=1, agent=agent,
            thread=ThreadId(f"{session}.1"), edge=edge, parent=RequestId(parent) if parent else None,
            is_streamed=streamed, **ids,
        ),
        rec.Routed(at_s=sent_s, reason=PlacementReason.LEAST_LOADED, waited_ms=queue_s * 1e3, **there),
        rec.GpuSubmit(
            at_s=sent_s, prompt_bytes=4, attempt=1, pool=PoolId(pool), service_class=service_class, **there
        ),
        rec.GpuFirstToken(at_s=first_s, launch_delay_ms=prefill_s * 1e3, **there),
        rec.GpuEnd(
            at_s=end_s, outcome=outcome, status=status, finish_reason="stop",
            duration_ms=(end_s - sent_s) * 1e3, alone_ms=None if alone_s is None else alone_s * 1e3,
            usage=Usage(prompt_tokens=prompt, cached_tokens=cached, output_tokens=output), **there,
        ),
    ]  # fmt: skip


def over(session: str, at_s: float, *, reason: str = "finished") -> rec.SessionEnded:
    return rec.SessionEnded(at_s=at_s, session=SessionId(session), turns=1, reason=reason)


def tools(name: str, session: str, at_s: float, *, took_s: float, late_s: float = 0.0) -> rec.ToolEnd:
    return rec.ToolEnd(
        at_s=at_s, turn=RequestId(name), session=SessionId(session), names=("bash",),
        duration_ms=took_s * 1e3, late_s=late_s,
    )  # fmt: skip
