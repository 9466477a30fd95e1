"""Prometheus metrics: what is counted, how things are, and what the gateway itself costs.

Prometheus' page is made at each scrape.
"""

from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from typing import Final

from prometheus_client import CollectorRegistry, PlatformCollector, ProcessCollector, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, InfoMetricFamily, Metric
from prometheus_client.registry import Collector

from gateway import __version__
from gateway.core.snapshot import Gauges
from gateway.telemetry.counts import Counts, counter, gauge
from gateway.telemetry.gauges import gauge_families
from gateway.telemetry.histograms import SHORT, Histogram, histogram
from gateway.telemetry.mcp_counts import McpCounts
from gateway.telemetry.objective import Objective
from gateway.telemetry.usage import Usages

# Counters that somebody else keeps: name → what it is, and its value.
Odometers = Mapping[str, tuple[str, Callable[[], int]]]
_LOCAL_FAULTS: Final = (
    "Failed connections to replicas for want of descriptors, ports or memory of the gateway"
)


class Metrics(Counts, Collector):
    def __init__(
        self,
        gauges: Callable[[], Gauges],
        odometers: Odometers,
        *,
        restarts: Mapping[str, int] | None = None,
        local_faults: Mapping[str, int] | None = None,
        connections: Callable[[], int] = lambda: 0,
        peers: Callable[[], int] = lambda: 0,
        outcome: Objective,
        usages: Usages | None = None,
    ) -> None:
        """`restarts`: of background loops, by name; `local_faults`: by kind; `connections`: of clients;
        `peers`: other gateways that live. Somebody else counts them."""
        super().__init__((outcome.take,), usages)
        self._gauges = gauges
        self._restarts = restarts if restarts is not None else {}
        self._local_faults = local_faults if local_faults is not None else {}
        self._connections = connections
        self._peers = peers
        self._odometers = odometers
        self._outcome = outcome
        # From a whole request to its being sent on, in seconds, of some that did not wait.
        self.overhead = Histogram(SHORT)
        # How late the event loop is, in seconds.
        self.loop_lag = Histogram(SHORT)
        # Requests whose body was not understood, by why.
        self.unread: Counter[str] = Counter()
        # WebSocket requests: `opened`, and of these `closed`; `refused`.
        self.tunnels: Counter[str] = Counter()
        # Of clients, by endpoint, status and whether they failed; to be set to whoever counts them.
        self.requests: Counter[tuple[str, int, bool]] = Counter()
        # To be set if there are MCP servers.
        self.mcp: McpCounts | None = None
        # By setting; to be set to whoever knows them.
        self.certificate_ends: Mapping[str, float] = {}
        # To be set if there may be a shared store.
        self.is_store_up: Callable[[], bool | None] = lambda: None
        self._registry = CollectorRegistry()
        self._registry.register(self)
        ProcessCollector(registry=self._registry)
        PlatformCollector(registry=self._registry)

    def render(self) -> bytes:
        return generate_latest(self._registry) + self._outcome.text().encode()

    def collect(self) -> Iterator[Metric]:
        yield InfoMetricFamily("turnpike_build", "Version of the gateway", {"version": __version__})
        what = "Requests of clients, by answer; a failure behind a good status has the class 5xx"
        requests = {
            (endpoint, "5xx" if has_failed else f"{status // 100}xx", str(status)): count
            for (endpoint, status, has_failed), count in self.requests.items()
        }
        yield counter("requests", what, ["endpoint", "status_class", "code"], requests)
        yield from self.families()
        yield from self._outcome.families()
        yield from gauge_families(self._gauges())
        open_tunnels = self.tunnels["opened"] - self.tunnels["closed"]
        for name, what, value in (
            ("client_connections", "Open client connections, TLS handshakes included", self._connections()),
            ("tunnels", "Open WebSockets of clients", open_tunnels),
            ("peers_alive", "Live gateways of the same store, without this one", self._peers()),
        ):
            yield GaugeMetricFamily(f"turnpike_{name}", what, value)
        if (is_up := self.is_store_up()) is not None:
            yield GaugeMetricFamily("turnpike_store_up", "1 if the shared store answers", is_up)
        what = "Expiry of a certificate of the gateway, in Unix time"
        yield gauge("certificate_expires_seconds", what, ["setting"], self.certificate_ends)
        for name, (what, read) in self._odometers.items():
            yield CounterMetricFamily(f"turnpike_{name}", what, read())
        tunnels = {each: self.tunnels[each] for each in ("opened", "refused")}
        unread = {each: self.unread[each] for each in ("malformed", "oversized")}
        for name, what, label, counts in (
            ("tunnel_requests", "WebSocket requests, opened or refused with 426", "outcome", tunnels),
            ("background_restarts", "Restarts of failed background loops", "loop", self._restarts),
            ("local_faults", _LOCAL_FAULTS, "kind", self._local_faults),
            ("requests_unread", "Requests passed on unread: malformed, or too large", "reason", unread),
        ):
            yield counter(name, what, [label], counts)
        what = "Time from a complete request to its dispatch, of one in sixteen without a wait"
        yield histogram("request_overhead_seconds", what, {(): self.overhead})
        yield histogram("loop_lag_seconds", "Delay of the event loop", {(): self.loop_lag})
        if self.mcp is not None:
            yield from self.mcp.families()
