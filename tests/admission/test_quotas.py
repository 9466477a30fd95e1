"""Quotas, and when to come back."""

from hypothesis import given
from hypothesis import strategies as st

from gateway.admission.quotas import Quota, Quotas, retry_after_s
from gateway.domain.ids import TenantId

T, U = TenantId("t"), TenantId("u")


def test_tokens_come_back_over_the_minute():
    quotas = Quotas({T: Quota(tokens_per_minute=600)})
    assert quotas
    assert quotas.charge(T, 400, now=0.0) == 0.0
    assert quotas.charge(T, 300, now=0.0) == 10.0  # 100 are missing, 10 come a second
    assert quotas.charge(T, 300, now=10.0) == 0.0
    assert quotas.charge(U, 1e9, now=0.0) == 0.0


def test_what_was_not_used_is_given_back_and_more_is_taken():
    quotas = Quotas({T: Quota(tokens_per_minute=600)})
    quotas.charge(T, 600, now=0.0)
    quotas.correct(T, 600, 100, now=0.0)
    assert quotas.charge(T, 500, now=0.0) == 0.0
    quotas.correct(T, 500, 800, now=0.0)
    assert quotas.charge(T, 0, now=0.0) == 30.0  # 300 in debt
    quotas.correct(T, 0, -9999, now=0.0)
    assert quotas.charge(T, 601, now=0.0) == 0.0  # never more than a minute's
    quotas.correct(U, 1, 2, now=0.0)


def test_one_that_costs_more_than_a_minute_waits_for_a_full_bucket():
    quotas = Quotas({T: Quota(tokens_per_minute=600)})
    assert quotas.charge(T, 6000, now=0.0) == 0.0
    assert quotas.charge(T, 6000, now=0.0) == 600.0
    assert quotas.charge(T, 6000, now=600.0) == 0.0


@given(st.lists(st.tuples(st.floats(0, 30), st.floats(0, 2000)), max_size=50))
def test_nobody_gets_more_than_the_quota(steps):
    quotas = Quotas({T: Quota(tokens_per_minute=600)})
    now = used = 0.0
    for pause_s, tokens in steps:
        now += pause_s
        if quotas.charge(T, min(tokens, 600), now=now) == 0.0:
            used += min(tokens, 600)
        assert used <= 600 + now * 10 + 1e-6


@given(st.floats(-5, 100), st.integers(0, 1000))
def test_times_to_come_back_are_distinct_and_bounded(wait_s, number):
    first = retry_after_s(wait_s, number)
    assert 1 <= first <= 30 and (first >= wait_s or first == 30)
    assert wait_s > 28 or retry_after_s(wait_s, number + 1) != first
