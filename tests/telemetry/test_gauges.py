"""Gauges: how things are, with a bounded number of labels."""

from gateway.core.pool_views import PoolView, TenantView
from gateway.core.snapshot import Gauges, ReplicaView
from gateway.domain.ids import PoolId, ReplicaId, TenantId
from gateway.telemetry.gauges import MAX_TENANTS, gauge_families

REPLICA = ReplicaView(
    id=ReplicaId("r0"), pool=PoolId("p"), is_up=True, running=2, kv_used=0.25, sessions=3,
    engine="vllm", version="0.30", models=("m",),
)  # fmt: skip
POOL = PoolView(
    id=PoolId("p"), window=None, kv_budget=900.0, admitted=4, waiting=1, demand=800.0, held=500.0,
    gpu_pressure=0.5, cpu_pressure=0.0,
)  # fmt: skip


def tenant(number: int) -> TenantView:
    name = TenantId(f"t{number}")
    return TenantView(
        id=name, pool=PoolId("p"), weight=1.0, entitlement=1.0, admitted=2, lately=2.5, waiting=1
    )


def told(**more) -> dict[tuple[str, ...], float]:
    now = Gauges(at_s=1.0, session_count=3, running=2, waiting=1, active_tools=1, **more)
    return {
        (sample.name, *sample.labels.values()): sample.value
        for family in gauge_families(now)
        for sample in family.samples
    }


def test_how_things_are():
    seen = told(replicas=(REPLICA,), pools=(POOL,), tenants=(tenant(1),), waiting_by={"reactive": 1})
    assert seen["turnpike_sessions",] == 3 and seen["turnpike_tools_active",] == 1
    assert seen["turnpike_waiting_by_class", "reactive"] == 1
    assert seen["turnpike_replica_up", "r0"] == 1.0 and seen["turnpike_replica_sessions", "r0"] == 3
    assert seen["turnpike_engine_kv_used_ratio", "r0"] == 0.25
    assert ("turnpike_engine_waiting", "r0") not in seen, "it does not say"
    assert seen["turnpike_kv_budget_tokens", "p"] == 900.0 and ("turnpike_window_sessions", "p") not in seen
    assert seen["turnpike_gpu_pressure_ratio", "p"] == 0.5 and seen["turnpike_kv_held_tokens", "p"] == 500.0
    assert seen["turnpike_tenant_admitted_sessions", "p", "t1"] == 2


def test_tenants_beyond_a_number_are_counted_together():
    seen = told(tenants=tuple(tenant(number) for number in range(MAX_TENANTS + 7)))
    admitted = {key: value for key, value in seen.items() if key[0] == "turnpike_tenant_admitted_sessions"}
    assert len(admitted) == MAX_TENANTS + 1
    assert admitted["turnpike_tenant_admitted_sessions", "p", "other tenants"] == 14
