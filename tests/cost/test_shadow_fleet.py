"""A fleet that is played along: what its replicas take, in which order, and that it is bounded."""

import pytest

from gateway.cost import shadow_fleet
from gateway.cost.shadow_fleet import ShadowFleet, ShadowTurn
from gateway.domain.ids import ReplicaId

A, B = ReplicaId("a"), ReplicaId("b")
FOREVER = float("inf")


class Linear:
    """A second for 100 tokens of a prompt; a step takes 0.1 s, and 0.01 s for each further row."""

    def __init__(self, fits: float | None = None) -> None:
        self._fits = fits

    def prompt_s(self, replica: ReplicaId, new_tokens: float, cached_tokens: float) -> float:
        return new_tokens / 100

    def step_s(self, replica: ReplicaId, rows: int, context_tokens: float) -> float:
        return 0.09 + 0.01 * rows

    def kv_tokens(self, replica: ReplicaId) -> float | None:
        return self._fits


def turn(name: str = "talk", *, known: float = 0, prompt: float = 100, output: float = 11, found=None):
    return ShadowTurn(conversation=name, known=known, prompt=prompt, output=output, found=found)


def test_a_turn_alone():
    fleet = ShadowFleet(Linear())
    one = turn()
    fleet.send(one, A, at_s=5.0)
    fleet.play(6.5)
    assert one.ended_s is None and fleet.behind == 1, "nothing is played beyond that"
    fleet.play(FOREVER)
    assert one.first_s == pytest.approx(5 + 1) and one.ended_s == pytest.approx(5 + 1 + 1.0)
    assert (
        fleet.totals.busy_s == pytest.approx(2.0)
        and fleet.totals.computed_tokens == 100
        and fleet.behind == 0
    )


def test_what_is_cached_where_it_runs_is_not_computed():
    fleet = ShadowFleet(Linear())
    fleet.send(turn(), A, at_s=0.0)
    fleet.send(again := turn(known=111, prompt=150), A, at_s=10.0)
    fleet.send(there := turn(known=111, prompt=150), B, at_s=10.0)
    fleet.play(FOREVER)
    assert again.ended_s == pytest.approx(10 + 0.39 + 1.0)
    assert there.ended_s == pytest.approx(10 + 1.5 + 1.0)
    assert fleet.totals.found_tokens == 111 and fleet.totals.computed_tokens == 100 + 39 + 150


def test_what_is_said_to_be_found_counts_and_what_would_be_is_told():
    fleet = ShadowFleet(Linear())
    fleet.send(turn(), A, at_s=0.0)
    fleet.send(again := turn(known=111, prompt=150, found=50.0), A, at_s=10.0)
    fleet.play(FOREVER)
    assert again.ended_s == pytest.approx(10 + 1.0 + 1.0)
    assert (fleet.totals.given_tokens, fleet.totals.found_tokens) == (50, 111)


def test_prompts_wait_for_one_another_and_rows_share_steps():
    fleet = ShadowFleet(Linear())
    first, second = turn("one"), turn("two")
    fleet.send(first, A, at_s=0.0)
    fleet.send(second, A, at_s=0.0)
    fleet.play(FOREVER)
    # The second's prompt takes 1 s, in which the first gets a token; then both decode, 0.11 s a step.
    assert first.ended_s == pytest.approx(2 + 9 * 0.11)
    assert second.ended_s == pytest.approx(2 + 9 * 0.11 + 0.1)
    assert fleet.totals.busy_s == pytest.approx(second.ended_s)


def test_a_turn_that_was_sent_to_no_replica_gets_one_when_it_arrives():
    names = iter([A, B, None])
    fleet = ShadowFleet(Linear(), lambda: next(names))
    fleet.send(last := turn("last"), None, at_s=20.0)
    fleet.send(later := turn("later", known=111, prompt=150), None, at_s=10.0)
    fleet.send(first := turn("later"), None, at_s=0.0)
    fleet.play(FOREVER)
    assert first.ended_s == pytest.approx(2.0)
    assert later.ended_s == pytest.approx(10 + 1.5 + 1.0), (
        "the second that arrives runs on the second replica"
    )
    assert last.ended_s is None and fleet.left_out == 1 and fleet.behind == 0, "there was none left"


def test_a_prompt_takes_longer_beside_many_rows_and_holds_them_up():
    ends, late = [], turn("late", prompt=100, output=1)
    for comes in (False, True):
        fleet = ShadowFleet(Linear())
        rows = [turn(f"{number}", prompt=1, output=1000) for number in range(11)]
        for row in rows:
            fleet.send(row, A, at_s=0.0)
        if comes:
            fleet.send(late, A, at_s=10.0)
        fleet.play(FOREVER)
        ends.append(rows[-1].ended_s)
    assert late.ended_s == pytest.approx(10 + 1 + 10 * 0.01)
    assert ends[1] - ends[0] == pytest.approx(1.1 - 0.2), (
        "in which they had one token, for which 0.2 s are enough"
    )


def test_a_prompt_waits_for_memory():
    fleet = ShadowFleet(Linear(fits=200))
    first, second = turn("one"), turn("two")
    fleet.send(first, A, at_s=0.0)
    fleet.send(second, A, at_s=0.0)
    fleet.play(FOREVER)
    assert first.ended_s == pytest.approx(2.0)
    assert second.ended_s == pytest.approx(4.0)


def test_one_that_fits_nowhere_runs_alone():
    fleet = ShadowFleet(Linear(fits=50))
    fleet.send(large := turn(), A, at_s=0.0)
    fleet.play(FOREVER)
    assert large.ended_s == pytest.approx(2.0)


def test_whoever_waits_for_an_end_is_told_in_time():
    fleet = ShadowFleet(Linear())
    first, second = turn(), turn(known=111, prompt=111)
    first.then.append(lambda over: fleet.send(second, A, at_s=over.ended_s + 3.0))
    fleet.send(first, A, at_s=0.0)
    fleet.play(FOREVER)
    assert second.sent_s == pytest.approx(2.0 + 3.0)
    assert second.ended_s == pytest.approx(5.0 + 0.01 + 1.0)


def test_an_event_never_lies_before_the_one_before():
    fleet = ShadowFleet(Linear())
    fleet.send(turn("one"), A, at_s=10.0)
    fleet.play(10.5)
    fleet.send(late := turn("two"), B, at_s=3.0)
    fleet.play(FOREVER)
    assert late.sent_s == pytest.approx(10.0)


def test_as_many_turns_are_behind_as_may_be(monkeypatch):
    monkeypatch.setattr(shadow_fleet, "MAX_BEHIND", 3)
    fleet = ShadowFleet(Linear())
    assert [fleet.send(turn(f"{number}"), A, at_s=0.0) for number in range(5)] == [True] * 3 + [False] * 2
    assert (fleet.behind, fleet.left_out) == (3, 2)
    fleet.play(FOREVER)
    assert fleet.send(turn(), A, at_s=100.0)


@pytest.mark.parametrize("began_s", [1.79e9, 2.0**33 / 3])
def test_a_clock_that_counts_from_1970_is_too_coarse_for_nothing(began_s: float):
    fleet = ShadowFleet(Linear())
    turns = [turn(f"{number}", prompt=1 + number / 7, output=1 + number / 3) for number in range(200)]
    for number, each in enumerate(turns):
        fleet.send(each, (A, B)[number % 2], at_s=began_s + number / 11)
    calls = 1
    while not fleet.play(FOREVER):
        calls += 1
        assert calls < 10
    assert fleet.behind == 0 and all(each.ended_s > each.sent_s for each in turns)


def test_a_call_ends_after_so_many_events():
    fleet = ShadowFleet(Linear())
    for number in range(10):
        fleet.send(turn(f"{number}"), A, at_s=float(number))
    assert not fleet.play(FOREVER, events=3) and fleet.behind == 10
    assert fleet.play(FOREVER) and fleet.behind == 0


def test_replicas_that_come_and_go_leave_nothing_behind():
    fleet = ShadowFleet(Linear())
    for number in range(50):
        fleet.send(turn(f"{number}"), ReplicaId(f"pod-{number}"), at_s=10.0 * number)
        fleet.play(10.0 * number + 9)
    assert fleet.totals.busy_s == pytest.approx(50 * 2.0)
    assert not fleet._replicas and not fleet._next
