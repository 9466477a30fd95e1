"""Holds: deadlines, budget, who goes first, who may take, when retention is given up."""

from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from turnpike_vllm.retain.retention import (
    BlockedTimeShare,
    Reason,
    Release,
    Retention,
    RetentionConfig,
    Thread,
)

A, B, C = Thread("a", ""), Thread("b", ""), Thread("c", "1")


def book(total: int = 100, **more: float) -> Retention[int]:
    return Retention(RetentionConfig(**more), total)


def ended(releases: list[Release[int]]) -> list[tuple[str, str]]:
    return [(release.hold.thread.session, release.reason.value) for release in releases]


def put(holds: Retention[int], thread: Thread, blocks: int, *, ttl: float = 5.0, reuse: float = 0.5) -> None:
    assert holds.hold(thread, own(thread, blocks), ttl_s=ttl, reuse=reuse, now=0.0) == []


def own(thread: Thread, blocks: int) -> range:
    first = 1_000 * ord(thread.session[0]) + 500 * (thread.thread == "sub")
    return range(first, first + blocks)


def test_a_newer_turn_supersedes() -> None:
    holds = book()
    put(holds, A, 10)
    assert ended(holds.hold(A, own(A, 12), ttl_s=9.0, reuse=0.5, now=1.0)) == [("a", "superseded")]
    assert holds.held_blocks == 12
    assert holds.expire(now=5.0) == []


def test_threads_of_a_session_are_apart_and_end_together() -> None:
    holds = book()
    put(holds, Thread("a", "main"), 10)
    put(holds, Thread("a", "sub"), 10)
    put(holds, B, 10)
    assert len(holds.drop_session("a", Reason.FINISHED)) == 2
    assert [each.thread for each in holds.holds] == [B]


def test_hints_extend_shorten_and_drop() -> None:
    holds = book(max_ttl_s=50.0)
    put(holds, A, 10)
    assert holds.change(A, ttl_s=20.0, reuse=0.9, now=1.0) == []
    assert holds.next_deadline() == 21.0
    assert holds.change(A, ttl_s=1.0, reuse=None, now=2.0) == []
    assert holds.next_deadline() == 3.0
    assert holds.change(A, ttl_s=1_000.0, reuse=None, now=2.0) == []
    assert holds.next_deadline() == 52.0
    assert ended(holds.change(A, ttl_s=0.0, reuse=None, now=2.0)) == [("a", "dropped")]
    assert holds.change(A, ttl_s=5.0, reuse=None, now=2.0) == []
    put(holds, B, 1)
    assert ended(holds.change(B, ttl_s=None, reuse=0.0, now=2.0)) == [("b", "dropped")]


def test_the_budget_holds_and_the_cheapest_goes() -> None:
    holds = book(budget=0.5)
    put(holds, A, 30, reuse=0.2)
    assert ended(holds.hold(B, own(B, 30), ttl_s=5.0, reuse=0.9, now=0.0)) == [("a", "budget")]
    assert holds.held_blocks == 50
    gone = holds.hold(C, own(C, 60), ttl_s=5.0, reuse=1.0, now=0.0)
    assert [(each.hold.thread, len(each.hold.blocks)) for each in gone] == [(A, 20), (B, 30), (C, 10)]
    assert holds.held_blocks == 50


def test_worth_is_reuse_and_length_against_what_is_left_to_hold() -> None:
    holds = book()
    put(holds, A, 10, reuse=0.5)
    put(holds, B, 10, reuse=0.4)
    put(holds, C, 10, reuse=0.5, ttl=50.0)
    order = [ended(holds.take_cheapest(Reason.WAITED, 100, now=1.0))[0][0] for _ in range(3)]
    assert order == ["c", "b", "a"]
    assert holds.take_cheapest(Reason.WAITED, 100, now=1.0) == []


def test_a_thread_s_own_state_is_taken_last() -> None:
    holds = book()
    put(holds, A, 10, reuse=0.1)
    put(holds, B, 10, reuse=0.9)
    assert ended(holds.take_cheapest(Reason.WAITED, 100, keep=A, now=1.0)) == [("b", "waited")]
    assert ended(holds.take_cheapest(Reason.ALONE, 100, keep=A, now=1.0)) == [("a", "alone")]


@pytest.mark.parametrize(("used", "ttl"), [(50, 4.0), (70, 4.0), (80, 3.0), (90, 2.0), (99, 2.0)])
def test_pressure_shortens_a_time_to_live_once(used: int, ttl: float) -> None:
    holds = book()
    holds.observe(used_blocks=used, is_blocked=False, now=0.0)
    assert holds.ttl(None) == pytest.approx(ttl / 2)  # grace_s is 2
    assert holds.ttl(4.0) == 4.0  # the gateway that named it has done so
    assert holds.ttl(9_999.0) == 300.0


def test_hints_about_one_pause_pile_up_nothing() -> None:
    holds = book()
    put(holds, A, 10)
    for number in range(10_000):
        holds.change(A, ttl_s=100.0 + number, reuse=None, now=0.0)
    assert len(holds._deadlines) < 100
    assert holds.next_deadline() == 300.0


def test_so_much_is_given_up_as_is_needed_from_the_leaf_on() -> None:
    holds = book()
    put(holds, A, 30, ttl=9.0)
    (release,) = holds.take_cheapest(Reason.WAITED, 12, now=1.0)
    kept = holds.get(A)
    assert kept is not None and (len(kept.blocks), len(release.hold.blocks), holds.held_blocks) == (
        18,
        12,
        18,
    )
    assert [*kept.blocks, *release.hold.blocks] == sorted([*kept.blocks, *release.hold.blocks])
    assert ended(holds.take_cheapest(Reason.WAITED, 18, now=1.0)) == [("a", "waited")]
    assert holds.held_blocks == 0 and holds.get(A) is None


def test_what_several_hold_counts_once_and_is_given_up_last() -> None:
    """A system prompt of 20 blocks that all have, and ten of their own."""
    holds = book(budget=0.5)
    common = range(20)
    for thread in (A, B, C):
        assert holds.hold(thread, [*common, *own(thread, 10)], ttl_s=9.0, reuse=0.5, now=0.0) == []
    assert holds.held_blocks == 50
    for count in (10, 10, 10):
        (release,) = holds.take_cheapest(Reason.RUNNING, 16, now=1.0)
        assert len(release.hold.blocks) == count and not set(release.hold.blocks) & set(common)
    assert (holds.held_blocks, len(holds)) == (20, 3)
    assert [len(holds.take_cheapest(Reason.RUNNING, 16, now=1.0)[0].hold.blocks) for _ in range(2)] == [
        20,
        20,
    ]
    assert (holds.held_blocks, len(holds)) == (20, 1), "the last one of them has it for itself"
    assert len(holds.take_cheapest(Reason.RUNNING, 16, now=1.0)[0].hold.blocks) == 16


def test_what_cannot_be_divided_goes_as_a_whole() -> None:
    holds = Retention[int](RetentionConfig(), 100, is_divisible=False)
    put(holds, A, 30)
    assert len(holds.take_cheapest(Reason.RUNNING, 4, now=1.0)[0].hold.blocks) == 30
    assert holds.held_blocks == 0


def test_benefit_against_opportunity_cost() -> None:
    holds = book()
    assert holds.is_worth_it(50, ttl_s=5.0, reuse=0.5, warm_s=0.2, blocked=0)
    assert not holds.is_worth_it(50, ttl_s=5.0, reuse=0.5, warm_s=0.2, blocked=1)  # 0.1 s against 0.5 s
    assert holds.is_worth_it(50, ttl_s=5.0, reuse=0.5, warm_s=1.2, blocked=1)
    assert not holds.is_worth_it(0, ttl_s=5.0, reuse=0.5, warm_s=1.0, blocked=0)
    assert not holds.is_worth_it(5, ttl_s=0.0, reuse=0.5, warm_s=1.0, blocked=0)
    assert not holds.is_worth_it(5, ttl_s=1.0, reuse=0.0, warm_s=1.0, blocked=0)


def test_sustained_pressure_gives_retention_up_until_it_has_gone() -> None:
    holds = book(recent_s=10.0)
    put(holds, A, 10, ttl=100.0)
    released = [r for second in range(11) for r in holds.observe(used_blocks=1, is_blocked=True, now=second)]
    assert ended(released) == [("a", "given_up")] and holds.has_given_up
    assert not holds.is_worth_it(5, ttl_s=5.0, reuse=1.0, warm_s=9.0, blocked=0)
    for second in range(11, 60):
        holds.observe(used_blocks=1, is_blocked=False, now=second)
    assert not holds.has_given_up


def test_a_moment_of_pressure_does_not() -> None:
    blocked_share = BlockedTimeShare(10.0)
    blocked_share.observe(is_blocked=True, now=0.0)
    assert blocked_share.observe(is_blocked=True, now=1.0) < 0.1
    assert blocked_share.observe(is_blocked=False, now=1.0) < 0.1


ACTIONS = st.tuples(
    st.sampled_from("hold change drop session expire cheapest observe clear".split()),
    st.integers(0, 4),
    st.integers(1, 60),
    st.floats(0.0, 4.0),
    st.booleans(),
)


@given(st.lists(ACTIONS, max_size=60))
def test_what_is_given_comes_back_once(actions: list[tuple[str, int, int, float, bool]]) -> None:
    holds = book(budget=0.8)
    given_blocks: Counter[int] = Counter()
    back: Counter[int] = Counter()
    now, fresh = 0.0, 0
    for kind, who, size, passed, flag in actions:
        thread, now = Thread(f"s{who % 3}", str(who)), now + passed
        released: list[Release[int]] = []
        if kind == "hold":
            blocks = range(fresh, fresh + size)
            fresh += size
            given_blocks.update(blocks)
            released = holds.hold(thread, blocks, ttl_s=passed, reuse=0.5, now=now)
        elif kind == "change":
            released = holds.change(thread, ttl_s=passed if flag else None, reuse=0.3, now=now)
        elif kind == "drop":
            released = holds.drop(thread, Reason.RETURNED)
        elif kind == "session":
            released = holds.drop_session(thread.session, Reason.FINISHED)
        elif kind == "expire":
            released = holds.expire(now=now)
        elif kind == "cheapest":
            released = holds.take_cheapest(Reason.RUNNING, size if flag else 1_000, now=now)
        elif kind == "observe":
            released = holds.observe(used_blocks=size, is_blocked=flag, now=now)
        else:
            released = holds.clear(Reason.RESET)
        for release in released:
            back.update(release.hold.blocks)
        held = Counter(block for hold in holds.holds for block in hold.blocks)
        assert held + back == given_blocks
        assert sum(held.values()) == holds.held_blocks <= 80
        assert len(holds) == len({hold.thread for hold in holds.holds})
        deadlines = [hold.until for hold in holds.holds]
        assert holds.next_deadline() == min(deadlines, default=None)
