"""When sessions arrive."""

from itertools import islice, pairwise
from random import Random

import pytest

from lab.workload.trace.arrivals import poisson, recorded
from lab.workload.trace.composition import Arrival
from tests.lab.workload.trace.made import session


def test_a_poisson_process_has_its_rate():
    times = [arrival.at_s for arrival in islice(poisson(3600, Random(1)), 5000)]
    assert times == sorted(times)
    assert times[-1] == pytest.approx(5000, rel=0.05)
    gaps = [later - earlier for earlier, later in pairwise(times)]
    assert sum(gap > 1 for gap in gaps) / len(gaps) == pytest.approx(0.368, abs=0.03)


KNOWN = [session("a", arrival_s=10.0, tenant="x"), session("b", arrival_s=11.0), session("c", arrival_s=20.0)]


def test_recorded_arrivals_begin_at_0():
    assert list(recorded(KNOWN, per_hour=None, with_tenants=False)) == [
        Arrival(0.0),
        Arrival(1.0),
        Arrival(10.0),
    ]
    tenants = [arrival.tenant for arrival in recorded(KNOWN, per_hour=None, with_tenants=True)]
    assert tenants == ["x", "default", "default"]


def test_their_rate_can_be_changed_and_their_shape_stays():
    times = [arrival.at_s for arrival in recorded(KNOWN, per_hour=72, with_tenants=False)]
    assert times == pytest.approx([0, 10, 100])
    with pytest.raises(ValueError, match="no rate to change"):
        list(recorded([session("a"), session("b")], per_hour=72, with_tenants=False))
    assert list(recorded([], per_hour=72, with_tenants=False)) == []
