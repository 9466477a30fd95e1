"""The check of all books notices when one of them lies."""

import pytest

from gateway.domain.request import Work
from lab.simulator.invariants import check_books
from tests.core.playbook import Playbook, arrived, dispatch, stated, up


def busy() -> Playbook:
    """`r1` and `r2` run, `r3` waits; all are turns of one session. `r4` runs beside them and is no turn."""
    play = Playbook(
        replicas="a b", max_running_per_replica=1, pools=({"name": "pool"}, {"name": "two", "models": ["m"]})
    )
    same = stated("x")
    play >> arrived("r1", explicit=same) << dispatch("r1", to="a")
    play >> arrived("r2", explicit=same) << dispatch("r2", to="b")
    play >> arrived("r3", explicit=same)
    play >> up("c", pool="two") >> arrived("r4", model="m", work=Work.POOL) << dispatch("r4", to="c")
    return play


def test_books_that_agree():
    check_books(busy().brain)


@pytest.mark.parametrize(
    ("lie", "complaint"),
    [
        (lambda brain: brain.fleet.submitted("a"), "a runs 1, its book says 2"),
        (lambda brain: brain.fleet.ended("a"), "its book says 0"),
        (lambda brain: brain.waiting_room.leave("r3"), "the waiting room disagrees"),
        (lambda brain: setattr(brain.live["r1"], "replica", None), "r1 is State.SUBMITTED on None"),
        (lambda brain: brain.live["r1"].tried.insert(0, "a"), "sent twice"),
        (lambda brain: setattr(brain.live["r1"], "home", "b"), "left its home"),
        (lambda brain: setattr(brain.live["r3"], "home", "b"), "in a wrong lane"),
        (
            lambda brain: (
                brain.fleet.went_down("a", "x", now=0.0) and brain.fleet.went_down("b", "x", now=0.0)
            ),
            "waits for nobody",
        ),
        (lambda brain: brain.fleet.came_up(up("d").facts, now=0.0), "r3 waits though"),
        (lambda brain: setattr(brain.live["r1"], "tenant", "other"), "another tenant"),
        (lambda brain: brain.live.pop("r1"), "its book says 1"),
    ],
)
def test_lies_are_noticed(lie, complaint):
    brain = busy().brain
    lie(brain)
    with pytest.raises(AssertionError, match=complaint):
        check_books(brain)


def test_lies_about_sessions_are_noticed():
    play = busy()
    session = play.session
    session.live_turns += 1
    with pytest.raises(AssertionError, match="has 3 live turns, not 4"):
        check_books(play.brain)
    play.brain.sessions.sessions.forget(session)
    with pytest.raises(AssertionError, match="forgotten with a live turn"):
        check_books(play.brain)
