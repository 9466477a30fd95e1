"""Composition: flows by their shares, ids of their own, chance that does not spread."""

from collections import Counter

import pytest

from lab.workload.trace.composition import Arrival, Flow, compose
from lab.workload.trace.format import ServiceClass
from lab.workload.trace.populations import Recorded
from tests.lab.workload.trace.made import session

SESSIONS = [session(str(n), tenant="old", service_class=ServiceClass.PROACTIVE) for n in range(5)]


def _flow(tenant, replace=True, **more):
    return Flow(tenant=tenant, population=Recorded(SESSIONS, replace=replace), **more)


def _composed(flows, count=2000, seed=1):
    return list(compose([Arrival(float(n)) for n in range(count)], flows, seed=seed))


def test_flows_come_by_their_shares():
    made = _composed([_flow("a", share=3), _flow("b")])
    assert Counter(s.tenant for s in made)["a"] / len(made) == pytest.approx(0.75, abs=0.03)
    assert len({s.id for s in made}) == len(made)
    assert [s.arrival_s for s in made] == [float(n) for n in range(2000)]


def test_classes_are_the_flows_or_the_sessions():
    made = _composed([_flow("a", service_class=ServiceClass.REACTIVE), _flow("b")])
    assert {(s.tenant, s.service_class) for s in made} == {
        ("a", ServiceClass.REACTIVE),
        ("b", ServiceClass.PROACTIVE),
    }


def test_chance_does_not_spread():
    """A flow's sessions stay the same whatever another flow's population is."""
    one = _composed([_flow("a"), _flow("b")])
    two = _composed([_flow("a"), Flow(tenant="b", population=Recorded(SESSIONS[:1], replace=True))])
    assert [s for s in one if s.tenant == "a"] == [s for s in two if s.tenant == "a"]
    assert one == _composed([_flow("a"), _flow("b")]) != _composed([_flow("a"), _flow("b")], seed=2)
