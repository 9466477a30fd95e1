"""What was learned, tenant by tenant."""

from gateway.domain.ids import TenantId
from gateway.tool_probe.durations import DurationsConfig
from gateway.workflow.learned import LearnedByTenant

ONE, OTHER = TenantId("one"), TenantId("other")


def learned(max_tenants: int = 2, max_tools: int = 100) -> LearnedByTenant:
    return LearnedByTenant(DurationsConfig(max_tools=max_tools), max_tenants=max_tenants)


def test_who_has_most_tools_loses_its_own_first():
    known = learned(max_tools=10)
    for _ in range(50):
        known.of(ONE).durations.add(7, ["build"], 60.0)
    for number in range(100):
        known.of(OTHER).durations.add(7, [f"tool-{number}"], 1.0)
    assert known.of(ONE).durations.of(7, "build").calls == 50


def test_tenants_are_bounded():
    known = learned(max_tenants=2)
    kept = known.of(ONE)
    for number in range(10):
        assert known.of(ONE) is kept
        known.of(TenantId(str(number)))
    assert len(known) == 2
