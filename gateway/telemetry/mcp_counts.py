"""What is counted of MCP servers' calls, for Prometheus (pure). Labels are the settings' own names."""

from collections import Counter, defaultdict
from collections.abc import Iterator

from prometheus_client.core import Metric

from gateway.telemetry.counts import counter, gauge
from gateway.telemetry.histograms import Histogram, histogram


class McpCounts:
    def __init__(self) -> None:
        self.calls: Counter[tuple[str, str]] = Counter()
        self.running: Counter[str] = Counter()
        # By server: those that may not be sent to it yet.
        self.waiting: Counter[str] = Counter()
        self.waits: dict[str, Histogram] = defaultdict(Histogram)
        self.joined: Counter[str] = Counter()
        # From its being sent to its result, of calls that have one.
        self.durations: dict[str, Histogram] = defaultdict(Histogram)

    def families(self) -> Iterator[Metric]:
        what = "Finished tool calls through the gateway"
        yield counter("mcp_calls", what, ["server", "outcome"], self.calls)
        what = "Tool calls through the gateway, matched to the answer of a model"
        yield counter("mcp_calls_joined", what, ["server"], self.joined)
        for name, what, counts in (
            ("running", "Running tool calls of an MCP server", self.running),
            ("waiting", "Tool calls that wait for an MCP server", self.waiting),
        ):
            yield gauge(f"mcp_calls_{name}", what, ["server"], counts)
        for name, what, spreads in (
            ("duration", "Time from the dispatch of a tool call to its result", self.durations),
            ("wait", "Wait of tool calls before their dispatch, without those that did not wait", self.waits),
        ):
            by: dict[tuple[str, ...], Histogram] = {(server,): spread for server, spread in spreads.items()}
            yield histogram(f"mcp_call_{name}_seconds", what, by, ["server"])
