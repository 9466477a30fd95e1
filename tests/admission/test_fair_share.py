"""Which tenant is next, what each held lately, and how much it may hold beyond its share."""

import math
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.admission.tenants import fair_share
from gateway.admission.tenants.fair_share import LATELY_S, FairShare
from gateway.admission.tenants.promises import IN_TIME, LATE, Promises
from gateway.domain.ids import TenantId

A, B = TenantId("a"), TenantId("b")


def test_who_holds_least_is_next():
    fair = FairShare()
    fair.hold(A, 2.0)
    fair.hold(B, 1.0)
    assert fair.rank(B) < fair.rank(A)
    fair.hold(A, -2.0)
    assert fair.rank(A) < fair.rank(B)
    assert fair.held.get(A, 0.0) == 0.0 and list(fair.held) == [B]


def test_weights_count():
    fair = FairShare({A: 4.0})
    fair.hold(A, 3.0)
    fair.hold(B, 1.0)
    assert fair.rank(A) < fair.rank(B)


def test_who_asks_for_half_as_much_as_another_asks_for_much():
    fair = FairShare({A: 2.0})
    fair.hold(B, 2.0)
    fair.wait(B, 8)
    fair.hold(A, 9.0)
    assert fair.is_heavy(A) and fair.most_charged == 4.5 / 2, "nobody has looked yet"
    fair.pass_time(now=0.0)
    assert fair.is_heavy(B) and not fair.is_heavy(A), "4.5 of 10, for a weight of 1"
    assert fair.most_charged == 1.0, "of those who do"
    fair.wait(A, 1)
    assert fair.is_heavy(A) and fair.most_charged == 4.5 / 2


def test_what_was_held_while_nobody_else_was_there_is_no_debt():
    fair = FairShare()
    fair.hold(A, 10.0)
    for now in range(0, 3600, 5):
        fair.pass_time(now=float(now))
    assert fair.lately.get(A, 0.0) == 0.0
    fair.hold(A, -9.0)
    fair.hold(B, 5.0)
    assert not fair.holds_too_much(A) and fair.holds_too_much(B), "one to five"
    fair.hold(A, 9.0)
    for now in range(3600, 7200, 5):
        fair.pass_time(now=float(now))
    assert fair.lately.get(A, 0.0) > 8.0, "it was in somebody's way"


def test_who_holds_a_session_more_than_its_share_holds_too_much():
    fair = FairShare({B: 3.0})
    fair.hold(A, 9.0)
    assert not fair.holds_too_much(A), "nobody else is there"
    fair.wait(B, 1)
    assert fair.holds_too_much(A) and not fair.holds_too_much(B)
    fair.wait(B, -1)
    assert not fair.holds_too_much(A)
    fair.hold(A, -6.0)
    fair.hold(B, 5.0)
    assert fair.holds_too_much(A), "3 of 8, of which two are its share"
    fair.hold(B, 2.0)
    assert not fair.holds_too_much(A) and not fair.holds_too_much(B), "3 of 10: no whole session too much"


def test_a_session_is_held_back_only_where_that_is_fair():
    fair = FairShare()
    fair.hold(A, 3.0)
    assert fair.should_yield(B, A)  # 3:0 becomes 2:1
    fair.hold(A, -1.0)
    assert fair.should_yield(B, A)  # 2:0 becomes 1:1
    fair.hold(A, -1.0)
    assert not fair.should_yield(B, A)  # 1:0 would become 0:1
    assert not fair.should_yield(A, A)


def after(seconds, held, fair=None, since_s=0.0) -> FairShare:
    """So much was held for so long, while somebody waited."""
    if fair is None:
        fair = FairShare()
        fair.wait(B, 1)
    for tenant in {A, *held}:
        fair.hold(tenant, held.get(tenant, 0.0) - fair.held.get(tenant, 0.0))
    for second in range(int(seconds) + 1):
        fair.pass_time(now=since_s + second)
    return fair


def test_it_follows_what_is_held():
    assert FairShare().lately.get(A, 0.0) == 0.0
    assert after(LATELY_S, {A: 10.0}).lately.get(A, 0.0) == pytest.approx(10.0 * (1 - 1 / math.e), rel=0.01)
    assert after(8 * LATELY_S, {A: 10.0}).lately.get(A, 0.0) == pytest.approx(10.0, rel=0.01)


def test_it_fades_and_is_forgotten():
    fair = after(LATELY_S, {A: 10.0})
    before = fair.lately.get(A, 0.0)
    after(LATELY_S, {}, fair, since_s=LATELY_S)
    assert fair.lately.get(A, 0.0) == pytest.approx(before / math.e, rel=0.01)
    after(8 * LATELY_S, {}, fair, since_s=2 * LATELY_S)
    assert fair.lately.get(A, 0.0) == 0.0 and not fair.lately


def test_of_too_many_tenants_those_that_held_most_are_remembered(monkeypatch):
    monkeypatch.setattr(fair_share, "_REMEMBERED", 3)
    fair = after(600, {TenantId(f"t{number}"): float(number) for number in range(1, 9)})
    assert len(fair.lately) == 3
    assert fair.lately.get(TenantId("t8"), 0.0) > fair.lately.get(TenantId("t6"), 0.0) > 0.0
    assert fair.lately.get(TenantId("t5"), 0.0) == 0.0


@given(st.lists(st.tuples(st.floats(0.1, 5_000.0), st.floats(0.0, 50.0)), max_size=50))
def test_it_is_never_more_than_was_held(steps):
    fair, now, most = FairShare(), 0.0, 0.0
    fair.wait(B, 1)
    for passed_s, held in steps:
        now += passed_s
        most = max(most, held)
        fair.hold(A, held - fair.held.get(A, 0.0))
        fair.pass_time(now=now)
        assert 0.0 <= fair.lately.get(A, 0.0) <= most + 1e-9


def fair_after(flood_s) -> FairShare:
    """A has held ten sessions for so long, while B waited, and both hold three now."""
    fair = FairShare()
    fair.wait(B, 1)
    fair.hold(A, 10.0)
    for second in range(flood_s + 1):
        fair.pass_time(now=float(second))
    fair.hold(A, -7.0)
    fair.hold(B, 3.0)
    fair.wait(B, -1)
    return fair


def test_who_left_more_to_others_lately_is_next():
    fair = fair_after(0)
    assert fair.rank(A) == fair.rank(B)
    fair = fair_after(3_600)
    assert fair.rank(B) < fair.rank(A)
    assert fair.holds_too_much(A) and not fair.holds_too_much(B)
    assert fair.should_yield(B, A) and not fair.should_yield(A, B)
    for second in range(3_600, 3_600 + 5 * int(LATELY_S)):
        fair.pass_time(now=float(second))
    assert fair.charge(A) == pytest.approx(fair.charge(B), rel=0.05), "it is forgiven"


def test_the_share_is_that_of_those_who_are_there():
    fair = fair_after(3_600)
    charged = fair.charge(A) + fair.charge(B)
    assert fair.share == pytest.approx(charged / 2)
    fair.hold(B, -3.0)
    assert fair.share == pytest.approx(fair.charge(A))
    fair.wait(B, 1)
    assert fair.share == pytest.approx(fair.charge(A) / 2)
    fair.hold(A, -3.0)
    assert fair.share == 0.0, "what was held lately counts for those who are there"
    fair.wait(A, 1)
    assert fair.share == pytest.approx(fair.charge(A) / 2) and fair.charge(A) > 0.0
    fair.wait(A, -1)
    fair.wait(B, -1)
    assert fair.share == 0.0


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
