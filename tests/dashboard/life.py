"""Records of single turns, for tests that say what happens when."""

import time
from typing import Any

import msgspec

from gateway.domain import records as rec
from gateway.domain.admission_records import WindowUpdated
from gateway.domain.decision import Edge, RefusalReason, WaitReason
from gateway.domain.ids import PoolId, ReplicaId, RequestId, SessionId, TenantId, ThreadId
from gateway.domain.request import Usage
from tests.history import lives

REPLICA = ReplicaId("default-0")
TENANT = TenantId("team-a")


def session_started(
    session: str, *, at_s: float, schema: str | None = "codex", parent: str | None = None
) -> rec.Record:
    (begun,) = lives.begun(session, at_s, tenant=TENANT, parent=parent)
    return msgspec.structs.replace(begun, schema=schema)


def arrived(
    session: str, turn: str, *, at_s: float, thread: str = "1", edge: Edge = Edge.OPENS
) -> rec.Record:
    came = lives.arrival(turn, session, at_s, tenant=TENANT)
    return msgspec.structs.replace(came, thread=ThreadId(f"{session}.{thread}"), edge=edge)


def sent(session: str, turn: str, *, at_s: float) -> list[rec.Record]:
    return lives.sent(turn, session, at_s, replica=REPLICA)


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
        usage=Usage(prompt_tokens=100, cached_tokens=75, output_tokens=8),
        finish_reason="tool_calls",
        duration_ms=1800.0,
    )


def whole_turn(session: str, turn: str, *, at_s: float) -> list[rec.Record]:
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


def lived() -> tuple[dict[str, object], list[rec.Record]]:
    """Gauges of a small fleet, and what happened there in the last minutes: each kind of record that the page
    shows, of many sessions."""
    records: list[rec.Record] = []
    began_s = now() - 240.0
    for number in range(60):
        at_s, session = began_s + 4 * number, f"s-{number:02}"
        records.append(session_started(session, at_s=at_s, schema=("codex", "claude-code")[number % 2]))
        records += whole_turn(session, f"r-{number}", at_s=at_s)
        records.append(tools_started(session, f"r-{number}", "bash", at_s=at_s + 3))
        if number % 7 == 0:
            spawned = f"{session}-r"
            records.append(arrived(session, spawned, at_s=at_s + 3, thread="2", edge=Edge.SPAWNED))
            records += sent(session, spawned, at_s=at_s + 3)
            records.append(ended(session, spawned, at_s=at_s + 3.5, outcome="cut"))
        ids: dict[str, Any] = {"session": SessionId(session), "turn": RequestId(f"r-{number}-2")}
        records.append(arrived(session, ids["turn"], at_s=at_s + 3.6, edge=Edge.CONTINUES))
        records.append(tools_ended(session, ids["turn"], "bash", at_s=at_s + 3.6))
        if number % 5 == 0:
            refusal = RefusalReason.QUEUE_FULL
            records.append(rec.Refused(at_s=at_s + 3.7, tenant=TENANT, reason=refusal, waited_ms=0.0, **ids))
        else:
            records.append(rec.TurnWaited(at_s=at_s + 3.7, reason=WaitReason.KV_FULL, waiting=1, **ids))
    down = {"replica": ReplicaId("default-1"), "why": "connection refused"}
    records += [rec.ReplicaChanged(at_s=now(), state="down", **down), _window(now())]  # type: ignore[arg-type]
    return _gauges(), sorted(records, key=lambda record: record.at_s)


def _window(at_s: float) -> WindowUpdated:
    return WindowUpdated(
        at_s=at_s, pool=PoolId("default"), sessions=24.0, kv_budget=1e6, admitted=20, waiting=3, demand=1.1e6,
        gpu_pressure=1.1, cpu_pressure=0.2, reason="preemptions",
    )  # fmt: skip


def _gauges() -> dict[str, object]:
    replica = {
        "pool": "default", "running": 4, "engine_running": 4, "engine_waiting": 1, "kv_used": 0.6,
        "kv_retained": 0.1, "kv_tokens": 420_000, "sessions": 20, "engine": "vllm", "version": "0.32.0",
        "models": ["m"],
    }  # fmt: skip
    pool = {
        "id": "default", "gpu_pressure": 1.1, "cpu_pressure": 0.2, "admitted": 20, "demand": 1.1e6,
        "kv_budget": 1e6, "waiting": 3, "window": 24.0, "updates": [],
    }  # fmt: skip
    tenant = {
        "pool": "default",
        "weight": 1.0,
        "admitted": 9,
        "lately": 7.2,
        "waiting": 2,
    }
    return {
        "running": 8,
        "waiting": 3,
        "active_tools": 5,
        "session_count": 60,
        "replicas": [{"id": f"default-{n}", "is_up": n != 1, **replica} for n in range(3)],
        "pools": [pool],
        "tenants": [{"id": name, **tenant} for name in ("team-a", "team-b", "nightly")],
    }
