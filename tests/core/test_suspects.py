"""Bodies that replicas may have died of: what counts, for how long, and what is no death."""

from typing import Any

from gateway.core.commands import Dispatch, Refuse
from gateway.core.suspects import _MOST_REMEMBERED
from gateway.domain.decision import RefusalReason
from gateway.domain.request import Transcript
from tests.core.playbook import (
    Playbook,
    answer,
    arrived,
    at_once,
    cut,
    down,
    failed,
    finished,
    left,
    nothing,
    refuse,
    started,
    up,
)

POISON = RefusalReason.UPSTREAM_BROKEN_TWICE
PROMPT: Any = {"transcript": Transcript(body=7), "is_replayable": True}
INPUT: Any = {"body": 7}


def sent(play: Playbook, request: str, body: Any = PROMPT) -> str:
    _ = play >> arrived(request, **body)
    return play.take().placement.replica


def breaks_off(play: Playbook, request: str, body: Any = PROMPT, *, dies: bool = True) -> str:
    replica = sent(play, request, body)
    play >> started(request) >> cut(request) << nothing
    if dies:
        _ = play >> down(replica)
    return replica


def test_an_answer_that_breaks_off_counts_whatever_the_body_is():
    for body in (PROMPT, INPUT):
        play = Playbook(replicas="a b c d")
        assert breaks_off(play, "r1", body) != breaks_off(play, "r2", body)
        play >> arrived("r3", **body) << refuse("r3", POISON)
        assert sent(play, "r4", {"body": 8}), "another body"
        _ = play >> arrived("r5", "another tenant", **body)
        assert play.take().request == "r5"
        assert sent(play.later(61.0), "r6", body)


def test_a_break_and_a_failure_before_the_head_are_two():
    play = Playbook(replicas="a b c d")
    breaks_off(play, "r1")
    sent(play, "r2")
    play >> failed("r2", was_sent=True) << refuse("r2", POISON)


def test_a_good_answer_clears_it_and_a_bad_one_does_not():
    ends = {finished("r2"): True, finished("r2", status=400): False, left("r2", answer()): False}
    for end, clears in ends.items():
        play = Playbook(replicas="a b c d")
        breaks_off(play, "r1")
        sent(play, "r2")
        play >> started("r2") >> end << nothing
        breaks_off(play, "r3")
        _ = play >> arrived("r4", **PROMPT)
        assert isinstance(play.take(), Dispatch) is clears, end


def test_whoever_leaves_and_asks_again_does_not_begin_anew():
    play = Playbook(replicas="a b c d")
    sent(play, "r1")
    _ = play >> failed("r1", was_sent=True)
    play.take()
    play >> left("r1") << nothing
    breaks_off(play, "r2")
    play >> arrived("r3", **PROMPT) << refuse("r3", POISON)


def test_one_death_is_one_however_many_requests_of_a_body_it_ended():
    play = Playbook(replicas="a")
    for request in ("r1", "r2", "r3"):
        sent(play, request)
        _ = play >> started(request)
    for request in ("r1", "r2", "r3"):
        _ = play >> cut(request)
    assert sent(play, "r4") == "a"


def test_a_replica_that_is_found_well_has_not_died():
    play = Playbook(replicas="a b c d")
    for request in ("r1", "r2"):
        replica = breaks_off(play, request, dies=False)
        _ = play.later(0.1) >> up(replica)
    assert sent(play, "r3")
    play = Playbook(replicas="a b c d")
    for request in ("r1", "r2"):
        replica = breaks_off(play, request)
        _ = play.later(0.1) >> up(replica)
    play >> arrived("r3", **PROMPT) << refuse("r3", POISON)


def test_one_that_answers_nothing_in_time_may_be_dead_whatever_its_checks_say():
    play = Playbook(replicas="a b c d")
    for request in ("r1", "r2"):
        replica = sent(play, request)
        _ = play >> failed(request, was_sent=True, timed_out=True)
        play.take()
        _ = play.later(0.1) >> up(replica)
    play >> arrived("r3", **PROMPT) << refuse("r3", POISON)


def test_an_error_counts_if_the_replica_goes_down():
    for dies in (True, False):
        play = Playbook(replicas="a b c d")
        for request in ("r1", "r2"):
            replica = sent(play, request)
            _ = play >> at_once(request, status=500)
            if dies:
                _ = play >> down(replica)
        _ = play >> arrived("r3", **PROMPT)
        assert isinstance(play.take(), Refuse) is dies


def test_what_is_remembered_is_bounded():
    play = Playbook(replicas="a")
    for number in range(_MOST_REMEMBERED + 10):
        breaks_off(play, f"r{number}", {"body": number + 1}, dies=False)
    assert len(play.brain._attempts._suspects._failed) == _MOST_REMEMBERED
