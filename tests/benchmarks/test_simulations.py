"""Where knees are found, and runs that are kept."""

import msgspec
import pytest
from benchmarks.simulations.kept import Kept
from benchmarks.simulations.played import Game

from benchmarks.simulations import kept
from lab.simulator.experiment.knee import BEHIND, SATURATED, Slow, find_knee
from lab.simulator.fleet import FleetSpec, ReplicaGroup


@pytest.mark.parametrize("true_knee", [3.0, 60.0, 64.0, 900.0])
def test_a_knee_is_found_from_any_guess(true_knee):
    knee, tried = find_knee(lambda load: 2.0 * (load / true_knee) ** 4, 64.0, at_most=2.0)
    assert knee == pytest.approx(true_knee, rel=0.1)
    assert len(tried) <= 11


def test_a_knee_that_is_nowhere_ends_the_search():
    knee, tried = find_knee(lambda load: 1.0, 10.0)
    assert knee >= max(tried)
    assert len(tried) <= 10


def test_the_knee_is_where_memory_costs_or_else_where_processors_are_full():
    assert Slow(stock=1.2, unlimited=1.1).measure < 1
    assert Slow(stock=BEHIND * 1.1, unlimited=1.1).measure == pytest.approx(1.0)
    assert Slow(stock=SATURATED, unlimited=SATURATED).measure == pytest.approx(1.0)


GAME = Game(name="g", fleet=FleetSpec(replicas=(ReplicaGroup(profile="x"),)), count=3, told=())


def test_runs_that_are_over_are_found_again(tmp_path):
    path = tmp_path / "runs"
    first = Kept(path)
    first.put("p", GAME, 1, {"s": 1.5})
    first.put("p", GAME, 2, {"s": 2.5})
    with path.open("ab") as file:
        file.write(b'{"run": "cut o')
    again = Kept(path)
    assert [again.get("p", GAME, seed) for seed in (1, 2, 3)] == [{"s": 1.5}, {"s": 2.5}, None]


def test_runs_of_another_policy_game_or_source_are_none_of_these(tmp_path, monkeypatch):
    path = tmp_path / "runs"
    Kept(path).put("p", GAME, 1, {"s": 1.5})
    assert Kept(path).get("q", GAME, 1) is None
    assert Kept(path).get("p", msgspec.structs.replace(GAME, per_h=7.0), 1) is None
    monkeypatch.setattr(kept, "_sources", lambda: "others")
    assert Kept(path).get("p", GAME, 1) is None


def test_without_a_file_they_are_kept_for_as_long_as_it_runs():
    runs = Kept(None)
    runs.put("p", GAME, 1, {"s": 1.5})
    assert runs.get("p", GAME, 1) == {"s": 1.5}
