import msgspec
import pytest

from lab.simulator.baselines.registry import RECIPES
from lab.simulator.baselines.router import Router
from lab.simulator.baselines.spec import PolicySpec, parse_policies
from lab.simulator.engine.options import SchedulingPolicy
from lab.simulator.errors import SimulatorError
from lab.simulator.fleet import FleetSpec, ReplicaGroup, ToolHostGroup

FLEET = FleetSpec(replicas=(ReplicaGroup(profile="qwen3-coder-30b-a3b@h200", count=2, offload_gb=64.0),))


def _plan(text):
    (variant,) = PolicySpec.parse(text).variants
    return variant.plan(FLEET)


def test_knobs_are_set_and_the_label_says_how():
    (spec,) = parse_policies("session-cap:n=12+offload:gb=32")
    (variant,) = spec.variants
    assert variant.label == "session-cap:n=12+offload:gb=32"
    assert [group.offload_gb for group in variant.plan(FLEET).fleet.replicas] == [32.0]


def test_a_sweep_is_every_combination():
    (spec,) = parse_policies("session-cap:sweep")
    assert len(spec.variants) == len(RECIPES["session-cap"].knobs[0].sweep)
    (spec,) = parse_policies("plas:sweep:beta=1/2+session-cap:n=4/8/16")
    assert len(spec.variants) == 2 * 3 * 2 * 3
    assert len({variant.label for variant in spec.variants}) == 36


def test_tool_hosts_have_a_probe_for_those_who_ask_for_it():
    fleet = msgspec.structs.replace(FLEET, tool_hosts=(ToolHostGroup(cores=2, count=3),))
    for text, has_probe in (("turnpike", False), ("turnpike+probe", True)):
        (group,) = PolicySpec.parse(text).variants[0].plan(fleet).fleet.tool_hosts
        assert (group.cores, group.count, group.has_probe) == (2, 3, has_probe)


def test_recipes_set_what_they_say():
    assert _plan("plas").options.scheduling_policy is SchedulingPolicy.PRIORITY
    assert _plan("belady").options.scheduling_policy is SchedulingPolicy.FCFS
    plain, endless = _plan("affinity"), _plan("infinite-kv:times=3")
    assert plain.kv_tokens(FLEET) == dict.fromkeys(("sim-0", "sim-1"), (650_000 // 64 - 1) * 64)
    assert endless.fleet.replicas[0].kv_blocks == 3 * (650_000 // 64 - 1) + 1
    assert isinstance(_plan("stock").make_brain(FLEET), Router)


@pytest.mark.parametrize("name", RECIPES)
def test_every_recipe_makes_a_plan_with_each_value_of_its_sweep(name):
    (spec,) = parse_policies(f"{name}:sweep")
    for variant in spec.variants:
        plan = variant.plan(FLEET)
        plan.make_brain(plan.fleet)
        if plan.options.policy is not None:
            plan.options.policy()


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("magic", "there is no policy 'magic'"),
        ("session-cap:m=3", "no knob 'm'"),
        ("session-cap:n=x", "is no number"),
        ("session-cap:n", "neither KNOB=VALUE"),
        ("infercept:estimate=guess", "`estimate` is one of"),
        ("turnpike:admission=magic", "Invalid enum value 'magic'"),
        ("session-cap+footprint", "decide about the gateway"),
        ("turnpike+stock", "decide about the gateway"),
        ("plas+belady", "decide about the engine"),
    ],
)
def test_what_is_wrong_is_said(text, says):
    with pytest.raises(SimulatorError, match=says):
        _plan(text)
