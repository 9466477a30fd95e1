"""Baselines, event by event: foresight, classes, Agent.xpu, affinity, routers, their settings, the split."""

import json
from collections import Counter

import msgspec
import pytest

from gateway.core import events as ev
from gateway.core.commands import Dispatch, RemotePrefill
from gateway.domain.decision import PlacementReason, SessionRef, SessionSource
from gateway.domain.fleet import ReplicaLoad
from gateway.domain.ids import ReplicaId, RequestId, SessionId, ThreadId
from gateway.routing.placement_policy import Query
from lab.simulator.baselines.agent_xpu import AgentXpuRouter
from lab.simulator.baselines.class_bound import ClassBoundRouter
from lab.simulator.baselines.foresight import without_foresight
from lab.simulator.baselines.placements import PrefixScore
from lab.simulator.baselines.registry import RECIPES
from lab.simulator.baselines.roles import roles_of, with_roles, without_network
from lab.simulator.baselines.router import Affinity, Router
from lab.simulator.baselines.session_affinity import SessionAffinity
from lab.simulator.baselines.session_cap import SessionCap
from lab.simulator.baselines.spec import PolicySpec, parse_policies
from lab.simulator.baselines.split import SplitRouter
from lab.simulator.engine.options import SchedulingPolicy
from lab.simulator.errors import SimulatorError
from lab.simulator.fleet import FleetSpec, ReplicaGroup, ToolHostGroup
from tests.lab.simulator.baselines.router_play import Play, asked


def test_only_what_is_foreseen_is_replaced():
    about, more = '{"v":1,"session":"s-1","seq":7', ',"class":"reactive"'
    told = f'{about},"retain_s":12.345,"reuse":0.9312{more},"prefetch_in_s":3.210}}'
    assert without_foresight(told) == f'{about},"retain_s":6.0,"reuse":0.5{more}}}'
    finished = '{"v":1,"session":"s-1","seq":8,"finish":true}'
    assert without_foresight(finished) == finished


def test_each_class_spreads_over_its_own_replicas_and_sessions_stay():
    slow = (ReplicaId("r2"), ReplicaId("r3"))
    play = Play(None, replicas=4, kind=lambda sizes: ClassBoundRouter(sizes, slow))
    assert play.asks("b1/0", is_background=True) == ["b1/0 on r2"]
    assert play.asks("a1/0") == ["a1/0 on r0"]
    assert play.asks("b2/0", is_background=True) == ["b2/0 on r3"]
    assert play.asks("a2/0") == ["a2/0 on r1"]
    assert play.asks("b3/0", is_background=True) == ["b3/0 on r2"]
    play.ends("b2/0")
    assert play.asks("b2/1", is_background=True) == ["b2/1 on r3"]


def test_replicas_that_are_not_there_are_refused():
    [spec] = parse_policies("class-bound:background=4")
    fleet = FleetSpec(replicas=(ReplicaGroup(profile="qwen3-14b@h200", count=2),))
    with pytest.raises(SimulatorError, match="joined by dots"):
        spec.variants[0].plan(fleet)


NPU, IGPU = ReplicaId("r0"), ReplicaId("r1")


def told(command: object) -> dict[str, object]:
    assert isinstance(command, Dispatch) and command.placement.replica == IGPU
    assert command.hint is not None
    hint: dict[str, object] = json.loads(command.hint)
    return hint


def test_background_prompts_are_computed_apart_and_reactive_ones_where_they_are_decoded():
    router = Play(None, replicas=2, kind=lambda sizes: AgentXpuRouter(sizes, {NPU})).router
    (leg,) = router.handle(asked("b", 1_000, final=True, is_background=True), now=0.0)
    assert isinstance(leg, RemotePrefill)
    assert leg.replica == NPU
    (reactive,) = router.handle(asked("r", 1_000, final=True), now=1.0)
    assert told(reactive)["class"] == "reactive"
    (background,) = router.handle(ev.PrefillLegEnded(RequestId("b"), None), now=3.0)
    assert told(background)["class"] == "proactive"
    assert told(background)["age_s"] == 3.0


def loads(**running: int) -> list[ReplicaLoad]:
    return [ReplicaLoad(ReplicaId(name), load) for name, load in running.items()]


def turn(session: str, thread: str = "1") -> SessionRef:
    return SessionRef(
        session=SessionId(session), thread=ThreadId(thread), source=SessionSource.NEW, confidence=0.5
    )


def test_new_sessions_go_where_the_fewest_live_though_their_tools_run():
    affinity = SessionAffinity()
    chosen = [affinity.place(loads(a=0, b=0, c=0), turn(str(n))) for n in range(6)]
    assert Counter(placement.replica for placement in chosen) == {"a": 2, "b": 2, "c": 2}
    assert {placement.reason for placement in chosen} == {PlacementReason.LEAST_LOADED}


def test_a_session_stays():
    affinity = SessionAffinity()
    affinity.place(loads(a=1, b=0), turn("s"))
    placement = affinity.place(loads(a=0, b=8), turn("s"))
    assert placement.replica == "b" and placement.reason is PlacementReason.SESSION_LIVES_THERE


def test_it_leaves_a_home_that_is_much_busier_than_the_others_and_stays_away():
    affinity = SessionAffinity(spill_factor=1.5, spill_floor=4)
    affinity.place(loads(a=1, b=0), turn("s"))
    assert affinity.place(loads(a=2, b=6), turn("s")).replica == "b", "1.5 × the average of 4"
    placement = affinity.place(loads(a=1, b=6), turn("s"))
    assert placement.replica == "a" and placement.reason is PlacementReason.HOME_IS_BUSY
    assert affinity.place(loads(a=1, b=0), turn("s")).replica == "a"
    assert affinity.ledger.sessions_at == {"a": 1}


def test_sub_agents_follow_their_parent_and_leave_it_in_peace():
    affinity = SessionAffinity(spill_floor=1)
    affinity.place(loads(a=1, b=0), turn("s", "main"))
    assert affinity.place(loads(a=0, b=1), turn("s", "sub-1")).replica == "b"
    assert affinity.place(loads(a=0, b=2), turn("s", "sub-2")).replica == "a"
    assert affinity.place(loads(a=1, b=1), turn("s", "sub-2")).replica == "a"
    assert affinity.place(loads(a=1, b=1), turn("s", "main")).replica == "b"
    assert affinity.ledger.sessions_at == {"b": 1}


def test_a_score_of_the_prefix_that_was_seen_weighs_three_to_two_against_what_runs():
    placement = PrefixScore()

    def chosen(text_bytes, **running):
        return placement.place(loads(**running), turn("s"), Query(text_bytes=text_bytes)).replica

    assert chosen(400, a=0, b=1) == "a"
    assert chosen(500, a=4, b=0) == "a", "3 × 400 / 500 against 2"
    assert chosen(800, a=4, b=0) == "b", "3 × 500 / 800 against 2"
    assert chosen(800, a=1, b=1) == "b", "it has seen all of it by now"


def test_affinity_keeps_a_session_and_puts_a_new_one_where_the_fewest_are():
    play = Play(Affinity(), replicas=2)
    assert play.asks("a/0") == ["a/0 on r0"]
    assert play.asks("b/0") == ["b/0 on r1"]
    assert play.asks("c/0") == ["c/0 on r0"]
    play.ends("a/0")
    assert play.asks("a/1") == ["a/1 on r0"]  # though there are two
    play.ends("b/0")
    assert play.asks("b/1") == ["b/1 on r1"]
    play.over("a")
    play.over("c")
    assert play.asks("d/0") == ["d/0 on r0"]


def test_a_session_cap_lets_the_next_in_when_one_is_over_and_never_makes_members_wait():
    play = Play(Affinity(), SessionCap(2))
    assert play.asks("a/0") and play.asks("b/0")
    assert play.asks("c/0") == play.asks("d/0") == []
    assert play.ends("a/0") == []  # its tools run; its place is its own
    assert play.asks("a/1", final=True) == ["a/1 on r0"]
    assert play.ends("a/1", now=7.0) == ["c/0 on r0"]  # that was the end, as the client said
    play.ends("b/0")
    assert play.over("b") == ["d/0 on r0"]  # as somebody else said
    play.ends("c/0")
    play.ends("d/0")
    assert not play.router.live


def test_sessions_that_wait_may_have_another_order():
    play = Play(Affinity(), SessionCap(1), rank={"a": 9.0, "b": 2.0, "c": 1.0}.__getitem__)
    assert play.asks("a/0", final=True) == ["a/0 on r0"]
    assert play.asks("b/0", final=True) == play.asks("c/0", final=True) == []
    assert play.ends("a/0") == ["c/0 on r0"]
    assert play.ends("c/0") == ["b/0 on r0"]


def test_a_session_that_asks_twice_while_it_waits_enters_with_both():
    play = Play(Affinity(), SessionCap(1))
    play.asks("a/0")
    assert play.asks("b/0") == play.asks("b/1") == []
    play.ends("a/0")
    assert play.over("a") == ["b/0 on r0", "b/1 on r0"]


def test_sessions_of_a_replica_that_is_lost_enter_anew():
    play = Play(Affinity(), SessionCap(1), replicas=2)
    assert play.asks("a/0") == ["a/0 on r0"]
    assert play.asks("b/0") == ["b/0 on r1"]
    assert play.hears(ev.ReplicaWentDown(ReplicaId("r1"), why="is lost")) == []
    assert play.ends("b/0") == []
    assert play.asks("b/1") == []  # there is no place
    assert play.over("a") == ["b/1 on r0"]
    assert play.ends("b/1") == [] and play.over("b") == []


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
    without = _plan("turnpike+plugin:retention=0:classes=0").options.plugin
    assert without == {"retention": False, "classes": False} and plain.options.plugin is None


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
        ("plugin+continuum", "decide about the engine"),
        ("continuum+plugin", "decide about the engine"),
    ],
)
def test_what_is_wrong_is_said(text, says):
    with pytest.raises(SimulatorError, match=says):
        _plan(text)


HALVES = FleetSpec(replicas=(ReplicaGroup(profile="p", count=3, network_gbit_s=100),))


class SplitPlay(Play):
    """r0 and r1 compute prompts of more than a thousand tokens, r2 and r3 decode."""

    def __init__(self):
        prompts = (ReplicaId("r0"), ReplicaId("r1"))
        super().__init__(None, replicas=4, kind=lambda sizes: SplitRouter(sizes, prompts, 1_000))

    def hears(self, event, now=0.0):
        found = []
        for command in self.router.handle(event, now=now):
            if isinstance(command, RemotePrefill):
                found.append(f"{command.request} first on {command.replica}")
            else:
                assert isinstance(command, Dispatch)
                found.append(f"{command.request} on {command.placement.replica}")
        return found

    def computed(self, name):
        return self.hears(ev.PrefillLegEnded(RequestId(name), None))


def test_a_long_prompt_is_computed_first_and_a_session_keeps_both_its_replicas():
    play = SplitPlay()
    assert play.asks("a/0", 5_000) == ["a/0 first on r0"]
    assert play.asks("b/0", 5_000) == ["b/0 first on r1"]
    assert play.computed("b/0") == ["b/0 on r2"]
    assert play.computed("a/0") == ["a/0 on r3"]
    play.ends("a/0", prompt=5_000)
    assert play.asks("a/1", 6_500) == ["a/1 first on r0"]


def test_what_is_cached_where_it_is_decoded_does_not_count():
    play = SplitPlay()
    assert play.asks("a/0", 1_000) == ["a/0 on r2"]
    play.ends("a/0", prompt=1_000, output=500)
    assert play.asks("a/1", 2_500) == ["a/1 on r2"]
    play.ends("a/1", prompt=2_500, output=0)
    assert play.asks("a/2", 3_501) == ["a/2 first on r0"]


def test_roles_by_number():
    fleet = with_roles(HALVES, "0.2")
    assert roles_of(fleet, "prefill") == {"sim-0", "sim-2"} and roles_of(fleet, "decode") == {"sim-1"}
    assert with_roles(HALVES, "") is HALVES
    plain = without_network(fleet)
    assert len(roles_of(plain, "both")) == 3 and not plain.hands_over


@pytest.mark.parametrize("text", ["3", "x", "0.1.2", "-1"])
def test_roles_that_cannot_be(text):
    with pytest.raises(SimulatorError, match=f"prefill={text}"):
        with_roles(HALVES, text)


def test_a_fleet_says_what_it_cannot_be():
    with pytest.raises(ValueError, match="all replicas"):
        FleetSpec(replicas=(ReplicaGroup(profile="p"), ReplicaGroup(profile="p", network_gbit_s=1)))
    with pytest.raises(ValueError, match="need a `network_gbit_s`"):
        FleetSpec(replicas=(ReplicaGroup(profile="p"), ReplicaGroup(profile="p", role="prefill")))
    with pytest.raises(ValueError, match="one connector"):
        ReplicaGroup(profile="p", network_gbit_s=1, offload_gb=1)
