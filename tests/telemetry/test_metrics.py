"""The Prometheus text, put together."""

from gateway.core.snapshot import Gauges
from gateway.domain import records as rec
from gateway.telemetry.metrics import Metrics


def test_everything_is_told():
    now = Gauges(at_s=1.0, session_count=3, running=2, waiting=1, active_tools=1)
    metrics = Metrics(lambda: now, {"stream_dropped": ("Records not written", lambda: 5)})
    metrics.take([rec.ToolNum(at_s=1.0, active=1)])
    metrics.overhead.add(0.00005)
    metrics.loop_lag.add(0.5)
    text = metrics.render().decode()
    for line in (
        'turnpike_records_total{type="tool_num"} 1.0',
        "turnpike_sessions 3.0",
        "turnpike_stream_dropped_total 5.0",
        'turnpike_request_overhead_seconds_bucket{le="0.0001"} 1.0',
        "turnpike_loop_lag_seconds_sum 0.5",
    ):
        assert f"\n{line}\n" in text, line
    assert "turnpike_build_info{version=" in text and "\nprocess_cpu_seconds_total " in text
