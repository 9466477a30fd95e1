"""The gate: who is let through at once, who waits in which lane, who goes next."""

import pytest

from gateway.core import events as ev
from gateway.core.turns.lifecycle import State
from gateway.domain import records as rec
from gateway.domain.agent_key import AgentKey
from gateway.domain.decision import PlacementReason, RefusalReason, WaitReason
from gateway.domain.ids import ReplicaId
from gateway.domain.request import Transcript, Usage, Work
from tests.core.playbook import (
    Playbook,
    arrived,
    dispatch,
    down,
    failed,
    finished,
    first_token,
    left,
    nothing,
    refuse,
    started,
    state_minted,
    stated,
    up,
)

HOME = PlacementReason.STATE_LIVES_THERE
RETRY = PlacementReason.RETRIED_ELSEWHERE


def with_state_on_a(**settings) -> Playbook:
    """Replicas `a` and `b`; what tenant `t` stored as `resp_1` lives on `a`."""
    play = Playbook(replicas="a", max_running_per_replica=1, **settings)
    play >> arrived("r0") << dispatch("r0", to="a")
    play >> started("r0") >> state_minted("r0", "resp_1") >> finished("r0")
    return play >> up("b")


def test_turns_are_let_in_in_order_of_arrival():
    play = Playbook(max_running_per_replica=1)
    play >> arrived("r1") << dispatch("r1", to="a")
    play >> arrived("r2") >> arrived("r3") >> arrived("r4") >> left("r3") << nothing
    play >> left("r1") << dispatch("r2", to="a")
    play >> left("r2") << dispatch("r4", to="a")


def test_time_in_the_waiting_room_is_told():
    play = Playbook(max_running_per_replica=1)
    play >> arrived("r1") << dispatch("r1", to="a")
    play >> arrived("r2")
    play.now += 2
    play >> left("r1")
    assert play.take().waited_s == 2
    assert [routed.waited_ms for routed in play.seen(rec.Routed)] == [0, 2000]


def test_a_new_replica_takes_in_as_many_as_it_may():
    play = Playbook(max_running_per_replica=2)
    for request in ("r1", "r2"):
        play >> arrived(request) << dispatch(request, to="a")
    for request in ("r3", "r4", "r5"):
        play >> arrived(request) << nothing
    assert [waited.waiting for waited in play.seen(rec.TurnWaited)] == [1, 2, 3]
    play >> up("b") << dispatch("r3", to="b") << dispatch("r4", to="b") << nothing


def test_pools_do_not_wait_for_each_other():
    play = Playbook(
        max_running_per_replica=1,
        pools=({"name": "pool", "models": ["m1"]}, {"name": "two", "models": ["m2"]}),
    )
    play >> up("b", pool="two")
    play >> arrived("r1", model="m1") << dispatch("r1", to="a")
    play >> arrived("r2", model="m1") << nothing
    play >> arrived("r3", model="m2") << dispatch("r3", to="b")
    play >> left("r3") << nothing


def test_a_turn_that_waits_for_its_home_holds_nobody_else_up():
    play = with_state_on_a()
    play >> arrived("r1", state_ids=("resp_1",)) << dispatch("r1", to="a", because=HOME)
    play >> arrived("r2", state_ids=("resp_1",)) << nothing
    play >> arrived("r3") << dispatch("r3", to="b")
    play >> arrived("r4") << nothing
    play >> left("r3") << dispatch("r4", to="b")
    play >> left("r1") << dispatch("r2", to="a", because=HOME)


def test_who_came_first_goes_first_also_between_lanes():
    play = with_state_on_a()
    play >> arrived("r1") << dispatch("r1", to="b")
    play >> arrived("r2") << dispatch("r2", to="a")
    play.now += 1
    play >> arrived("r3", state_ids=("resp_1",)) << nothing
    play.now += 1
    play >> arrived("r4") << nothing
    play >> left("r2") << dispatch("r3", to="a", because=HOME)
    play >> left("r3") << dispatch("r4", to="a")


def test_only_those_are_sent_away_whose_replicas_are_all_gone():
    play = with_state_on_a(core={"no_replica_wait_s": 0})
    play >> arrived("r1") << dispatch("r1", to="b")
    play >> arrived("r2") << dispatch("r2", to="a")
    play >> arrived("r3", state_ids=("resp_1",)) >> arrived("r4") << nothing
    play >> down("a") << refuse("r3", RefusalReason.NO_REPLICA) << nothing
    play >> down("b") << refuse("r4", RefusalReason.NO_REPLICA)


def test_waiting_times_add_up_over_attempts():
    play = Playbook(replicas="a b", max_running_per_replica=1, core={"max_wait_s": 10.0})
    play >> arrived("r1") << dispatch("r1", to="a")
    play >> arrived("r2") << dispatch("r2", to="b")
    play >> arrived("r3") << nothing
    play.now += 6
    play >> left("r1") << dispatch("r3", to="a")
    play >> failed("r3") << nothing
    assert play.brain.next_deadline_s() == play.now + 4
    play.later(4) << refuse("r3", RefusalReason.QUEUE_TIMEOUT)


@pytest.mark.parametrize("work", [Work.LIGHT, Work.STATE])
def test_light_work_never_waits(work):
    play = Playbook(max_running_per_replica=1, core={"no_replica_wait_s": 0})
    play >> arrived("r1") << dispatch("r1", to="a")
    play >> arrived("r2", work=work) << dispatch("r2", to="a")
    play >> down("a") >> arrived("r3", work=work) << refuse("r3", RefusalReason.NO_REPLICA)


def test_filling_a_place_does_not_look_at_everybody_who_waits(monkeypatch):
    play = Playbook(max_running_per_replica=1)
    play >> arrived("r0") << dispatch("r0", to="a")
    for number in range(1, 200):
        play.brain.handle(arrived(f"r{number}"), now=play.now)
    looks = []
    candidates = play.brain.fleet.candidates

    def counted(pool, **limits):
        looks.append(pool)
        return candidates(pool, **limits)

    monkeypatch.setattr(play.brain.fleet, "candidates", counted)
    play.brain.handle(left("r0"), now=play.now)
    assert len(looks) <= 2


# --- replicas that fail ----------------------------------------------------------------------------


def test_a_turn_without_a_replica_waits_for_one_for_a_while():
    play = Playbook(core={"no_replica_wait_s": 10.0})
    play >> down("a")
    play >> arrived("r1") << nothing
    play.later(9) << nothing
    play >> up("a") << dispatch("r1", to="a")
    play >> left("r1") >> down("a") >> arrived("r2") << nothing
    play.later(10) << refuse("r2", RefusalReason.NO_REPLICA)


def test_what_the_sole_replica_took_down_with_it_runs_again_when_it_is_back():
    play = Playbook()
    play >> arrived("r1", is_replayable=True) << dispatch("r1", to="a")
    play >> down("a") >> failed("r1", was_sent=True) << nothing
    play >> up("a") << dispatch("r1", to="a")
    assert [submit.attempt for submit in play.seen(rec.GpuSubmit)] == [1, 2]


def test_what_must_not_run_twice_does_not_wait():
    play = Playbook()
    play >> arrived("r1") << dispatch("r1", to="a")
    play >> down("a") >> failed("r1", was_sent=True) << refuse("r1", RefusalReason.UPSTREAM_BROKEN)


def test_those_that_wait_when_the_last_replica_leaves_wait_for_it():
    play = Playbook(max_running_per_replica=1, core={"no_replica_wait_s": 10.0})
    play >> arrived("r1") << dispatch("r1", to="a")
    play >> arrived("r2") >> arrived("r3") << nothing
    play >> down("a") >> failed("r1") << nothing
    play.later(3) << nothing
    play >> up("a") << dispatch("r2", to="a")
    play >> left("r2") << dispatch("r3", to="a")
    play >> left("r3") << dispatch("r1", to="a")


def test_a_full_waiting_room_is_full_in_an_outage_too():
    play = Playbook(max_waiting=1)
    play >> down("a") >> arrived("r1") >> arrived("r2") << refuse("r2", RefusalReason.QUEUE_FULL)


def test_tenants_take_turns_where_one_sends_a_flood():
    play = Playbook(max_running_per_replica=1)
    play >> arrived("r0", tenant="flood") << dispatch("r0", to="a")
    for number in range(1, 6):
        play >> arrived(f"r{number}", tenant="flood") << nothing
    play >> arrived("u0", tenant="u") >> arrived("u1", tenant="u") << nothing
    play >> left("r0") << dispatch("r1", to="a")
    play >> left("r1") << dispatch("u0", to="a")
    play >> left("u0") << dispatch("r2", to="a")
    play >> left("r2") << dispatch("u1", to="a")


def test_a_flood_that_fills_the_waiting_room_makes_room_for_another_tenant():
    play = Playbook(max_running_per_replica=1, max_waiting=3)
    play >> arrived("r0", tenant="flood") << dispatch("r0", to="a")
    for number in range(1, 4):
        play >> arrived(f"r{number}", tenant="flood") << nothing
    play >> arrived("r4", tenant="flood") << refuse("r4", RefusalReason.QUEUE_FULL)
    play >> arrived("u0", tenant="u") << refuse("r3", RefusalReason.TENANT_SHARE)
    play >> arrived("r5", tenant="flood") << refuse("r5", RefusalReason.TENANT_SHARE)
    play >> left("r0") << dispatch("r1", to="a")
    play >> left("r1") << dispatch("u0", to="a")


def test_nothing_is_sent_to_a_replica_that_fails_until_it_has_rested():
    play = Playbook(replicas="a b", health={"ejection_s": 5.0}, core={"max_attempts": 1})
    for number in range(3):
        play >> arrived(f"x{number}") << dispatch(f"x{number}", to="a")
        play >> arrived(f"y{number}") << dispatch(f"y{number}", to="b")
        play >> failed(f"x{number}") << refuse(f"x{number}", RefusalReason.UPSTREAM_UNREACHABLE)
        play >> started(f"y{number}") >> finished(f"y{number}")
    assert play.seen(rec.ReplicaChanged)[-1].state == "ejected"
    for number in range(3):
        play >> arrived(f"r{number}") << dispatch(f"r{number}", to="b")
    play.now += 5
    play >> arrived("r3") << dispatch("r3", to="a")
    play >> arrived("r4") << dispatch("r4", to="b")
    play >> started("r3") >> finished("r3")
    assert [each.state for each in play.seen(rec.ReplicaChanged)][-3:] == ["ejected", "tried", "warming"]
    play >> arrived("r5") << dispatch("r5", to="a")
    play >> arrived("r6") << dispatch("r6", to="b")  # a's share of what b runs is small


def test_a_drained_replica_gets_nothing_new_but_what_needs_it():
    play = with_state_on_a()
    play >> ev.ReplicaDrained(ReplicaId("a"), is_draining=True)
    play >> arrived("r1") << dispatch("r1", to="b")
    play >> arrived("r2", state_ids=("resp_1",)) << dispatch("r2", to="a", because=HOME)
    play >> left("r2") >> arrived("r3") << nothing
    play >> ev.ReplicaDrained(ReplicaId("a"), is_draining=False)
    play << dispatch("r3", to="a")
    assert [each.state for each in play.seen(rec.ReplicaChanged)][-2:] == ["draining", "up"]


def test_a_replica_that_left_is_forgotten_with_what_ran_there():
    play = Playbook(replicas="a b")
    play >> arrived("r1") << dispatch("r1", to="a")
    play >> ev.ReplicaLeft(ReplicaId("a"), "was told to")
    assert [state.facts.id for state in play.brain.fleet] == ["a", "b"]
    play >> failed("r1") << dispatch("r1", to="b", because=RETRY)
    assert [state.facts.id for state in play.brain.fleet] == ["b"]
    assert [each.state for each in play.seen(rec.ReplicaChanged)][-2:] == ["down", "left"]


@pytest.mark.parametrize("stream", [True, False])
def test_health_hears_what_was_expected_and_what_came(monkeypatch, stream):
    play = Playbook(replicas="a b")
    health, heard = play.brain.fleet.health, []

    def listens(name):
        goes_on = getattr(health, name)

        def hear(*args, **told):
            heard.append((args, told))
            goes_on(*args, **told)

        monkeypatch.setattr(health, name, hear)

    listens("sent"), listens("ended")
    monkeypatch.setattr(play.brain.forecasts, "is_experienced", lambda _: True)
    play >> arrived("r1", stream=stream) << dispatch("r1", to="a")
    play >> started("r1") >> finished("r1", usage=Usage(prompt_tokens=9, output_tokens=7))
    ((_, _, first_s, end_s), told), (_, came) = heard
    assert (first_s < end_s) if stream else (first_s == float("inf") and end_s < first_s)
    assert told["output_tokens"] > 0 and came["output_tokens"] == 7


def test_who_waited_for_a_place_moves_in_the_trickle_too():
    play = Playbook(max_running_per_replica=3, have_homes=True, failover_pacing={"moving_at_once": 1})
    for name in ("s1", "s2", "s3"):
        play.begins(name, explicit=stated(name)) >> finished(name, "call")
    play >> up("b") >> down("a")
    for name in ("n1", "n2", "n3"):
        play.arrives(name)
    for name in ("s1", "s2", "s3"):
        play >> arrived(f"{name}-again", explicit=stated(name), body_bytes=100_000) << nothing
    play >> left("n1")
    assert play.take().request == "s1-again"
    play >> left("n2") >> left("n3") << nothing
    waiting = [each for each in play.brain.live.values() if each.state is State.WAITING]
    assert [each.waits_for for each in waiting] == [WaitReason.HOME_LOST] * 2
    play >> started("s1-again") >> first_token("s1-again")
    assert play.take().request == "s2-again"
    play >> left("s2-again")
    assert play.take().request == "s3-again"


def test_who_waits_to_be_moved_and_loses_the_others_too_moves_to_whoever_comes():
    play = Playbook(have_homes=True, failover_pacing={"moving_at_once": 1})
    for name in ("s1", "s2"):
        play.begins(name, explicit=stated(name)) >> finished(name, "call")
    play >> up("b") >> down("a")
    assert play.arrives("s1-again", explicit=stated("s1"), body_bytes=100_000).request == "s1-again"
    play >> arrived("s2-again", explicit=stated("s2"), body_bytes=100_000) << nothing
    play >> down("b") >> left("s1-again") << nothing
    play >> up("c") << dispatch("s2-again", to="c", because=PlacementReason.AFFINITY_REPLICA_DOWN)


def test_a_turn_for_an_adapter_waits_for_a_replica_that_has_it():
    play = Playbook(replicas="", max_running_per_replica=1)
    play >> up("a", models=("base",)) >> up("b", models=("base", "lora"))
    play >> arrived("r1", model="lora") << dispatch("r1", to="b")
    play >> arrived("r2", model="lora") << nothing
    play >> arrived("r3", model="base") << dispatch("r3", to="a")
    play >> arrived("r4", model="base") << nothing
    play >> left("r3") << dispatch("r4", to="a")
    play >> left("r1") << dispatch("r2", to="b")
    play >> down("b") >> failed("r2") << nothing
    play >> left("r4") >> arrived("r5", model="lora") << nothing
    play >> up("b", models=("base", "lora")) << dispatch("r2", to="b")


def test_a_date_in_a_prompt_makes_no_other_agent_for_placement(monkeypatch):
    play, seen = Playbook(), list[AgentKey]()
    policy = play.brain.dispatcher._placement
    place = policy.place

    def spied(candidates, session, asked):
        seen.append(asked.agent)
        return place(candidates, session, asked)

    monkeypatch.setattr(policy, "place", spied)
    for day in (1, 2):
        play.arrives(f"r{day}", transcript=Transcript(agent=day, agent_type=7, body=day))
    assert len(seen) == 2 and len(set(seen)) == 1
