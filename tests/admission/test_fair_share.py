"""Which tenant is next."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.admission.fair_share import FairShare, FairShareConfig, urgency
from gateway.admission.packing import Entry
from gateway.domain.ids import TenantId
from tests.admission.applicants import entry

A, B = TenantId("a"), TenantId("b")
CONFIG = FairShareConfig(alpha=1.5, slack_floor=0.1)


def task(tenant=A, **fields) -> Entry:
    return entry(tenant=tenant, **{"gpu_s": 10.0, "isolated_s": 100.0, **fields})


def test_urgency_is_the_share_of_a_gpu_that_meets_the_deadline():
    assert urgency(CONFIG, task(), now=50.0) == pytest.approx(10 / 100)  # alpha × isolated = 150
    assert urgency(CONFIG, task(deadline_s=70.0), now=50.0) == pytest.approx(10 / 20)


def test_slack_has_a_floor():
    assert urgency(CONFIG, task(), now=149.0) == urgency(CONFIG, task(), now=9999.0) == pytest.approx(1.0)


def test_who_holds_least_is_next():
    fair = FairShare(CONFIG)
    fair.hold(A, 2.0)
    fair.hold(B, 1.0)
    assert fair.rank(B) < fair.rank(A)
    fair.hold(A, -2.0)
    assert fair.rank(A) < fair.rank(B)
    assert fair.held(A) == 0.0 and list(fair.holders) == [B]


def test_weights_and_urgency_count():
    fair = FairShare(CONFIG, {A: 4.0})
    fair.hold(A, 3.0)
    fair.hold(B, 1.0)
    assert fair.rank(A) < fair.rank(B)
    fair.refresh([task(B, gpu_s=100.0, deadline_s=1.0)], now=0.0)
    assert fair.entitlement(B) == 2.0 and fair.entitlement(A) == 4.0
    assert fair.rank(B) < fair.rank(A)


def test_who_asks_for_half_as_much_as_another_asks_for_much():
    fair = FairShare(CONFIG, {A: 2.0})
    fair.hold(B, 2.0)
    fair.wait(B, 8)
    fair.hold(A, 9.0)
    assert fair.asks_for_much(A) and fair.most_charged == 4.5 / 2, "nobody has looked yet"
    fair.pass_time(now=0.0)
    assert fair.asks_for_much(B) and not fair.asks_for_much(A), "4.5 of 10, for a weight of 1"
    assert fair.most_charged == 1.0, "of those who do"
    fair.wait(A, 1)
    assert fair.asks_for_much(A) and fair.most_charged == 4.5 / 2


def test_what_was_held_while_nobody_else_was_there_is_no_debt():
    fair = FairShare(CONFIG)
    fair.hold(A, 10.0)
    for now in range(0, 3600, 5):
        fair.pass_time(now=float(now))
    assert fair.held_lately(A) == 0.0
    fair.hold(A, -9.0)
    fair.hold(B, 5.0)
    assert not fair.holds_too_much(A) and fair.holds_too_much(B), "one to five"
    fair.hold(A, 9.0)
    for now in range(3600, 7200, 5):
        fair.pass_time(now=float(now))
    assert fair.held_lately(A) > 8.0, "it was in somebody's way"


def test_who_holds_a_session_more_than_its_share_holds_too_much():
    fair = FairShare(CONFIG, {B: 3.0})
    fair.hold(A, 9.0)
    assert not fair.holds_too_much(A), "nobody else is there"
    fair.wait(B, 1)
    assert fair.holds_too_much(A) and not fair.holds_too_much(B)
    fair.wait(B, -1)
    assert not fair.holds_too_much(A)
    fair.hold(A, -6.0)
    fair.hold(B, 5.0)
    assert fair.holds_too_much(A), "3 of 8, of which two are its share"
    fair.hold(B, 2.0)
    assert not fair.holds_too_much(A) and not fair.holds_too_much(B), "3 of 10: no whole session too much"


@given(st.integers(1, 400), st.floats(0.1, 1e6))
def test_many_urgent_tasks_double_an_entitlement_at_most(count, gpu_s):
    fair = FairShare(CONFIG)
    fair.refresh([task(A, gpu_s=gpu_s, deadline_s=0.0)] * count, now=0.0)
    assert 1.0 <= fair.entitlement(A) <= 2.0
    assert fair.entitlement(B) == 1.0


def test_who_opens_more_tasks_is_entitled_to_no_more():
    fair = FairShare(CONFIG)
    fair.refresh([task(A)] * 20 + [task(B)], now=50.0)
    assert fair.entitlement(A) == pytest.approx(fair.entitlement(B)) == pytest.approx(1.1)
    fair.refresh([task(A), task(B, deadline_s=51.0)], now=50.0)
    assert fair.entitlement(B) == 2.0 > fair.entitlement(A), "what counts is how urgent they are"


def test_an_epoch_looks_at_a_bounded_number_of_tasks():
    fair = FairShare(CONFIG)
    tasks = iter([task(A)] * 1000)
    fair.refresh(tasks, now=0.0)
    assert len(list(tasks)) == 1000 - 256


def test_a_session_is_held_back_only_where_that_is_fair():
    fair = FairShare(CONFIG)
    fair.hold(A, 3.0)
    assert fair.should_yield(B, 1.0, A, 1.0)  # 3:0 becomes 2:1
    fair.hold(A, -1.0)
    assert fair.should_yield(B, 1.0, A, 1.0)  # 2:0 becomes 1:1
    fair.hold(A, -1.0)
    assert not fair.should_yield(B, 1.0, A, 1.0)  # 1:0 would become 0:1
    assert not fair.should_yield(A, 1.0, A, 1.0)
