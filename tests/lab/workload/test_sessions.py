"""Turns and sessions before they have a place in time."""

from lab.workload.sessions import Session, chat_turn, rng_of, selected
from tests.lab.workload.corpora import called, said


def test_a_turn_keeps_the_history_as_it_was():
    history = [said("user", "hello")]
    turn = chat_turn(history, said("assistant", "yes?"), at_s=0.0, lasts_s=1.0)
    history.append(said("user", "more"))
    assert turn.body == {"model": "unknown", "messages": [said("user", "hello")]}


def test_finish_follows_from_the_answer():
    finishes = [
        chat_turn([], answer, at_s=0.0, lasts_s=0.0).finish
        for answer in (said("assistant", "yes"), called("call_1"), said("assistant", ""))
    ]
    assert finishes == ["stop", "tool_calls", None]


def test_a_session_has_its_own_chance():
    assert rng_of(1, "a").random() == rng_of(1, "a").random()
    assert len({rng_of(1, "a").random(), rng_of(1, "b").random(), rng_of(2, "a").random()}) == 3


def test_selected_by_name_and_number():
    sessions = [Session(client="c", name=name, source="f", turns=()) for name in ("a/1", "b/1", "a/2", "a/3")]
    assert [s.name for s in selected(sessions, match="a/*", limit=2)] == ["a/1", "a/2"]
    assert [s.name for s in selected(sessions, match="*", limit=None)] == ["a/1", "b/1", "a/2", "a/3"]
