"""Each event's effect, in decisions and records; replicas that have not answered; sessions that move."""

from collections import Counter
from typing import Any

import pytest

from gateway.core import events as ev
from gateway.core.commands import Dispatch
from gateway.core.turns.lifecycle import LifecycleError
from gateway.domain import records as rec
from gateway.domain.admission_records import SessionAdmitted
from gateway.domain.decision import PlacementReason, RefusalReason
from gateway.domain.ids import PoolId, ReplicaId, RequestId
from gateway.domain.request import Usage, Work
from tests.core.playbook import (
    Playbook,
    arrived,
    call_seen,
    cut,
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
from tests.workflow.test_retention import read

HOME = PlacementReason.STATE_LIVES_THERE


# --- one request ---------------------------------------------------------------------------------


def test_a_turn_runs_and_ends():
    play = Playbook()
    play >> arrived("r1", body_bytes=7) << dispatch("r1", to="a")
    play.now += 0.25
    play >> started("r1") >> first_token("r1") >> first_token("r1")
    play.now += 0.5
    play >> finished("r1", finish_reason="stop") << nothing
    assert [type(record) for record in play.records[1:]] == [
        rec.SessionStarted,
        rec.TurnArrived,
        SessionAdmitted,
        rec.Routed,
        rec.GpuSubmit,
        rec.GpuFirstToken,
        rec.GpuEnd,
    ]
    (first,), (end,) = play.seen(rec.GpuFirstToken), play.seen(rec.GpuEnd)
    assert first.launch_delay_ms == 250
    assert (end.outcome, end.duration_ms, end.finish_reason) == ("finished", 750, "stop")
    assert not play.brain.live


def test_requests_that_are_no_turns_have_no_session():
    play = Playbook()
    assert play.arrives("r1", work=Work.POOL).session is None
    assert play.arrives("r2", is_relayed=True).session is None
    assert len(play.brain.sessions.sessions) == 0


# --- what a driver may not do --------------------------------------------------------------------


@pytest.mark.parametrize(
    "event",
    [
        arrived("r1"),
        first_token("r1"),
        call_seen("r1", "c1"),
        state_minted("r1", "resp_1"),
        finished("r1"),
        cut("r1"),
        started("never-arrived"),
    ],
)
def test_events_out_of_turn_are_refused_and_change_nothing(event):
    play = Playbook()
    play >> arrived("r1") << dispatch("r1", to="a")
    with pytest.raises(LifecycleError):
        play >> event
    play >> left("r1") << nothing


# --- at the door ---------------------------------------------------------------------------------


def test_a_draining_gateway_takes_nothing_new_and_finishes_the_rest():
    play = Playbook(max_running_per_replica=1)
    play >> arrived("r1") << dispatch("r1", to="a")
    play >> arrived("r2") >> ev.DrainStarted()
    play >> arrived("r3") << refuse("r3", RefusalReason.DRAINING)
    play >> left("r1") << dispatch("r2", to="a")


def test_a_model_that_no_pool_serves():
    play = Playbook(replicas="", pools=({"name": "one", "models": ["m1"]}, {"name": "two", "models": ["m2"]}))
    refused: Any = (play >> up("a", pool="one")).arrives("r1", model="m3")
    assert refused.refusal.reason is RefusalReason.UNKNOWN_MODEL and "m3" in refused.refusal.message


def test_no_replica_is_up():
    play = Playbook(replicas="")
    play >> arrived("r1", "tenant") << refuse("r1", RefusalReason.NO_REPLICA)
    (refused,) = play.seen(rec.Refused)
    assert (refused.turn, refused.tenant, refused.waited_ms) == ("r1", "tenant", 0)


def test_state_that_was_not_seen_being_minted():
    play = Playbook(tenants_have_keys=True)
    play >> arrived("r1", state_ids=("resp_x",)) << refuse("r1", RefusalReason.STATE_NOT_FOUND)
    play = Playbook(tenants_have_keys=False)
    play >> arrived("r1", state_ids=("resp_x",)) << dispatch("r1", to="a")


def test_one_known_state_opens_no_door_to_an_unknown_one():
    play = Playbook(tenants_have_keys=True)
    play >> arrived("r1") << dispatch("r1", to="a")
    play >> started("r1") >> state_minted("r1", "resp_1") >> finished("r1")
    refused: Any = play.arrives("r2", state_ids=("resp_1", "item_x"))
    assert refused.refusal.reason is RefusalReason.STATE_NOT_FOUND and "item_x" in refused.refusal.message
    play >> arrived("r3", state_ids=("resp_1",)) << dispatch("r3", to="a", because=HOME)
    play >> arrived("r4", "other", state_ids=("resp_1",)) << refuse("r4", RefusalReason.STATE_NOT_FOUND)


# --- home ----------------------------------------------------------------------------------------


def test_state_of_another_pool_leads_there_whatever_the_model():
    play = Playbook(
        replicas="a", pools=({"name": "one", "models": ["m1"]}, {"name": "two", "models": ["m2"]})
    )
    play >> up("b", pool="two")
    play >> arrived("r1", model="m2") << dispatch("r1", to="b")
    play >> started("r1") >> state_minted("r1", "resp_1") >> finished("r1")
    play >> arrived("r2", model="m1", state_ids=("resp_1",)) << dispatch("r2", to="b", because=HOME)


def test_a_request_runs_nowhere_but_at_home():
    play = Playbook(replicas="a b", core={"no_replica_wait_s": 0})
    play >> arrived("r1") << dispatch("r1", to="a")
    play >> started("r1") >> state_minted("r1", "resp_1") >> finished("r1")
    play >> arrived("r2", state_ids=("resp_1",)) << dispatch("r2", to="a", because=HOME)
    play >> failed("r2") << refuse("r2", RefusalReason.UPSTREAM_UNREACHABLE)
    play >> down("a")
    play >> arrived("r3", state_ids=("resp_1",)) << refuse("r3", RefusalReason.NO_REPLICA)


# --- the fleet -----------------------------------------------------------------------------------


def test_news_of_a_replica_are_told_once():
    play = Playbook()
    play >> up("a") >> down("a") >> down("a") >> down("unknown")
    assert [change.state for change in play.seen(rec.ReplicaChanged)] == ["up", "down"]


def test_what_time_changed_is_told_before_what_happens_then():
    play = Playbook(replicas="a b")
    for number in range(3):
        play.brain.fleet.health.ended(RequestId(f"x{number}"), ReplicaId("a"), failed=True, now=play.now)
    play.now += 6
    play >> down("a")
    seen = [change.state for change in play.seen(rec.ReplicaChanged) if change.replica == "a"]
    assert seen == ["up", "ejected", "tried", "down"]


def test_nobody_waits_for_a_replica_that_went_down():
    play = Playbook(max_running_per_replica=1, core={"no_replica_wait_s": 0})
    play >> arrived("r1") << dispatch("r1", to="a")
    play >> arrived("r2") << nothing
    play.now += 3
    play >> down("a") << refuse("r2", RefusalReason.NO_REPLICA)
    assert play.seen(rec.Refused)[0].waited_ms == 3000
    play >> started("r1") >> finished("r1") << nothing


# --- time and sessions ---------------------------------------------------------------------------


def test_waiting_ends_at_the_deadline_and_clients_come_back_at_different_times():
    play = Playbook(max_running_per_replica=1, core={"max_wait_s": 5.0})
    play >> arrived("r1") << dispatch("r1", to="a")
    play >> arrived("r2") >> arrived("r3")
    assert play.brain.next_deadline_s() == play.now + 5
    play.later(4.9) << nothing
    play.later(0.1)
    refused: list[Any] = [play.take(), play.take()]
    assert [each.refusal.reason for each in refused] == [RefusalReason.QUEUE_TIMEOUT] * 2
    assert refused[0].refusal.retry_after_s != refused[1].refusal.retry_after_s
    assert refused[0].waited_s == 5


def test_a_refused_final_turn_does_not_end_its_session():
    play = Playbook(max_running_per_replica=1, max_waiting=0)
    final: dict[str, Any] = {"explicit": stated("x", final=True)}
    play >> arrived("r1", explicit=stated("x")) << dispatch("r1", to="a")
    play >> arrived("r2", **final) << refuse("r2", RefusalReason.QUEUE_FULL)
    play >> started("r1") >> finished("r1")
    play >> arrived("r3", **final) << dispatch("r3", to="a")
    assert not play.seen(rec.SessionEnded)
    play >> started("r3") >> finished("r3")
    (ended,) = play.seen(rec.SessionEnded)
    assert (ended.reason, ended.turns) == ("finished", 3)


NEW = ReplicaId("new")


def fleet(*pools: str) -> Playbook:
    return Playbook(
        replicas="a b",
        pools=tuple({"name": name} for name in pools),
        have_homes=True,
        admission={"policy": "sessions"},
    )


def begins(play: Playbook, name: str, **fields: Any) -> ReplicaId:
    sent: Any = play.arrives(name, explicit=stated(name), stream=True, body_bytes=20_000, **fields)
    return sent.placement.replica


def answered(play: Playbook, name: str, *, after_s: float = 40.0) -> None:
    play.now += after_s / 2
    _ = play >> started(name) >> first_token(name)
    play.now += after_s / 2
    _ = play >> finished(name, usage=Usage(prompt_tokens=5_000, cached_tokens=0, output_tokens=100))


def known(play: Playbook, turns: int = 6) -> None:
    """Both replicas answer, and take far longer than a server of which nothing is known is believed to."""
    for number in range(turns):
        begins(play, f"known{number}")
        answered(play, f"known{number}")


def turn_s(play: Playbook, replica: str) -> float:
    return play.brain.forecasts.turn_s(ReplicaId(replica), 2_000, 0, 100)


def test_who_joins_does_not_draw_what_comes_until_its_first_answer():
    play = fleet("pool")
    known(play)
    play >> up(NEW)
    began = Counter(begins(play, f"t{number}") for number in range(12))
    assert 1 <= began[NEW] <= 6, began
    assert min(began[ReplicaId(name)] for name in "ab") >= 3, began


def test_replicas_of_another_pool_say_nothing():
    play = fleet("pool", "other")
    known(play)
    guess_s = turn_s(fleet("pool"), "a")
    play >> up(NEW, pool="other")
    assert turn_s(play, NEW) == guess_s < turn_s(play, "a")


def test_a_member_that_is_not_up_is_of_its_pool_too():
    play = fleet("pool")
    known(play)
    _ = play >> ev.ReplicaJoined(NEW, PoolId("pool"))
    assert turn_s(play, NEW) > 5 * turn_s(fleet("pool"), "a")


def test_who_has_left_says_nothing():
    play = fleet("pool")
    known(play)
    for gone in ("a", "b"):
        _ = play >> down(gone) >> ev.ReplicaLeft(ReplicaId(gone), "is not listed")
    play >> up(NEW)
    assert turn_s(play, NEW) == turn_s(fleet("pool"), "a")


def test_who_never_came_up_is_absent_like_one_that_went_down():
    """One of two was never there, and the other one goes: turns wait for one of them, then are refused."""
    play = Playbook(replicas="a")
    _ = play >> ev.ReplicaJoined(NEW, PoolId("pool")) >> down("a")
    _ = play >> arrived("t") << nothing
    _ = play.later(60.0) << refuse("t", RefusalReason.NO_REPLICA)
    _ = play >> arrived("u") << nothing >> up(NEW) << dispatch("u", to="new")


USAGE = Usage(prompt_tokens=5000, cached_tokens=100, output_tokens=20)


class Fleet(Playbook):
    """Engines that follow hints; a session lives on `a`, whose tools run."""

    def __init__(self) -> None:
        super().__init__(replicas="", have_homes=True)
        self.joins("a")
        self.asks("s-1").answers("s-1", "call-1")
        self.joins("b")
        self.hints.clear()

    def joins(self, name: str) -> None:
        _ = self >> up(name, follows_hints=True)

    def asks(self, turn: str, *results: str) -> "Fleet":
        sent = self.arrives(turn, explicit=stated("s"), echoed_ids=results, tool_result_ids=results)
        assert isinstance(sent, Dispatch)
        self.sent = sent
        _ = self >> started(turn) >> first_token(turn)
        return self

    def answers(self, turn: str, *calls: str) -> "Fleet":
        _ = self >> finished(turn, *calls, usage=USAGE)
        return self

    def drains(self, name: str, *, is_draining: bool = True) -> "Fleet":
        _ = self >> ev.ReplicaDrained(ReplicaId(name), is_draining=is_draining)
        return self


def test_engines_are_told_where_it_goes_and_that_it_left():
    fleet = Fleet().drains("a").asks("s-2", "call-1")
    placement = fleet.sent.placement
    assert (placement.replica, placement.reason) == ("b", PlacementReason.AFFINITY_REPLICA_DOWN)
    [gone] = [told for told in fleet.hints if told.replica == "a"]
    released, with_request = read(gone.hint), read(fleet.sent.hint)
    assert (released.retain_s, released.reuse, released.thread) == (0.0, 0.0, with_request.thread)
    assert released.seq < with_request.seq
    fleet.drains("a", is_draining=False)
    fleet.answers("s-2", "call-2").asks("s-3", "call-2")
    others = [told for told in fleet.hints if told is not gone]
    assert others and all(told.replica == "b" and read(told.hint).retain_s for told in others)


def test_an_engine_is_not_told_that_a_conversation_left_which_was_never_there():
    fleet = Fleet().drains("a").asks("s-2", "call-1").answers("s-2", "call-2").drains("a", is_draining=False)
    fleet.hints.clear()
    (fleet >> down("b")).arrives("sub", explicit=stated("s", thread="sub"))
    assert not fleet.hints
