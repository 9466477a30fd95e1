"""What is counted of MCP servers' calls, for Prometheus (pure). Labels are the settings' own names."""

from collections import Counter, defaultdict
from collections.abc import Iterator

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric

from gateway.telemetry.counts import Spread, histogram


class McpCounts:
    def __init__(self) -> None:
        self.calls: Counter[tuple[str, str]] = Counter()
        """By server and outcome."""
        self.running: Counter[str] = Counter()
        """By server: sent to it, and not over."""
        self.joined: Counter[str] = Counter()
        self.durations: dict[str, Spread] = defaultdict(Spread)
        """From its being sent to its result, of calls that have one."""

    def families(self) -> Iterator[Metric]:
        calls = CounterMetricFamily(
            "turnpike_mcp_calls", "Tool calls through the gateway that are over", labels=["server", "outcome"]
        )
        for labels, count in self.calls.items():
            calls.add_metric(labels, count)
        yield calls
        joined = CounterMetricFamily(
            "turnpike_mcp_calls_joined",
            "Tool calls through the gateway that are known to be what a model's answer asks for",
            labels=["server"],
        )
        for server, count in self.joined.items():
            joined.add_metric([server], count)
        yield joined
        running = GaugeMetricFamily(
            "turnpike_mcp_calls_running", "Tool calls that an MCP server works on", labels=["server"]
        )
        for server, count in self.running.items():
            running.add_metric([server], count)
        yield running
        spreads: dict[tuple[str, ...], Spread] = {(name,): each for name, each in self.durations.items()}
        about = "From a tool call's being sent to its result"
        yield histogram("mcp_call_duration_seconds", about, spreads, ["server"])
