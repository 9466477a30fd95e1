"""Nobody has more of the store than its part, for however long it asks."""

import pytest

from gateway.domain.ids import TenantId
from gateway.shared_state import allowances as module
from gateway.shared_state.allowances import Allowances

GREEDY, MODEST = TenantId("greedy"), TenantId("modest")
MOST, STAYS_S = 1000.0, 100.0


class Clock:
    now_s = 0.0

    def __call__(self) -> float:
        return self.now_s


@pytest.mark.parametrize("ttl_s", [STAYS_S, 24 * STAYS_S])
def test_of_a_tenant_twice_its_part_stands_at_most_and_its_part_on_the_whole(ttl_s):
    clock = Clock()
    allowances = Allowances(MOST, stays_s=STAYS_S, now=clock)
    written: list[tuple[float, float]] = []
    stood = []
    for step in range(10_000):
        clock.now_s = step / 2
        if allowances.take(GREEDY, 10.0 * ttl_s):
            written.append((clock.now_s, 10.0))
        if step % 50 == 0:
            stood.append(sum(size for at_s, size in written if at_s > clock.now_s - ttl_s))
    assert max(stood) <= 2 * MOST
    assert min(stood[100:]) >= 0.9 * MOST


def test_what_one_takes_is_nothing_to_another():
    allowances = Allowances(MOST, stays_s=STAYS_S, now=Clock())
    assert allowances.take(GREEDY, MOST * STAYS_S) and not allowances.take(GREEDY, 1.0)
    assert allowances.take(MODEST, MOST * STAYS_S)


def test_tenants_are_bounded(monkeypatch):
    monkeypatch.setattr(module, "_MAX_TENANTS", 10)
    allowances = Allowances(MOST, stays_s=STAYS_S, now=Clock())
    for number in range(100):
        assert allowances.take(TenantId(f"t-{number}"), 1.0)
    assert len(allowances._left) == 10
