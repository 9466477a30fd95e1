"""A decision that fails, by a fault of ours: nobody hangs, and the books are closed."""

from collections.abc import Callable
from typing import Any

import pytest

from gateway.core import events as ev
from gateway.core.commands import Dispatch, Refuse
from gateway.domain.decision import RefusalReason
from lab.simulator.invariants import check_books
from tests.core.playbook import Playbook, arrived, dispatch, down, failed, finished, left, started

FAULTS: dict[str, Callable[[Any], tuple[Any, str]]] = {
    "session inference": lambda brain: (brain.sessions, "turn_arrived"),
    "admission": lambda brain: (brain.admission, "ask"),
    "placement": lambda brain: (brain.placement, "place"),
}
"""Of what is asked before a turn is sent."""
LATE: dict[str, Callable[[Any], tuple[Any, str]]] = {
    "forecasts": lambda brain: (brain.forecasts, "sent"),
    "health": lambda brain: (brain.fleet.health, "sent"),
    "hints": lambda brain: (brain.dispatcher._to_engines, "with_request"),
}
"""When its place on a replica is booked already."""
AFTERWARDS: dict[str, Callable[[Any], tuple[Any, str]]] = {
    "placement": lambda brain: (brain.placement, "turn_over"),
    "admission": lambda brain: (brain.admission, "turn_over"),
    "forecasts": lambda brain: (brain.forecasts, "ended"),
    "health": lambda brain: (brain.fleet.health, "ended"),
}


class Faulty(Playbook):
    def fails(self, where: tuple[Any, str], monkeypatch: pytest.MonkeyPatch) -> None:
        def fail(*_: Any, **__: Any) -> None:
            raise ZeroDivisionError("a fault of ours")

        monkeypatch.setattr(*where, fail)

    def survives(self, event: ev.Event) -> list[Dispatch | Refuse]:
        with pytest.raises(ZeroDivisionError):
            self.brain.handle(event, now=self.now)
        commands = self.brain.recover(now=self.now)
        check_books(self.brain)
        return [each for each in commands if isinstance(each, Dispatch | Refuse)]


@pytest.mark.parametrize("what", FAULTS)
def test_a_turn_whose_decision_fails_is_sent_all_the_same(what, monkeypatch):
    play = Faulty(replicas="a b", max_running_per_replica=1)
    play >> arrived("r1") << dispatch("r1", to="a")
    with monkeypatch.context() as broken:
        play.fails(FAULTS[what](play.brain), broken)
        (sent,) = play.survives(arrived("r2"))
    assert isinstance(sent, Dispatch) and (sent.request, sent.placement.replica) == ("r2", "b")
    play >> started("r2") >> finished("r2") >> arrived("r3") << dispatch("r3", to="b")
    play >> left("r3") >> left("r1")
    assert not play.brain.live and play.brain.faults == 1


@pytest.mark.parametrize("what", LATE)
def test_a_turn_whose_sending_fails_leaves_no_place_taken(what, monkeypatch):
    play = Faulty(replicas="a b", max_running_per_replica=1)
    with monkeypatch.context() as broken:
        play.fails(LATE[what](play.brain), broken)
        (refused,) = play.survives(arrived("r1"))
    assert isinstance(refused, Refuse) and refused.refusal.reason is RefusalReason.INTERNAL
    assert not play.brain.live
    play >> arrived("r2") << dispatch("r2", to="b")
    play >> arrived("r3") << dispatch("r3", to="a")


def test_who_waits_does_not_hang_when_its_place_is_found_by_another_that_ends(monkeypatch):
    play = Faulty(max_running_per_replica=1)
    play >> arrived("r1") << dispatch("r1", to="a")
    play >> arrived("r2") >> started("r1")
    with monkeypatch.context() as broken:
        play.fails(FAULTS["placement"](play.brain), broken)
        (sent,) = play.survives(finished("r1"))
    assert isinstance(sent, Dispatch) and sent.request == "r2"


@pytest.mark.parametrize("what", AFTERWARDS)
def test_a_turn_whose_end_fails_is_over(what, monkeypatch):
    play = Faulty(max_running_per_replica=1)
    play >> arrived("r1") << dispatch("r1", to="a")
    play >> started("r1") >> arrived("r2")
    with monkeypatch.context() as broken:
        play.fails(AFTERWARDS[what](play.brain), broken)
        (sent,) = play.survives(finished("r1"))
    assert isinstance(sent, Dispatch) and set(play.brain.live) == {sent.request} == {"r2"}


def test_what_builds_on_state_is_not_passed_on_unseen(monkeypatch):
    play = Faulty(replicas="a b", tenants_have_keys=True, core={"is_unknown_state_refused": True})
    for fault in ("find_home", "first_unknown_state"):
        with monkeypatch.context() as broken:
            play.fails((play.brain.sessions, fault), broken)
            (refused,) = play.survives(arrived(fault, state_ids=("resp_of_another",)))
        assert isinstance(refused, Refuse) and refused.refusal.reason is RefusalReason.INTERNAL


def test_what_was_sent_before_is_not_sent_again(monkeypatch):
    play = Faulty(replicas="a b")
    play >> arrived("r1") << dispatch("r1", to="a")
    with monkeypatch.context() as broken:
        play.fails(AFTERWARDS["forecasts"](play.brain), broken)
        (refused,) = play.survives(failed("r1"))
    assert isinstance(refused, Refuse) and not play.brain.live


def test_whom_nobody_can_run_is_refused(monkeypatch):
    play = Faulty()
    play >> down("a")
    play.fails(FAULTS["admission"](play.brain), monkeypatch)
    (refused,) = play.survives(arrived("r1"))
    assert isinstance(refused, Refuse) and refused.refusal.reason is RefusalReason.INTERNAL
