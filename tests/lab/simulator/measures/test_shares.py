"""Goodput, fairness, promises to tenants: what is in time, and for whom."""

import pytest

from lab.simulator.measures.fairness import Jain
from lab.simulator.measures.goodput import Goodput
from lab.simulator.measures.tenants import Tenants
from tests.lab.simulator.measures.outcomes import session


def test_goodput_counts_what_is_in_time_for_each_slack():
    goodput = Goodput()
    for taken_s in (10.0, 15.0, 16.0, 20.0, 39.0, 41.0):  # alone: 10 s
        goodput.add(taken_s, 10.0, failed=False)
    goodput.add(10.0, 10.0, failed=True)
    assert goodput.share(1.5) == pytest.approx(2 / 7)
    assert goodput.share(2.0) == pytest.approx(4 / 7)
    assert goodput.share(4.0) == pytest.approx(5 / 7)
    assert goodput.rate_per_h(2.0, window_s=1800.0) == 8.0  # 4 in half an hour


@pytest.mark.parametrize(
    ("shares", "index"),
    [([1, 1, 1, 1], 1.0), ([1, 0, 0, 0], 0.25), ([1, 2, 3], 36 / 42), ([0, 0], 1.0)],
)
def test_jain(shares, index):
    jain = Jain()
    assert jain.index is None
    for share in shares:
        jain.add(share)
    assert jain.index == pytest.approx(index)


def test_tenants_are_promised_their_deadline_or_twice_what_it_takes_alone():
    tenants = Tenants()
    tenants.session_done(session("a", tenant="x", end_s=19.0, isolated_s=10.0))  # kept: 19 ≤ 2 × 10
    tenants.session_done(session("b", tenant="x", end_s=19.0, isolated_s=10.0, deadline_s=18.0))  # broken
    tenants.session_done(session("c", tenant="y", arrival_s=5.0, end_s=9.0, isolated_s=1.0, deadline_s=4.0))
    tenants.session_done(session("d", tenant="y", end_s=1.0, isolated_s=9.0, failed=True))  # broken
    kept = {name: (tenant.sessions, tenant.kept) for name, tenant in tenants}
    assert kept == {"x": (2, 1), "y": (2, 1)}
    assert tenants.kept == 0.5
    # Progress: x 10/19 twice, y 1/4 and nothing.
    assert tenants.jain_tenants == pytest.approx(
        (10 / 19 + 1 / 8) ** 2 / (2 * ((10 / 19) ** 2 + (1 / 8) ** 2))
    )
    four = [10 / 19, 10 / 19, 1 / 4, 0]
    assert tenants.jain_sessions == pytest.approx(sum(four) ** 2 / (4 * sum(x * x for x in four)))
