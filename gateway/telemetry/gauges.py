"""How things are, as Prometheus gauges (pure).

Invariants: of tenants at most `MAX_TENANTS` have a label of their own, those with most in the pools; the
others are counted together. Of bounds the `MAX_TENANTS` nearest to their end have one.
"""

from collections.abc import Iterable, Iterator, Sequence
from heapq import nlargest
from typing import Final

from prometheus_client.core import GaugeMetricFamily, Metric

from gateway.core.pool_views import PoolView, TenantView
from gateway.core.snapshot import Gauges, ReplicaView

MAX_TENANTS: Final = 50
_OTHERS: Final = "other tenants"


def gauge_families(now: Gauges) -> Iterator[Metric]:
    yield _gauge("sessions", "Sessions known", now.session_count)
    yield _gauge("running", "Requests on replicas", now.running)
    yield _gauge("waiting", "Turns in the waiting room", now.waiting)
    yield _gauge("tools_active", "Sessions whose tools run", now.active_tools)
    waiting = _labelled("waiting_by_class", "Turns in the waiting room", ["class"])
    for name, count in now.waiting_by.items():
        waiting.add_metric([name], count)
    yield waiting
    yield from _of_each("replica", now.replicas, _OF_REPLICAS)
    yield from _of_each("pool", now.pools, _OF_POOLS)
    yield from _tenants(now.tenants)
    used = _labelled("bound_used_ratio", "Share of a day's or month's bound used", ["bound", "tenant"])
    for view in nlargest(MAX_TENANTS, now.bounds, key=lambda each: each.used):
        used.add_metric([view.bound, view.tenant], view.used)
    yield used


_OF_REPLICAS: Final = (
    ("replica_up", "1 if the replica is healthy", "is_up"),
    ("replica_running", "Requests on a replica", "running"),
    ("replica_sessions", "Sessions that live on a replica", "sessions"),
    ("engine_waiting", "Requests in the engine's own queue", "engine_waiting"),
    ("engine_kv_used_ratio", "Share of the KV cache that runs hold", "kv_used"),
    ("engine_kv_retained_ratio", "Share of it held for sessions that pause", "kv_retained"),
    ("engine_kv_tokens", "Tokens whose KV fits on the device", "kv_tokens"),
)
_OF_POOLS: Final = (
    ("window_sessions", "Sessions that may be in; absent without a limit", "window"),
    ("kv_budget_tokens", "Tokens that they may be expected to hold; absent without a limit", "kv_budget"),
    ("admitted_sessions", "Sessions that are in", "admitted"),
    ("waiting_sessions", "Sessions that wait for a place", "waiting"),
    ("kv_demand_tokens", "Tokens that those in are expected to hold at most", "demand"),
    ("kv_held_tokens", "Tokens that they hold now, as far as they were told", "held"),
    ("gpu_pressure_ratio", "From 1 on the engines are overloaded", "gpu_pressure"),
    ("cpu_pressure_ratio", "From 1 on the tools are", "cpu_pressure"),
)
"""Name, what it is, and the field of the view."""


def _of_each(
    label: str, views: Sequence[ReplicaView | PoolView], gauges: Iterable[tuple[str, str, str]]
) -> Iterator[Metric]:
    for name, help_text, field in gauges:
        family = _labelled(name, help_text, [label])
        for view in views:
            value = getattr(view, field)
            if value is not None:
                family.add_metric([view.id], value)
        yield family


def _tenants(tenants: Iterable[TenantView]) -> Iterator[Metric]:
    admitted = _labelled("tenant_admitted_sessions", "Sessions that are in", ["pool", "tenant"])
    waiting = _labelled("tenant_waiting_sessions", "Sessions that wait for a place", ["pool", "tenant"])
    counts: dict[tuple[str, str], list[int]] = {}
    for number, view in enumerate(tenants):
        name = view.id if number < MAX_TENANTS else _OTHERS
        count = counts.setdefault((view.pool, name), [0, 0])
        count[0] += view.admitted
        count[1] += view.waiting
    for labels, (is_in, waits) in counts.items():
        admitted.add_metric(list(labels), is_in)
        waiting.add_metric(list(labels), waits)
    yield from (admitted, waiting)


def _gauge(name: str, help_text: str, value: float) -> GaugeMetricFamily:
    return GaugeMetricFamily(f"turnpike_{name}", help_text, value)


def _labelled(name: str, help_text: str, labels: list[str]) -> GaugeMetricFamily:
    return GaugeMetricFamily(f"turnpike_{name}", help_text, labels=labels)
