"""Where sessions come from: once each, again and again, or with a given mean."""

import statistics
from collections import Counter
from random import Random

import pytest

from lab.workload.trace.populations import Recorded, Tilted
from tests.lab.workload.trace.made import session

SESSIONS = [session(str(n), 100 * (n + 1)) for n in range(10)]


def _drawn(population, count, seed=1):
    rng = Random(seed)
    return [population.draw(rng) for _ in range(count)]


def test_each_recorded_session_once_in_an_order_of_chance():
    drawn = _drawn(Recorded(SESSIONS, replace=False), 11)
    assert drawn.pop() is None
    assert sorted(drawn, key=lambda s: s.id) == SESSIONS != drawn
    assert drawn == _drawn(Recorded(SESSIONS, replace=False), 10)


def test_with_replacement_there_is_no_end():
    counts = Counter(s.id for s in _drawn(Recorded(SESSIONS, replace=True), 1000))
    assert len(counts) == 10
    assert max(counts.values()) < 150
    assert _drawn(Recorded([], replace=True), 1) == [None]


@pytest.mark.parametrize("mean", [250, 550, 900])
def test_a_mean_can_be_asked_for(mean):
    def prompt(made):
        return made.threads[0].turns[0].input_tokens

    drawn = _drawn(Tilted(SESSIONS, prompt, mean), 5000)
    assert statistics.mean(map(prompt, drawn)) == pytest.approx(mean, rel=0.05)
    assert len({s.id for s in drawn}) == 10


@pytest.mark.parametrize("mean", [100, 1000, 5000])
def test_but_not_one_that_no_choice_has(mean):
    with pytest.raises(ValueError, match=f"no choice of these sessions has a mean of {mean}"):
        Tilted(SESSIONS, lambda made: made.peak_tokens - 10, mean)
    with pytest.raises(ValueError, match="no choice"):
        Tilted([], lambda made: 1, mean)
