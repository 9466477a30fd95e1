"""What looked like one run and is two, and what looked like two: seen on recorded traffic, in miniature."""

import pytest

from gateway.domain.decision import Edge, SessionSource
from tests.workflow.world import TOOLS, call, result, said, user
from tests.workflow.world import GuessingWorld as World

# --- retries ---------------------------------------------------------------------------------------


def test_whoever_asks_the_same_long_after_a_failure_is_somebody_else():
    world = World()
    first = world.ask([user("Hi")])
    world.refuse(first, 401)
    assert world.ask([user("Hi")], after=14).source is SessionSource.NEW


def test_who_failed_for_long_may_come_back_late():
    world = World()
    first = turn = world.ask([user("Hi")])
    for pause in (1, 2, 4, 9, 19, 32):
        world.refuse(turn, 429)
        turn = world.ask([user("Hi")], after=pause)
        assert turn.session == first.session, pause


def test_who_was_told_to_wait_may_come_then():
    world = World()
    first = world.ask([user("Hi")])
    world.refuse(first, 429, retry_after_s=75)
    assert world.ask([user("Hi")], after=75.02).session == first.session


# --- twins and silence -----------------------------------------------------------------------------


def test_the_last_of_the_twins_is_no_surer_than_the_first():
    world = World()
    firsts = [world.ask([user("Hi")]) for _ in range(3)]
    for first in firsts:
        world.answer(first, "What can I do for you?")
    again = [
        world.ask([user("Hi"), said("What can I do for you?"), user(f"Do {name}")])
        for name in ("x", "y", "z")
    ]
    assert [turn.confidence for turn in again] == [0.6, 0.6, 0.6]
    assert {turn.session for turn in again} == {turn.session for turn in firsts}


@pytest.mark.parametrize("answer", [[said("")], [said(None)], []])
def test_an_answer_that_says_nothing_ends_no_session(answer):
    world = World()
    first = world.answered([user("Please fix the bug")], "")
    again = world.ask([user("Please fix the bug"), *answer, user("Are you there?")])
    assert (again.session, again.edge) == (first.session, Edge.CONTINUES)


def test_silence_that_several_heard_is_nobodys():
    world = World()
    for _ in range(2):
        world.answer(world.ask([user("Please fix the bug")]), "")
    again = world.ask([user("Please fix the bug"), user("Are you there?")])
    assert again.source is SessionSource.NEW


def test_results_without_words_are_no_silence():
    world = World()
    world.answered([user("Hi")], None, call("call_1aaaaaaaaaaaa"), tools=TOOLS)
    history = [user("Hi"), said(None, call("call_1aaaaaaaaaaaa")), result("call_1aaaaaaaaaaaa")]
    assert world.ask(history).source is SessionSource.CALL_ID
