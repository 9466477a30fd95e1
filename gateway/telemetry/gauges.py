"""How things are, as Prometheus gauges (pure).

Invariants: of tenants at most `MAX_TENANTS` have a label of their own, those with most in the pools; the
others are counted together. Of bounds the `MAX_TENANTS` nearest to their end have one.
"""

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from heapq import nlargest
from typing import Final

from prometheus_client.core import GaugeMetricFamily, Metric

from gateway.core.pool_views import PoolView, TenantView
from gateway.core.snapshot import Gauges, ReplicaView
from gateway.telemetry.counts import counter, gauge

MAX_TENANTS: Final = 50
_OTHERS: Final = "other tenants"


def gauge_families(now: Gauges) -> Iterator[Metric]:
    for name, help_text, value in (
        ("sessions", "Known sessions", now.session_count),
        ("running", "Requests on replicas", now.running),
        ("waiting", "Turns in the waiting room", now.waiting),
        ("sessions_in_tools", "Sessions with running tools", now.active_tools),
    ):
        yield GaugeMetricFamily(f"turnpike_{name}", help_text, value)
    yield gauge("waiting_by_class", "Turns in the waiting room, by service class", ["class"], now.waiting_by)
    yield from _of_each("replica", now.replicas, _OF_REPLICAS)
    yield from _of_each("pool", now.pools, _OF_POOLS)
    yield from _tenants(now.tenants)
    for name, help_text, field in _OF_CLIENTS:
        counts = {(each.client or "unknown", each.agent): getattr(each, field) for each in now.conduct}
        yield counter(name, help_text, ["client", "agent"], counts)
    bounds = nlargest(MAX_TENANTS, now.bounds, key=lambda each: each.used)
    used = {(view.bound, view.tenant): view.used for view in bounds}
    yield gauge("bound_used_ratio", "Used share of a bound of a day or month", ["bound", "tenant"], used)


_OF_CLIENTS: Final = (
    ("changed_prompts", "Prompts with an early change since the previous turn", "changed"),
    (
        "changed_prompt_tokens",
        "Prompt tokens computed again because of an early change of a prompt",
        "again_tokens",
    ),
    ("unlinked_turns", "Turns after an answer, without proof of their session", "unlinked"),
)
_OF_REPLICAS: Final = (
    ("replica_up", "1 if the replica is healthy", "is_up"),
    ("replica_running", "Requests on a replica", "running"),
    ("replica_sessions", "Sessions with their state on a replica", "sessions"),
    ("engine_waiting", "Requests in the engine's own queue", "engine_waiting"),
    ("engine_kv_used_ratio", "Share of the KV cache held by running requests", "kv_used"),
    ("engine_kv_retained_ratio", "Share of the KV cache retained for paused sessions", "kv_retained"),
    ("engine_kv_tokens", "Capacity of the KV cache on the device, in tokens", "kv_tokens"),
)
# Name, what it is, and the field of the view.
_OF_POOLS: Final = (
    ("window_sessions", "Most admitted sessions; absent without a limit", "window"),
    (
        "kv_budget_tokens",
        "Most expected KV tokens of the admitted sessions; absent without a limit",
        "kv_budget",
    ),
    ("admitted_sessions", "Admitted sessions", "admitted"),
    ("waiting_sessions", "Sessions that wait for admission", "waiting"),
    ("kv_demand_tokens", "Highest expected KV tokens of the admitted sessions", "demand"),
    ("kv_held_tokens", "KV tokens that the admitted sessions hold now, as engines report them", "held"),
    ("gpu_pressure_ratio", "Pressure on the engines; overload from 1 on", "gpu_pressure"),
    ("cpu_pressure_ratio", "Pressure on the hosts of the tools; overload from 1 on", "cpu_pressure"),
)


def _of_each(
    label: str, views: Sequence[ReplicaView | PoolView], gauges: Iterable[tuple[str, str, str]]
) -> Iterator[Metric]:
    for name, help_text, field in gauges:
        values = {view.id: value for view in views if (value := getattr(view, field)) is not None}
        yield gauge(name, help_text, [label], values)


def _tenants(tenants: Iterable[TenantView]) -> Iterator[Metric]:
    admitted, waiting = Counter[tuple[str, str]](), Counter[tuple[str, str]]()
    for number, view in enumerate(tenants):
        labels = view.pool, view.id if number < MAX_TENANTS else _OTHERS
        admitted[labels] += view.admitted
        waiting[labels] += view.waiting
    yield gauge("tenant_admitted_sessions", "Admitted sessions of a tenant", ["pool", "tenant"], admitted)
    what = "Sessions of a tenant that wait for admission"
    yield gauge("tenant_waiting_sessions", what, ["pool", "tenant"], waiting)
