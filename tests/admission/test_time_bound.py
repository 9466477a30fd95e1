"""The time bound: nobody is held back while engines have the time to compute what is lost."""

import msgspec
import pytest

from gateway.admission.time_bound import TimeBound
from gateway.domain.decision import WaitReason
from tests.admission.applicants import Play, answered


def bound(pause_s: float, alone_s: float, anew_s: float, *, turns: int = 10) -> TimeBound:
    made = TimeBound()
    for _ in range(turns):
        made.saw_turn(pause_s=pause_s, alone_s=alone_s, anew_s=anew_s)
    return made


@pytest.mark.parametrize(
    ("pause_s", "alone_s", "anew_s", "replicas", "sessions"),
    [
        (4.0, 0.5, 0.2, 2, 45),
        (14.0, 2.0, 4.0, 1, 4),
        (0.0, 0.5, 0.5, 3, 3),
    ],
)
def test_so_many_turns_are_computed_anew_in_the_time_that_there_is(
    pause_s, alone_s, anew_s, replicas, sessions
):
    assert bound(pause_s, alone_s, anew_s).sessions(replicas) == pytest.approx(sessions)


def test_a_few_turns_say_nothing():
    assert bound(4.0, 0.5, 0.2, turns=3).sessions(2) == 0.0


def full_pool(*, pause_s: float, anew_s: float) -> Play:
    """Three sessions, each as large as the cache, have made eight turns each."""
    play = Play().has(kv_tokens=10_000)
    outcome = msgspec.structs.replace(answered(tokens=10_000), alone_s=0.5, anew_s=anew_s)
    for _ in range(8):
        for name in ("s0", "s1", "s2"):
            play.is_let_in(name)
            play.let_in()
        play.now += 0.5
        for name in ("s0", "s1", "s2"):
            play.end(name, outcome)
        play.now += pause_s
    return play


def test_whoever_waits_enters_while_engines_have_the_time():
    assert full_pool(pause_s=4.0, anew_s=0.2).is_let_in("new")


def test_and_waits_where_they_have_not():
    play = full_pool(pause_s=4.0, anew_s=2.0)
    assert play.ask("new").reason in (WaitReason.KV_FULL, WaitReason.BEHIND_OTHERS)
