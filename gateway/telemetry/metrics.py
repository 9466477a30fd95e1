"""Prometheus metrics, counted from the information stream and read from the snapshot.

Labels are reasons, outcomes, sources and replicas: small closed sets. Never a session, never a client's text.
"""

from collections.abc import Callable, Iterator
from functools import cache
from typing import Any

from prometheus_client import CollectorRegistry, Counter, Histogram, generate_latest
from prometheus_client.core import GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from gateway.core.snapshot import Snapshot
from gateway.domain import records as rec

_SECONDS = (0.001, 0.003, 0.01, 0.03, 0.1, 0.3, 1, 3, 10, 30, 100, 300, 1000)


class Metrics:
    def __init__(self, snapshot: Callable[[], Snapshot], dropped_records: Callable[[], int]) -> None:
        self._registry = CollectorRegistry()
        registry = self._registry
        turns = Counter("turnpike_turns", "Turns that arrived", ["protocol", "source"], registry=registry)
        ends = Counter(
            "turnpike_attempts", "Requests sent to a replica, by how they ended", ["replica", "outcome"],
            registry=registry,
        )  # fmt: skip
        self._refusals = Counter(
            "turnpike_refusals", "Requests the gateway refused", ["reason"], registry=registry
        )
        self._queue = Histogram(
            "turnpike_queue_seconds", "Time in the waiting room", buckets=_SECONDS, registry=registry
        )
        first_token = Histogram(
            "turnpike_launch_delay_seconds", "From submission to the first token", ["replica"],
            buckets=_SECONDS, registry=registry,
        )  # fmt: skip
        self._tools = Histogram(
            "turnpike_tool_phase_seconds", "Duration of tool phases", buckets=_SECONDS, registry=registry
        )
        tokens = Counter("turnpike_tokens", "Tokens as backends reported them", ["kind"], registry=registry)
        # Looking up a child takes longer than counting; the sets of labels are small and closed.
        self._turns, self._ends = cache(turns.labels), cache(ends.labels)
        self._first_token, self._tokens = cache(first_token.labels), cache(tokens.labels)
        self._counters: dict[type[rec.Record], Callable[[Any], None]] = {
            rec.TurnArrived: lambda r: self._turns(r.protocol.value, r.source.value).inc(),
            rec.Routed: lambda r: self._queue.observe(r.waited_ms / 1e3),
            rec.GpuFirstToken: lambda r: self._first_token(r.replica).observe(r.launch_delay_ms / 1e3),
            rec.GpuEnd: self._count_end,
            rec.ToolEnd: lambda r: self._tools.observe(r.duration_ms / 1e3),
            rec.Refused: lambda r: self._refusals.labels(r.reason.value).inc(),
        }
        registry.register(_Gauges(snapshot, dropped_records))

    def count(self, record: rec.Record) -> None:
        counter = self._counters.get(type(record))
        if counter is not None:
            counter(record)

    def _count_end(self, record: rec.GpuEnd) -> None:
        self._ends(record.replica, record.outcome).inc()
        usage = record.usage
        for kind, count in (
            ("prompt", usage.prompt_tokens),
            ("cached", usage.cached_tokens),
            ("output", usage.output_tokens),
        ):
            if count:
                self._tokens(kind).inc(count)

    def render(self) -> bytes:
        """The Prometheus text format."""
        return generate_latest(self._registry)


class _Gauges(Collector):
    def __init__(self, snapshot: Callable[[], Snapshot], dropped_records: Callable[[], int]) -> None:
        self._snapshot = snapshot
        self._dropped_records = dropped_records

    def collect(self) -> Iterator[Metric]:
        now = self._snapshot()
        yield GaugeMetricFamily("turnpike_sessions", "Sessions known", now.session_count)
        yield GaugeMetricFamily("turnpike_running", "Requests on replicas", now.running)
        yield GaugeMetricFamily("turnpike_waiting", "Turns in the waiting room", now.waiting)
        yield GaugeMetricFamily("turnpike_tools_active", "Sessions whose tools run", now.active_tools)
        yield GaugeMetricFamily(
            "turnpike_stream_dropped", "Records not written to the stream's file", self._dropped_records()
        )
        is_up = GaugeMetricFamily("turnpike_replica_up", "1 if the replica is healthy", labels=["replica"])
        running = GaugeMetricFamily("turnpike_replica_running", "Requests on a replica", labels=["replica"])
        for replica in now.replicas:
            is_up.add_metric([replica.id], float(replica.is_up))
            running.add_metric([replica.id], replica.running)
        yield is_up
        yield running
