"""Counting the stream: every record that counts, under closed labels."""

from typing import Any

from prometheus_client import CollectorRegistry, generate_latest

from gateway.domain import records as rec
from gateway.domain.admission_records import WindowUpdated
from gateway.domain.decision import PlacementReason, RefusalReason, SessionSource, WaitReason
from gateway.domain.ids import PoolId, ReplicaId, SessionId, TenantId, ThreadId
from gateway.domain.request import Claims, Protocol, Usage
from gateway.domain.timed_record import TimedRecord
from gateway.telemetry.counts import Counts

SESSION, REPLICA, TENANT = SessionId("s-secret"), ReplicaId("r0"), TenantId("alice")
TURN: dict[str, Any] = {"at_s": 1.0, "turn": "r-1", "session": SESSION}
THERE: dict[str, Any] = {**TURN, "replica": REPLICA}
USAGE = Usage(prompt_tokens=10, cached_tokens=4, output_tokens=2)
END: dict[str, Any] = {"status": 200, "usage": USAGE, "finish_reason": "stop", "duration_ms": 5000.0}


class Strange(TimedRecord, frozen=True, kw_only=True, tag="strange"):
    """Of a type that is newer."""


def text(counts: Counts) -> str:
    class Told:
        def collect(self):
            return counts.families()

    registry = CollectorRegistry()
    registry.register(Told())
    return generate_latest(registry).decode()


def test_records_are_counted():
    counts = Counts()
    strange: Any = Strange(at_s=1.0)
    counts.take([
        rec.TurnArrived(
            **TURN, tenant=TENANT, protocol=Protocol.CHAT, model="client's text", source=SessionSource.NEW,
            confidence=0.95, body_bytes=1, message_count=1, tool_count=0,
            claims=Claims(malformed=("deadline",)),
        ),
        rec.TurnWaited(**TURN, reason=WaitReason.KV_FULL, waiting=1),
        rec.TurnWouldWait(**TURN, reason=WaitReason.KV_FULL),
        rec.Routed(**THERE, reason=PlacementReason.LEAST_LOADED, waited_ms=1500.0),
        rec.GpuFirstToken(**THERE, launch_delay_ms=20.0),
        rec.GpuFirstToken(**THERE, launch_delay_ms=30.0),
        rec.GpuEnd(**THERE, outcome="finished", **END),
        rec.ToolStart(**TURN, names=("bash", "ls", "cat"), ready_ms=(700.0, 50.0)),
        rec.ToolEnd(**TURN, names=("bash",), duration_ms=2000.0),
        rec.Refused(**TURN, tenant=TENANT, reason=RefusalReason.QUEUE_FULL, waited_ms=0.0),
        rec.SessionEnded(at_s=1.0, session=SESSION, turns=1, reason="idle"),
        rec.ReplicaChanged(at_s=1.0, replica=REPLICA, state="up", why="client's text"),
        WindowUpdated(
            at_s=1.0, pool=PoolId("p"), sessions=1.0, kv_budget=None, admitted=1, waiting=0, demand=0.0,
            gpu_pressure=0.0, cpu_pressure=0.0, reason="healthy",
        ),
        rec.PrefilledAhead(
            **THERE, thread=ThreadId("1"), outcome="used", usage=USAGE, used_tokens=5, duration_ms=1.0
        ),
        rec.PrefillLegEnded(**THERE, outcome="ready", usage=USAGE, duration_ms=1.0),
        strange,
    ])  # fmt: skip
    told = text(counts)
    for line in (
        'turnpike_turns_total{protocol="chat",source="new"} 1.0',
        'turnpike_waits_total{reason="kv_full"} 1.0',
        'turnpike_would_wait_total{reason="kv_full"} 1.0',
        'turnpike_placements_total{reason="least_loaded",replica="r0"} 1.0',
        'turnpike_attempts_total{code="200",outcome="finished",replica="r0"} 1.0',
        'turnpike_refusals_total{reason="queue_full"} 1.0',
        'turnpike_malformed_claims_total{claim="deadline"} 1.0',
        'turnpike_sessions_ended_total{reason="idle"} 1.0',
        'turnpike_window_updates_total{pool="p",reason="healthy"} 1.0',
        'turnpike_replica_changes_total{replica="r0",state="up"} 1.0',
        'turnpike_records_total{type="gpu_1st_token"} 2.0',
        'turnpike_records_total{type="strange"} 1.0',
        'turnpike_prefill_ahead_total{outcome="used"} 1.0',
        'turnpike_prefill_ahead_tokens_total{what="computed"} 6.0',
        'turnpike_prefill_ahead_tokens_total{what="used"} 5.0',
        'turnpike_prefill_legs_total{outcome="ready",replica="r0"} 1.0',
        "turnpike_queue_seconds_sum 1.5",
        'turnpike_queue_seconds_bucket{le="1.0"} 0.0',
        'turnpike_queue_seconds_bucket{le="3.0"} 1.0',
        'turnpike_launch_delay_seconds_bucket{le="0.01",replica="r0"} 0.0',
        'turnpike_launch_delay_seconds_bucket{le="0.03",replica="r0"} 2.0',
        'turnpike_launch_delay_seconds_bucket{le="+Inf",replica="r0"} 2.0',
        'turnpike_launch_delay_seconds_count{replica="r0"} 2.0',
        'turnpike_turn_seconds_sum{replica="r0"} 5.0',
        "turnpike_tool_phase_seconds_sum 2.0",
        "turnpike_decode_after_call_seconds_sum 0.75",
        "turnpike_decode_after_call_seconds_count 2.0",
        'turnpike_session_confidence_bucket{le="0.9"} 0.0',
        'turnpike_session_confidence_bucket{le="0.95"} 1.0',
        'turnpike_tokens_total{kind="prompt",replica="r0"} 10.0',
        'turnpike_tokens_total{kind="cached",replica="r0"} 4.0',
        'turnpike_tokens_total{kind="output",replica="r0"} 2.0',
    ):
        assert f"\n{line}\n" in told, line
    for private in ("s-secret", "alice", "client's text", "bash"):
        assert private not in told


def test_nothing_is_told_of_a_replica_that_left():
    counts = Counts()
    for replica in (REPLICA, ReplicaId("stays")):
        there = {**TURN, "replica": replica}
        counts.take([
            rec.ReplicaChanged(at_s=1.0, replica=replica, state="up", why="is healthy"),
            rec.Routed(**there, reason=PlacementReason.LEAST_LOADED, waited_ms=1500.0),
            rec.GpuFirstToken(**there, launch_delay_ms=20.0),
            rec.GpuEnd(**there, outcome="finished", **END),
        ])  # fmt: skip
    before = text(counts)
    counts.take([rec.ReplicaChanged(at_s=2.0, replica=REPLICA, state="left", why="is no member any more")])
    told = text(counts)
    assert 'replica="r0"' in before and 'replica="r0"' not in told
    assert before.count('replica="stays"') == told.count('replica="stays"') == before.count('replica="r0"')
    assert "\nturnpike_queue_seconds_count 2.0\n" in told


def test_many_are_counted_on_the_way():
    counts = Counts()
    for _ in range(1000):
        counts.take([rec.ToolNum(at_s=1.0, active=1)])
        assert len(counts._fresh) <= 256
    assert '\nturnpike_records_total{type="tool_num"} 1000.0\n' in text(counts)
