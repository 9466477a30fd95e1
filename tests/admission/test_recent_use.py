"""What each tenant held lately."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.admission import recent_use
from gateway.admission.fair_share import FairShare, FairShareConfig
from gateway.admission.recent_use import LATELY_S, RecentUse
from gateway.domain.ids import TenantId

A, B = TenantId("a"), TenantId("b")


def after(seconds, held, recent=None, since_s=0.0) -> RecentUse:
    recent = recent or RecentUse()
    for second in range(int(seconds) + 1):
        recent.pass_time(held, now=since_s + second)
    return recent


def test_it_follows_what_is_held():
    assert RecentUse().of(A) == 0.0
    assert after(LATELY_S, {A: 10.0}).of(A) == pytest.approx(10.0 * (1 - 1 / math.e), rel=0.01)
    assert after(8 * LATELY_S, {A: 10.0}).of(A) == pytest.approx(10.0, rel=0.01)


def test_it_fades_and_is_forgotten():
    recent = after(LATELY_S, {A: 10.0})
    before = recent.of(A)
    after(LATELY_S, {}, recent, since_s=LATELY_S)
    assert recent.of(A) == pytest.approx(before / math.e, rel=0.01)
    after(8 * LATELY_S, {}, recent, since_s=2 * LATELY_S)
    assert recent.of(A) == 0.0 and len(recent) == 0


def test_of_too_many_tenants_those_that_held_most_are_remembered(monkeypatch):
    monkeypatch.setattr(recent_use, "_REMEMBERED", 3)
    recent = after(600, {TenantId(f"t{number}"): float(number) for number in range(1, 9)})
    assert len(recent) == 3 and recent.of(TenantId("t8")) > recent.of(TenantId("t6")) > 0.0
    assert recent.of(TenantId("t5")) == 0.0


@given(st.lists(st.tuples(st.floats(0.1, 5_000.0), st.floats(0.0, 50.0)), max_size=50))
def test_it_is_never_more_than_was_held(steps):
    recent, now, most = RecentUse(), 0.0, 0.0
    for passed_s, held in steps:
        now += passed_s
        most = max(most, held)
        recent.pass_time({A: held}, now=now)
        assert 0.0 <= recent.of(A) <= most + 1e-9


def fair_after(flood_s) -> FairShare:
    """A has held ten sessions for so long, while B waited, and both hold three now."""
    fair = FairShare(FairShareConfig())
    fair.wait(B, 1)
    fair.hold(A, 10.0)
    for second in range(flood_s + 1):
        fair.pass_time(now=float(second))
    fair.hold(A, -7.0)
    fair.hold(B, 3.0)
    fair.wait(B, -1)
    return fair


def test_who_left_more_to_others_lately_is_next():
    fair = fair_after(0)
    assert fair.rank(A) == fair.rank(B)
    fair = fair_after(3_600)
    assert fair.rank(B) < fair.rank(A)
    assert fair.holds_too_much(A) and not fair.holds_too_much(B)
    assert fair.should_yield(B, 1.0, A, 1.0) and not fair.should_yield(A, 1.0, B, 1.0)
    for second in range(3_600, 3_600 + 5 * int(LATELY_S)):
        fair.pass_time(now=float(second))
    assert fair.charge(A) == pytest.approx(fair.charge(B), rel=0.05), "it is forgiven"


def test_the_share_is_that_of_those_who_are_there():
    fair = fair_after(3_600)
    charged = fair.charge(A) + fair.charge(B)
    assert fair.share == pytest.approx(charged / 2)
    fair.hold(B, -3.0)
    assert fair.share == pytest.approx(fair.charge(A))
    fair.wait(B, 1)
    assert fair.share == pytest.approx(fair.charge(A) / 2)
    fair.hold(A, -3.0)
    assert fair.share == 0.0, "what was held lately counts for those who are there"
    fair.wait(A, 1)
    assert fair.share == pytest.approx(fair.charge(A) / 2) and fair.charge(A) > 0.0
    fair.wait(A, -1)
    fair.wait(B, -1)
    assert fair.share == 0.0
