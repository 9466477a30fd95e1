"""How much a tenant may hold beyond its share while others are late."""

import math
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.admission.promises import IN_TIME, LATE, Promises


class Played:
    """Turns of tenants within their share, one a second; a feedback time is 10 s."""

    def __init__(self) -> None:
        self.promises = Promises(alpha=1.5)
        self.now = 0.0
        self.changes: list[tuple[float, str]] = []

    def run(
        self, seconds, *, slowdown=1.0, wanted=10.0, is_far_beyond=True, fill=1.0, gap_s=0.0, least=0.0
    ) -> list[str]:
        before = len(self.changes)
        for _ in range(seconds):
            self.now += 1.0
            self.promises.saw(gap_s=gap_s, taken_s=slowdown * 2.0, alone_s=2.0)
            self.update(wanted, is_far_beyond=is_far_beyond, fill=fill, least=least)
        return [reason for _, reason in self.changes[before:]]

    def update(self, wanted, *, is_far_beyond=True, fill=1.0, least=0.0) -> None:
        reason = self.promises.update(
            min(wanted, self.promises.level),
            is_far_beyond=is_far_beyond,
            least=least,
            are_waiting=wanted > self.promises.level,
            fill=fill,
            feedback_s=10.0,
            now=self.now,
        )
        if reason:
            self.changes.append((self.now, reason))


def test_nobody_is_limited_where_others_are_in_time():
    play = Played()
    assert play.run(500, slowdown=1.2) == [] and math.isinf(play.promises.level)


def test_who_holds_the_most_holds_less_while_others_are_late():
    play = Played()
    play.run(19, slowdown=1.25)
    assert math.isinf(play.promises.level), "that is no evidence yet"
    assert play.run(5, slowdown=1.25) == [LATE] and play.promises.level == pytest.approx(8.0)
    play.run(200, slowdown=1.3)
    assert play.promises.level < 3.0


def test_fewer_turns_are_enough_where_they_are_far_later():
    play = Played()
    assert play.run(7, slowdown=2.0) == [LATE]


def test_tools_before_a_turn_count_as_they_took():
    play = Played()
    assert play.run(100, slowdown=2.0, gap_s=10.0) == [], "14 s instead of 12"
    assert LATE in play.run(100, slowdown=3.0, gap_s=2.0)


def test_most_of_the_room_stays_in_use():
    play = Played()
    assert play.run(100, slowdown=3.0, fill=0.4) == []
    play.run(100, slowdown=3.0)
    level = play.promises.level
    play.run(1, slowdown=3.0, fill=0.4)
    assert play.run(10, slowdown=3.0, fill=0.4) == [IN_TIME] and play.promises.level > level


def test_nothing_happens_for_the_sake_of_those_whom_nobody_is_in_the_way_of():
    play = Played()
    assert play.run(100, slowdown=5.0, is_far_beyond=False) == []


def test_nobody_gives_back_what_is_little_more_than_its_share():
    play = Played()
    play.run(300, slowdown=3.0, least=6.0)
    assert play.promises.level == pytest.approx(6.0)


def test_what_was_held_back_comes_again_one_by_one():
    play = Played()
    play.run(7, slowdown=2.0, wanted=20.0)
    assert play.promises.level == pytest.approx(16.0)
    play.run(100, slowdown=1.2, wanted=20.0)
    assert play.promises.level == pytest.approx(16.0), "neither late nor quick"
    play.run(60, slowdown=1.05, wanted=20.0)
    assert 17.0 <= play.promises.level < math.inf
    play.run(300, slowdown=1.05, wanted=20.0)
    assert math.isinf(play.promises.level)


def test_who_holds_little_at_last_does_not_get_all_at_once():
    play = Played()
    play.run(100, slowdown=3.0)
    level = play.promises.level
    assert level < 4.0
    play.run(60, slowdown=1.0, is_far_beyond=False)
    assert level < play.promises.level <= level + 6.0


def test_the_level_rises_no_further_than_anybody_follows():
    play = Played()
    play.run(100, slowdown=3.0)
    for _ in range(100):
        play.now += 10.0
        play.promises.update(
            2.0, is_far_beyond=False, least=0.0, are_waiting=True, fill=0.0, feedback_s=10.0, now=play.now
        )
    assert 3.0 < play.promises.level <= 4.0


def test_the_level_is_given_up_where_nobody_says_anything_for_long():
    play = Played()
    play.run(7, slowdown=2.0)
    for _ in range(2000):
        play.now += 1.0
        play.update(0.0)
    assert math.isinf(play.promises.level)


@given(st.lists(st.tuples(st.floats(1.0, 10.0), st.floats(0, 40), st.floats(0, 1.2)), max_size=300))
def test_at_most_one_change_in_a_feedback_time(turns):
    play = Played()
    for slowdown, wanted, fill in turns:
        play.run(1, slowdown=slowdown, wanted=wanted, is_far_beyond=wanted > 2.0, fill=fill)
    at = [when for when, _ in play.changes]
    assert all(later - sooner >= 10.0 for sooner, later in pairwise(at))
    assert play.promises.level >= 1.0
