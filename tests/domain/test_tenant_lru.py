"""The shared bounded map, beside a naive one."""

from heapq import heapreplace

from hypothesis import given
from hypothesis import strategies as st

from gateway.domain import tenant_lru as module
from gateway.domain.tenant_lru import TenantLru

TENANTS, KEYS = st.sampled_from("abc"), st.integers(0, 5)
STEPS = st.one_of(
    st.tuples(st.just("put"), TENANTS, KEYS, st.integers(0, 4)),
    st.tuples(st.sampled_from(["get", "pop"]), TENANTS, KEYS, st.just(0)),
)


class Naive:
    """One list, the longest unseen first."""

    def __init__(self, most: int) -> None:
        self.most = most
        self.entries: list[tuple[str, int, int, int]] = []

    def find(self, tenant: str, key: int) -> tuple[str, int, int, int] | None:
        return next((each for each in self.entries if each[:2] == (tenant, key)), None)

    def put(self, tenant: str, key: int, value: int, weight: int) -> list[tuple[str, int, int]]:
        if (found := self.find(tenant, key)) is not None:
            self.entries.remove(found)
        self.entries.append((tenant, key, value, weight))
        dropped = []
        while sum(each[3] for each in self.entries) > self.most:
            held = {tenant: sum(e[3] for e in self.entries if e[0] == tenant) for tenant, *_ in self.entries}
            oldest = next(each for each in self.entries if held[each[0]] == max(held.values()))
            self.entries.remove(oldest)
            dropped.append(oldest[:3])
        return dropped


@given(st.integers(0, 12), st.lists(STEPS, max_size=150))
def test_it_does_what_the_naive_one_does(most, steps):
    lru: TenantLru[str, int, int] = TenantLru(most)
    naive = Naive(most)
    for value, (what, tenant, key, weight) in enumerate(steps):
        found = naive.find(tenant, key)
        expected = found[2] if found is not None else None
        match what:
            case "put":
                assert lru.put(tenant, key, value, weight) == naive.put(tenant, key, value, weight)
            case "get":
                assert lru.get(tenant, key) == expected
                if found is not None:
                    naive.entries.remove(found)
                    naive.entries.append(found)
            case _:
                assert lru.pop(tenant, key) == expected
                if found is not None:
                    naive.entries.remove(found)
        assert len(lru) == len(naive.entries)
        assert lru.weight == sum(each[3] for each in naive.entries) <= most
        assert sorted(lru.items()) == sorted(each[:3] for each in naive.entries)


def test_whoever_holds_most_loses_its_own():
    lru: TenantLru[str, int, str] = TenantLru(10)
    lru.put("quiet", 0, "kept")
    for number in range(1000):
        assert all(tenant == "loud" for tenant, _, _ in lru.put("loud", number, "x"))
    assert lru.get("quiet", 0) == "kept" and len(lru) == 10


def test_nothing_is_kept_of_those_who_hold_nothing():
    lru: TenantLru[int, int, int] = TenantLru(4)
    for number in range(10_000):
        lru.put(number, 0, number)
        lru.put(number, 0, number)
    assert [tenant for tenant, _, _ in lru.items()] == [9996, 9997, 9998, 9999]
    assert len(lru._held) == 4 and len(lru._marks) <= 2 * 4 + 65


def test_a_full_one_of_one_tenant_takes_few_steps(monkeypatch):
    steps = 0

    def replace(heap, item):
        nonlocal steps
        steps += 1
        return heapreplace(heap, item)

    monkeypatch.setattr(module, "heapreplace", replace)
    lru: TenantLru[str, int, int] = TenantLru(100)
    for number in range(1100):
        lru.put("t", number, number)
    assert steps <= 2000
