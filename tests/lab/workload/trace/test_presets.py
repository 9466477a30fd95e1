"""The papers' mixes: who comes how often, with what."""

import statistics
from collections import Counter

import pytest

from lab.workload.trace.composition import Arrival, compose
from lab.workload.trace.format import check
from lab.workload.trace.presets import PRESETS
from tests.lab.workload.trace.made import session


def _composed(name, sessions=None, count=600):
    flows = PRESETS[name].flows(sessions, 1)
    made = list(compose([Arrival(float(n)) for n in range(count)], flows, seed=1))
    for one in made:
        check(one)
    return made


RECORDED = [session(str(n), *range(100, 100 + 10 * (n + 1), 10)) for n in range(9)]


@pytest.mark.parametrize("recorded", [None, RECORDED])
def test_sagas_tenants(recorded):
    made = _composed("saga-tenants", recorded)
    counts = Counter(s.tenant for s in made)
    assert len(counts) == 10
    assert counts["heavy-1"] / len(made) == pytest.approx(16 / 92, abs=0.04)
    turns = {
        name: statistics.mean(s.turns for s in made if s.tenant.startswith(name))
        for name in ("heavy", "medium", "light")
    }
    expected = (100, 30, 10) if recorded is None else (8, 5, 2)
    assert list(turns.values()) == pytest.approx(expected, rel=0.1)
    assert PRESETS["saga-tenants"].per_hour == 92 * 60


@pytest.mark.parametrize("recorded", [None, RECORDED])
def test_agent_xpus_classes(recorded):
    counts = Counter((s.tenant, s.service_class.value) for s in _composed("agent-xpu", recorded))
    assert set(counts) == {("person", "reactive"), ("background", "proactive")}
    assert counts["background", "proactive"] / 600 == pytest.approx(2 / 3, abs=0.05)
