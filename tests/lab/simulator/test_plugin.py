"""Simulated engines that carry the plugin: hints reach it, it acts on them, and holds nothing at the end."""

from typing import Any

import pytest
from msgspec.structs import replace

from gateway.admission.session_admission import SessionAdmission
from lab.simulator import run
from lab.simulator.baselines.spec import parse_policies
from lab.simulator.engine import build_engines
from lab.simulator.engine.options import EngineOptions
from lab.simulator.errors import SimulatorError
from lab.simulator.fleet import FleetSpec, ReplicaGroup
from tests.lab.simulator.test_host_tier import fixed
from tests.lab.simulator.test_run import OPTIONS, fleet, play
from tests.lab.simulator.worlds import IMPORTS_VLLM, sessions

pytestmark = IMPORTS_VLLM

PLUGGED = replace(OPTIONS, plugin={})


@pytest.fixture
def engines(monkeypatch):
    built: list[Any] = []

    def listening(*args: Any, **settings: Any) -> Any:
        built.extend(found := build_engines(*args, **settings))
        return found

    monkeypatch.setattr(run, "build_engines", listening)
    return built


def counted(engines: list[Any], group: str, name: str) -> int:
    found = [each.plugin.counters()[group] for each in engines if each.plugin is not None]
    return sum(counters.get(name, 0) for counters in found)


def test_hints_reach_engines_and_are_followed(engines):
    world = sessions(30, every_s=0.5, seed=5)
    totals, seen = play(world, fleet(1, blocks=300), options=PLUGGED)
    assert totals.sessions == 30 and not totals.failed_sessions
    assert counted(engines, "hints", "followed") > len(seen.turns)
    assert not {name for name in ("malformed", "unknown") if counted(engines, "hints", name)}
    assert counted(engines, "holds", "held") > 0
    assert engines[0].plugin is not None and engines[0].plugin.retained_blocks() == 0


def test_state_that_is_held_is_found_again(monkeypatch):
    """Over several draws: one of them may be an exception. Engines are told no class, because a class changes
    the order of turns, and with it how much of their state is found."""
    monkeypatch.setattr(SessionAdmission, "class_of", lambda *_: None)
    without = replace(PLUGGED, plugin={"retention": False, "eviction": False})

    def cached(options: EngineOptions) -> int:
        tokens = 0
        for seed in range(1, 5):
            # Who enters when weighs more than what engines hold, so nobody waits here.
            world, settings = sessions(30, every_s=0.5, seed=seed), {"make_brain": fixed, "options": options}
            _, seen = play(world, fleet(1, blocks=300), **settings)
            tokens += sum(turn.cached_tokens for turn in seen.turns)
        return tokens

    assert cached(PLUGGED) > 1.05 * cached(without)


def test_with_host_memory_who_pauses_leaves_for_it(engines):
    totals, _ = play(sessions(30, every_s=0.3, seed=1), fleet(1, blocks=300, offload_gb=1.0), options=PLUGGED)
    assert totals.sessions == 30 and not totals.failed_sessions
    assert counted(engines, "host_tier", "demoted") + counted(engines, "host_tier", "gave_way") > 0
    assert engines[0].plugin is not None and engines[0].plugin.retained_blocks() == 0


def test_stock_engines_carry_nothing(engines):
    play(sessions(3, every_s=0.5, seed=5), fleet(1), options=OPTIONS)
    assert engines[0].plugin is None and type(engines[0].scheduler).__name__ == "Scheduler"


def test_a_bias_can_be_left_out_by_name():
    (spec,) = parse_policies("turnpike+plugin:retention=0:classes=0")
    plan = spec.variants[0].plan(FleetSpec(replicas=(ReplicaGroup(profile="qwen3-coder-30b-a3b@h200"),)))
    assert plan.options.plugin == {"retention": False, "classes": False}
    assert EngineOptions().plugin is None


@pytest.mark.parametrize("text", ["plugin+continuum", "continuum+plugin"])
def test_engines_follow_one_policy(text: str):
    (spec,) = parse_policies(text)
    with pytest.raises(SimulatorError, match="both decide about the engine"):
        spec.variants[0].plan(FleetSpec(replicas=(ReplicaGroup(profile="qwen3-coder-30b-a3b@h200"),)))
