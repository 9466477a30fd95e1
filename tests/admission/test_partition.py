"""What part of a pool is whose, of several gateways."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.admission.partition import LEAST, MOST_TOLD, max_min, part_of
from gateway.domain.ids import TenantId
from gateway.domain.shares import PoolShare
from tests.admission.applicants import POOL, Play

A, B, C = TenantId("a"), TenantId("b"), TenantId("c")


def said(tokens: float = 0.0, waiting: int = 0, **asked: float) -> PoolShare:
    """What is held is half of what is asked for, where somebody waits."""
    share = 0.5 if waiting else 1.0
    mapped = {TenantId(tenant): sessions for tenant, sessions in asked.items()}
    held = {tenant: share * sessions for tenant, sessions in mapped.items()}
    return PoolShare(demand_tokens=tokens, waiting=waiting, held=held, asked=mapped)


def parts(*shares: PoolShare, capacity: float | None = 1000.0, **weights: float) -> list[float]:
    mapped = {TenantId(tenant): weight for tenant, weight in weights.items()}
    return [
        part_of(own, [*shares[:at], *shares[at + 1 :]], capacity=capacity, weights=mapped)
        for at, own in enumerate(shares)
    ]


def test_with_nobody_else_all_of_the_pool_is_ours():
    assert parts(said(500, a=3)) == [1.0]


def test_what_is_free_is_shared_alike_while_nobody_waits():
    assert parts(said(500, a=3), said(100, a=1)) == pytest.approx([0.7, 0.3])
    assert parts(said(), said()) == [0.5, 0.5]
    assert parts(said(), said(), capacity=None) == [0.5, 0.5], "of what nobody knows, too"
    assert parts(said(1500, a=3), said(500, a=1)) == pytest.approx([0.75, 0.25]), "nothing is free"


def test_where_somebody_waits_the_pool_goes_to_tenants_alike():
    first, second = said(500, 90, a=100), said(500, 2, b=20)
    # 60 places are held: b asks for 20, and gets them; a gets the rest.
    assert parts(first, second) == pytest.approx([40 / 60, 20 / 60])
    assert parts(first, second, a=1.0, b=0.2) == pytest.approx([50 / 60, 10 / 60])


def test_a_tenant_at_two_gateways_is_one_tenant():
    both = parts(said(0, 10, a=40), said(0, 10, a=40), said(0, 10, b=40))
    assert both == pytest.approx([0.25, 0.25, 0.5])


def test_nobody_is_left_with_nothing():
    assert parts(said(0, 9, a=100), said())[1] == LEAST


asked = st.dictionaries(st.sampled_from("abcdef"), st.floats(0.5, 100), max_size=4)


@given(st.lists(st.tuples(asked, st.integers(0, 5), st.floats(0, 900)), min_size=2, max_size=5))
def test_all_parts_make_one_pool(gateways):
    shares = [said(tokens, waiting, **each) for each, waiting, tokens in gateways]
    found = parts(*shares)
    assert sum(found) == pytest.approx(1.0, abs=2 * LEAST * len(found))


@given(asked, st.floats(0, 300))
def test_nobody_gets_more_than_it_asks_for_nor_less_than_another_who_asks_for_more(wants, there):
    mapped = {TenantId(tenant): sessions for tenant, sessions in wants.items()}
    given_ = max_min(mapped, there, {})
    assert sum(given_.values()) == pytest.approx(min(there, sum(wants.values())))
    for tenant, sessions in given_.items():
        assert sessions <= mapped[tenant] + 1e-9
        if sessions < mapped[tenant] - 1e-9:
            assert all(sessions >= other - 1e-6 for other in given_.values())


def test_gateways_are_told_of_a_bounded_number_of_tenants_and_of_all_their_sessions():
    play = Play().has(kv_tokens=10_000)
    for number in range(MOST_TOLD + 50):
        play.ask(f"s{number}", tenant=TenantId(f"t{number:03}"))
    for number in range(3):
        play.ask(f"more-{number}", tenant=TenantId("t299"))
    fair = play.policy.pools[POOL].fair
    for number in range(MOST_TOLD + 50):
        fair.hold(TenantId(f"t{number:03}"), 1.0)
    held = sum(fair.held(tenant) for tenant in fair.holders)
    share = play.policy.pools[POOL].share()
    assert len(share.asked) == MOST_TOLD + 1 and len(share.held) <= MOST_TOLD + 1
    assert share.asked[TenantId("t299")] == 1 + 4, "who has a place asks for it, too"
    assert sum(share.asked.values()) == pytest.approx(2 * (MOST_TOLD + 50) + 3)
    assert share.waiting > 0
    assert held > MOST_TOLD and sum(share.held.values()) == pytest.approx(held)
