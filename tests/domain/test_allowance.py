"""So many at once, so many a second, and none saved up beyond that."""

from gateway.domain.allowance import Allowance


def test_what_is_granted():
    allowed = Allowance(per_s=10.0, burst=3.0)
    assert [allowed.take(now=0.0) for _ in range(5)] == [True, True, True, False, False]
    assert not allowed.take(now=0.05)
    assert allowed.take(now=0.1) and not allowed.take(now=0.1)
    assert sum(allowed.take(now=100.0) for _ in range(10)) == 3


def test_time_that_stands_still_or_goes_back_grants_nothing():
    allowed = Allowance(per_s=1000.0, burst=1.0)
    assert allowed.take(now=5.0)
    assert not allowed.take(now=5.0) and not allowed.take(now=4.0) and not allowed.take(now=5.0)
