"""Who leaves the device at a pause, and when somebody is called back."""

import math

import pytest

from turnpike_vllm.host_tier import CopyPace, Fate, HostTier, HostTierConfig, Pause, Plan, State
from turnpike_vllm.retention import Thread

A, B = Thread("a", ""), Thread("b", "")
KEEP = Plan(Fate.KEEP, math.inf, "")


def tier(**config: float) -> HostTier[str]:
    """A block is a byte; ten are copied to the host in a second, twenty back."""
    pace = CopyPace(bytes_per_block=1)
    pace.observe(to_host=True, copied_bytes=10, seconds=1.0)
    pace.observe(to_host=False, copied_bytes=20, seconds=1.0)
    return HostTier(HostTierConfig(early_s=0.5, **config), pace)  # type: ignore[arg-type]


def paused(
    tier: HostTier[str], thread: Thread = A, *, gap_s: float | None, plan: Plan = KEEP, now: float = 0.0
) -> Pause[str]:
    return tier.pause(thread, 40, "luggage", plan, gap_s=gap_s, reuse=0.9, now=now)


class TestPace:
    def test_nothing_is_known_before_the_first_copy(self) -> None:
        pace = CopyPace(bytes_per_block=2)
        assert pace.seconds(5, to_host=True) is None
        pace.observe(to_host=True, copied_bytes=0, seconds=1.0)
        pace.observe(to_host=True, copied_bytes=1, seconds=0.0)
        assert pace.bytes_per_s(to_host=True) is None

    def test_the_other_way_stands_in_until_there_was_one(self) -> None:
        pace = CopyPace(bytes_per_block=2)
        pace.observe(to_host=True, copied_bytes=100, seconds=1.0)
        assert pace.seconds(50, to_host=False) == pytest.approx(1.0)
        pace.observe(to_host=False, copied_bytes=100, seconds=4.0)
        assert pace.seconds(50, to_host=False) == pytest.approx(4.0)
        assert pace.seconds(50, to_host=True) == pytest.approx(1.0)

    def test_what_was_measured_last_counts_most(self) -> None:
        pace = CopyPace(bytes_per_block=1)
        for _ in range(200):
            pace.observe(to_host=True, copied_bytes=100, seconds=1.0)
        for _ in range(200):
            pace.observe(to_host=True, copied_bytes=100, seconds=2.0)
        assert pace.seconds(100, to_host=True) == pytest.approx(2.0, rel=0.01)


class TestBreakEven:
    def test_both_copies_and_the_delay_of_the_session(self) -> None:
        assert tier().break_even_s(40, missing=10, pressure=1.0) == pytest.approx(1.0 + 2.0 + 2.0)

    def test_the_less_others_need_the_blocks_the_longer_they_stay(self) -> None:
        assert tier().break_even_s(40, pressure=0.5) == pytest.approx(2.0 + 4.0)
        assert tier().break_even_s(40, pressure=0.0) == math.inf

    def test_what_must_be_computed_anew_is_a_delay_too(self) -> None:
        assert tier().break_even_s(40, lost_s=1.0, pressure=0.5) == pytest.approx(2.0 + 6.0)

    def test_faster_links_send_away_sooner(self) -> None:
        slow = HostTier[str](HostTierConfig(), CopyPace(1))
        slow.pace.observe(to_host=True, copied_bytes=1, seconds=1.0)
        fast = tier().break_even_s(40, pressure=1.0)
        assert fast is not None and fast < (slow.break_even_s(40, pressure=1.0) or 0.0)


class TestDecide:
    @pytest.mark.parametrize(
        ("gap_s", "pressure", "fate", "stay_s"),
        [
            (3.9, 1.0, Fate.KEEP, 3.9 + 4.0),
            (4.1, 1.0, Fate.DEMOTE, 0.0),
            (4.1, 0.5, Fate.KEEP, 4.1 + 6.0),
            (1e6, 0.0, Fate.KEEP, math.inf),
            (None, 1.0, Fate.KEEP, 4.0),
            (None, 0.0, Fate.KEEP, math.inf),
        ],
    )
    def test_the_gap_against_the_break_even(
        self, gap_s: float | None, pressure: float, fate: Fate, stay_s: float
    ) -> None:
        plan = tier().decide(40, gap_s=gap_s, ttl_s=9.0, reuse=0.9, pressure=pressure)
        assert plan.fate is fate and plan.stay_s == pytest.approx(stay_s)

    @pytest.mark.parametrize(("ttl_s", "reuse"), [(0.0, 0.9), (9.0, 0.0)])
    def test_what_is_not_used_again_is_not_even_remembered(self, ttl_s: float, reuse: float) -> None:
        assert tier().decide(40, gap_s=9.0, ttl_s=ttl_s, reuse=reuse, pressure=1.0).fate is Fate.DROP

    def test_before_anything_was_measured_all_stay(self) -> None:
        unmeasured = HostTier[str](HostTierConfig(), CopyPace(1))
        plan = unmeasured.decide(40, gap_s=9.0, ttl_s=9.0, reuse=0.9, pressure=1.0)
        assert (plan.fate, plan.stay_s) == (Fate.KEEP, math.inf)
        assert not unmeasured.may_go(paused(unmeasured, gap_s=9.0), now=0.0)


class TestCalls:
    def test_the_copy_is_done_a_while_before_the_return(self) -> None:
        host = tier()
        pause = paused(host, gap_s=30.0)
        host.left(A, now=1.0)
        assert pause.state is State.AWAY and host.next_due() == pytest.approx(30.0 - 2.0 - 0.5)
        assert host.due(27.0) == [] and host.due(27.6) == [pause] and host.due(99.0) == []

    def test_who_is_due_already_is_called_at_once(self) -> None:
        host = tier()
        pause = paused(host, gap_s=2.0)
        host.left(A, now=1.0)
        assert host.due(1.0) == [pause]

    @pytest.mark.parametrize("config", [{"max_calls": 0}, {}])
    def test_nobody_is_called_without_knowing_when_or_with_calls_switched_off(
        self, config: dict[str, float]
    ) -> None:
        host = tier(**config)
        paused(host, gap_s=9.0 if config else None)
        host.left(A, now=1.0)
        assert host.next_due() is None

    def test_a_later_hint_moves_the_call(self) -> None:
        host = tier()
        pause = paused(host, gap_s=30.0)
        host.left(A, now=1.0)
        host.expect(pause, gap_s=50.0, plan=KEEP, now=10.0)
        assert host.next_due() == pytest.approx(60.0 - 2.5)

    def test_a_later_hint_sends_away_who_is_here(self) -> None:
        host = tier()
        pause = paused(host, gap_s=None)
        host.expect(pause, gap_s=50.0, plan=Plan(Fate.DEMOTE, 0.0, ""), now=10.0)
        assert host.due(10.0) == [pause]

    def test_who_came_back_is_not_due_any_more(self) -> None:
        host = tier()
        pause = paused(host, gap_s=30.0)
        host.left(A, now=1.0)
        host.arrived(pause)
        assert (pause.state, host.next_due()) == (State.HERE, None)
        host.left(A, now=2.0)
        host.forget(A)
        assert host.next_due() is None and len(host) == 0
        host.left(A, now=3.0)
        host.forget(A)

    def test_the_oldest_pause_is_forgotten_first(self) -> None:
        host = tier(max_threads=1)
        paused(host, gap_s=1.0)
        paused(host, B, gap_s=1.0)
        assert host.get(A) is None and host.get(B) is not None
        assert host.called == 0 and [each.thread for each in host.pauses] == [B]
        host.clear()
        assert len(host) == 0


class TestMayGo:
    @pytest.mark.parametrize(("gap_s", "may"), [(None, True), (4.1, True), (3.9, False)])
    def test_the_rest_of_the_gap_counts(self, gap_s: float | None, may: bool) -> None:
        host = tier()
        assert host.may_go(paused(host, gap_s=gap_s), now=0.0) is may

    def test_who_is_away_has_nothing_to_give(self) -> None:
        host = tier()
        pause = paused(host, gap_s=None)
        host.left(A, now=0.0)
        assert not host.may_go(pause, now=0.0)
