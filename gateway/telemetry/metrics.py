"""Prometheus metrics, counted from the information stream and read from the snapshot.

Labels are reasons, outcomes, sources and replicas: small closed sets. Never a session, never a client's text.
Counting is a plain addition; what Prometheus wants to read is made when it asks.
"""

from bisect import bisect_left
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator
from typing import Any, Final

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric
from prometheus_client.registry import Collector

from gateway.core.snapshot import Gauges
from gateway.domain import records as rec
from gateway.domain.decision import RefusalReason, SessionSource
from gateway.domain.ids import ReplicaId
from gateway.domain.request import Protocol

_SECONDS: Final = (0.001, 0.003, 0.01, 0.03, 0.1, 0.3, 1, 3, 10, 30, 100, 300, 1000)
_MANY: Final = 256


class _Spread:
    """How often a duration fell between which bounds."""

    __slots__ = ("counts", "total_s")

    def __init__(self) -> None:
        self.counts = [0] * (len(_SECONDS) + 1)
        self.total_s = 0.0

    def add_ms(self, times_ms: Iterable[float]) -> None:
        counts = self.counts
        for ms in times_ms:
            seconds = ms / 1e3
            counts[bisect_left(_SECONDS, seconds)] += 1
            self.total_s += seconds


class Metrics(Collector):
    def __init__(self, gauges: Callable[[], Gauges], dropped_records: Callable[[], int]) -> None:
        self._gauges_now = gauges
        self._dropped_records = dropped_records
        self._fresh: list[rec.Record] = []
        self._turns: Counter[tuple[Protocol, SessionSource]] = Counter()
        self._ends: Counter[tuple[ReplicaId, str]] = Counter()
        self._refusals: Counter[RefusalReason] = Counter()
        self._malformed: Counter[str] = Counter()
        self._tokens: Counter[str] = Counter()
        self._queue, self._tools = _Spread(), _Spread()
        self._first_token: dict[ReplicaId, _Spread] = defaultdict(_Spread)
        self._counters: dict[type[rec.Record], Callable[[list[Any]], None]] = {
            rec.TurnArrived: self._count_turns,
            rec.Routed: lambda records: self._queue.add_ms([record.waited_ms for record in records]),
            rec.GpuFirstToken: self._count_first_tokens,
            rec.GpuEnd: self._count_ends,
            rec.ToolEnd: lambda records: self._tools.add_ms([record.duration_ms for record in records]),
            rec.Refused: self._count_refusals,
        }
        self._registry = CollectorRegistry()
        self._registry.register(self)

    def take(self, records: list[rec.Record]) -> None:
        """They are counted when they are many, or somebody asks: one by one it takes twice as long."""
        self._fresh += records
        if len(self._fresh) > _MANY:
            self._count()

    def _count(self) -> None:
        fresh, self._fresh = self._fresh, []
        kinds: dict[type[rec.Record], list[rec.Record]] = defaultdict(list)
        for record in fresh:
            kinds[type(record)].append(record)
        for kind, records in kinds.items():
            counter = self._counters.get(kind)
            if counter is not None:
                counter(records)

    def render(self) -> bytes:
        """The Prometheus text format."""
        return generate_latest(self._registry)

    def _count_turns(self, records: list[rec.TurnArrived]) -> None:
        self._turns.update([(record.protocol, record.source) for record in records])
        for record in records:
            if record.claims is not None:
                self._malformed.update(record.claims.malformed)

    def _count_first_tokens(self, records: list[rec.GpuFirstToken]) -> None:
        delays_ms: dict[ReplicaId, list[float]] = defaultdict(list)
        for record in records:
            delays_ms[record.replica].append(record.launch_delay_ms)
        for replica, each in delays_ms.items():
            self._first_token[replica].add_ms(each)

    def _count_ends(self, records: list[rec.GpuEnd]) -> None:
        self._ends.update([(record.replica, record.outcome) for record in records])
        tokens = self._tokens
        usages = [record.usage for record in records]
        tokens["prompt"] += sum([usage.prompt_tokens or 0 for usage in usages])
        tokens["cached"] += sum([usage.cached_tokens or 0 for usage in usages])
        tokens["output"] += sum([usage.output_tokens or 0 for usage in usages])

    def _count_refusals(self, records: list[rec.Refused]) -> None:
        self._refusals.update([record.reason for record in records])

    def collect(self) -> Iterator[Metric]:
        self._count()
        turns = CounterMetricFamily("turnpike_turns", "Turns that arrived", labels=["protocol", "source"])
        for (protocol, source), count in self._turns.items():
            turns.add_metric([protocol.value, source.value], count)
        ends = CounterMetricFamily(
            "turnpike_attempts",
            "Requests sent to a replica, by how they ended",
            labels=["replica", "outcome"],
        )
        for (replica, outcome), count in self._ends.items():
            ends.add_metric([replica, outcome], count)
        refusals = CounterMetricFamily("turnpike_refusals", "Requests the gateway refused", labels=["reason"])
        for reason, count in self._refusals.items():
            refusals.add_metric([reason.value], count)
        tokens = CounterMetricFamily("turnpike_tokens", "Tokens as backends reported them", labels=["kind"])
        for kind, count in self._tokens.items():
            tokens.add_metric([kind], count)
        malformed = CounterMetricFamily(
            "turnpike_malformed_claims",
            "Stated classes and deadlines that could not be read",
            labels=["claim"],
        )
        for claim, count in self._malformed.items():
            malformed.add_metric([claim], count)
        yield from (turns, ends, refusals, tokens, malformed)
        yield _histogram("turnpike_queue_seconds", "Time in the waiting room", {(): self._queue})
        yield _histogram(
            "turnpike_launch_delay_seconds",
            "From submission to the first token",
            {(replica,): spread for replica, spread in self._first_token.items()},
            ["replica"],
        )
        yield _histogram("turnpike_tool_phase_seconds", "Duration of tool phases", {(): self._tools})
        yield from self._gauges(self._gauges_now())

    def _gauges(self, now: Gauges) -> Iterator[Metric]:
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


def _histogram(
    name: str, help_text: str, spreads: dict[tuple[str, ...], _Spread], labels: list[str] | None = None
) -> Metric:
    family = HistogramMetricFamily(name, help_text, labels=labels or [])
    bounds = [*(str(float(bound)) for bound in _SECONDS), "+Inf"]
    for values, spread in spreads.items():
        below, buckets = 0, []
        for bound, count in zip(bounds, spread.counts, strict=True):
            below += count
            buckets.append((bound, float(below)))
        family.add_metric(list(values), buckets, spread.total_s)
    return family
