"""The Prometheus text: every record that counts, under closed labels."""

from typing import Any

from gateway.core.snapshot import ReplicaView, Snapshot
from gateway.domain import records as rec
from gateway.domain.decision import PlacementReason, RefusalReason, SessionSource
from gateway.domain.ids import PoolId, ReplicaId
from gateway.domain.request import Claims, Protocol, Usage
from gateway.telemetry.metrics import Metrics

ONE = ReplicaView(
    id=ReplicaId("r0"),
    pool=PoolId("default"),
    is_up=True,
    running=2,
    engine="vllm",
    version="0.30",
    models=("m",),
)
NOW = Snapshot(at_s=1.0, replicas=(ONE,), sessions=(), session_count=3, running=2, waiting=1, active_tools=1)


def test_records_are_counted():
    metrics = Metrics(lambda: NOW, lambda: 5)
    turn: dict[str, Any] = {"at_s": 1.0, "turn": "r-1", "session": "s-secret"}
    alice: dict[str, Any] = {"tenant": "alice"}
    there: dict[str, Any] = {**turn, "replica": "r0"}
    usage = Usage(prompt_tokens=10, cached_tokens=4, output_tokens=2)
    end: dict[str, Any] = {"status": 200, "usage": usage, "finish_reason": "stop", "duration_ms": 1.0}
    seen: list[rec.Record] = [
        rec.TurnArrived(
            **turn, **alice, protocol=Protocol.CHAT, model="client's text", source=SessionSource.NEW,
            confidence=0.5, body_bytes=1, message_count=1, tool_count=0,
            claims=Claims(malformed=("deadline",)),
        ),
        rec.Routed(**there, reason=PlacementReason.LEAST_LOADED, waited_ms=1500.0),
        rec.GpuFirstToken(**there, launch_delay_ms=20.0),
        rec.GpuFirstToken(**there, launch_delay_ms=30.0),
        rec.GpuEnd(**there, outcome="finished", **end),
        rec.ToolEnd(**turn, names=("bash",), duration_ms=2000.0),
        rec.Refused(**turn, **alice, reason=RefusalReason.QUEUE_FULL, waited_ms=0.0),
    ]  # fmt: skip
    metrics.take(seen)
    text = metrics.render().decode()
    for line in (
        'turnpike_turns_total{protocol="chat",source="new"} 1.0',
        'turnpike_attempts_total{outcome="finished",replica="r0"} 1.0',
        'turnpike_refusals_total{reason="queue_full"} 1.0',
        'turnpike_malformed_claims_total{claim="deadline"} 1.0',
        "turnpike_queue_seconds_sum 1.5",
        'turnpike_launch_delay_seconds_bucket{le="0.01",replica="r0"} 0.0',
        'turnpike_launch_delay_seconds_bucket{le="0.03",replica="r0"} 2.0',
        'turnpike_launch_delay_seconds_bucket{le="+Inf",replica="r0"} 2.0',
        'turnpike_launch_delay_seconds_count{replica="r0"} 2.0',
        'turnpike_queue_seconds_bucket{le="1.0"} 0.0',
        'turnpike_queue_seconds_bucket{le="3.0"} 1.0',
        "turnpike_tool_phase_seconds_sum 2.0",
        'turnpike_tokens_total{kind="prompt"} 10.0',
        'turnpike_tokens_total{kind="cached"} 4.0',
        'turnpike_tokens_total{kind="output"} 2.0',
        "turnpike_sessions 3.0",
        "turnpike_running 2.0",
        "turnpike_waiting 1.0",
        "turnpike_tools_active 1.0",
        "turnpike_stream_dropped 5.0",
        'turnpike_replica_up{replica="r0"} 1.0',
        'turnpike_replica_running{replica="r0"} 2.0',
    ):
        assert f"\n{line}\n" in text, line
    for private in ("s-secret", "alice", "client's text", "bash"):
        assert private not in text
