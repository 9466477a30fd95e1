"""The gate: who is let through at once, who waits in which lane, who goes next."""

import pytest

from gateway.domain import records as rec
from gateway.domain.decision import PlacementReason, RefusalReason
from gateway.domain.request import Work
from tests.core.playbook import (
    Playbook,
    arrived,
    dispatch,
    down,
    failed,
    finished,
    left,
    nothing,
    refuse,
    started,
    state_minted,
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
    assert play.seen(rec.TurnWaited)[0].waiting == 1
    assert [routed.waited_ms for routed in play.seen(rec.Routed)] == [0, 2000]


def test_a_new_replica_takes_in_as_many_as_it_may():
    play = Playbook(max_running_per_replica=2)
    for request in ("r1", "r2"):
        play >> arrived(request) << dispatch(request, to="a")
    for request in ("r3", "r4", "r5"):
        play >> arrived(request) << nothing
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
    play = with_state_on_a()
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
    play = Playbook(max_running_per_replica=1)
    play >> arrived("r1") << dispatch("r1", to="a")
    play >> arrived("r2", work=work) << dispatch("r2", to="a")
    play >> down("a") >> arrived("r3", work=work) << refuse("r3", RefusalReason.NO_REPLICA)


def test_a_full_waiting_room():
    play = Playbook(max_running_per_replica=1, max_waiting=1)
    play >> arrived("r1") << dispatch("r1", to="a")
    play >> arrived("r2") << nothing
    play >> arrived("r3") << refuse("r3", RefusalReason.QUEUE_FULL)


def test_a_retry_says_so():
    play = Playbook(replicas="a b")
    play >> arrived("r1") << dispatch("r1", to="a")
    play >> failed("r1")
    play << dispatch("r1", to="b", because=RETRY)
    assert [submit.attempt for submit in play.seen(rec.GpuSubmit)] == [1, 2]


def test_filling_a_place_does_not_look_at_everybody_who_waits(monkeypatch):
    play = Playbook(max_running_per_replica=1)
    play >> arrived("r0") << dispatch("r0", to="a")
    for number in range(1, 200):
        play.brain.handle(arrived(f"r{number}"), now=play.now)
    looks = []
    candidates = play.brain.fleet.candidates

    def counted(pool, *, only, without):
        looks.append(pool)
        return candidates(pool, only=only, without=without)

    monkeypatch.setattr(play.brain.fleet, "candidates", counted)
    play.brain.handle(left("r0"), now=play.now)
    assert len(looks) <= 2
