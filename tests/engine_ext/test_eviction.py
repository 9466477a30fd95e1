"""Which block is overwritten next: the score, shared prefixes, leaf before parent."""

from dataclasses import dataclass

import pytest
from hypothesis import given
from hypothesis import strategies as st

from turnpike_vllm.eviction import EvictionConfig, Evictor


@dataclass(eq=False)
class Cell:
    block_id: int
    block_hash: object
    ref_cnt: int = 0


def cells(*ids: int) -> list[Cell]:
    return [Cell(each, f"h{each}") for each in ids]


def names(found: list[Cell]) -> list[int]:
    return [each.block_id for each in found]


@pytest.fixture
def evictor() -> Evictor[Cell]:
    return Evictor(EvictionConfig())


def test_the_least_likely_to_be_used_goes_first_from_its_leaf(evictor: Evictor[Cell]) -> None:
    evictor.claim("paused", cells(1, 2), reuse=0.9, now=0.0)
    evictor.claim("over", cells(3, 4), reuse=0.0, now=100.0)
    assert names(evictor.victims(3)) == [4, 3, 2]
    assert names(evictor.victims(9)) == [1]
    assert len(evictor) == 0 and not evictor.is_claimed(Cell(1, "h1"))


def test_a_block_in_use_is_never_named_and_its_thread_sleeps_until_woken(evictor: Evictor[Cell]) -> None:
    used = cells(1, 2)
    evictor.claim("a", used, reuse=0.0, now=0.0)
    evictor.claim("b", cells(3, 4), reuse=1.0, now=0.0)
    used[1].ref_cnt = 1
    assert names(evictor.victims(1)) == [4]
    used[1].ref_cnt = 0
    evictor.wake("a")
    evictor.wake("nobody")
    assert names(evictor.victims(1)) == [2]


def test_sleepers_are_kept_while_others_suffice(evictor: Evictor[Cell]) -> None:
    used = cells(1)
    used[0].ref_cnt = 1
    evictor.claim("a", used, reuse=0.0, now=0.0)
    evictor.claim("b", cells(2, 3), reuse=1.0, now=0.0)
    assert names(evictor.victims(1)) == [3]
    assert names(evictor.victims(1)) == [2]
    used[0].ref_cnt = 0
    assert names(evictor.victims(1)) == [1]


def test_who_is_away_for_longer_goes_first_up_to_a_bound(evictor: Evictor[Cell]) -> None:
    evictor.claim("long", cells(1), reuse=0.5, back_in_s=30.0, now=20.0)
    evictor.claim("old", cells(2), reuse=0.5, now=0.0)
    evictor.claim("endless", cells(3), reuse=0.5, back_in_s=3_000.0, now=70.0)
    evictor.claim("soon", cells(4), reuse=0.5, now=20.0)
    evictor.expect("soon", 0.5, back_in_s=1.0, now=20.0)
    assert names(evictor.victims(9)) == [1, 2, 3, 4]


def overwrite(evictor: Evictor[Cell], count: int, *, reuse: float = 0.5, now: float) -> None:
    """One block after the other, of threads with this reuse, in a cache of a hundred."""
    for each in range(10_000, 10_000 + count):
        evictor.claim("rest", cells(*range(1_000, 1_099)), reuse=1.0, now=now)
        evictor.claim(each, cells(each), reuse=reuse, now=now)
        assert names(evictor.victims(1)) == [each]


@pytest.mark.parametrize(("others", "outlives"), [(0.5, 75), (0.7, 42), (0.25, 2_000), (0.0, 2_000)])
def test_a_guess_of_reuse_is_outweighed_by_the_turnover_of_what_is_likely(
    evictor: Evictor[Cell], others: float, outlives: int
) -> None:
    """However quick that is, here no time passes; not by that of what nobody is expected to want."""
    evictor.claim("sure", cells(*range(100)), reuse=0.95, now=0.0)
    left = 0
    for each in range(1_000, 3_000):
        evictor.claim(each, cells(each), reuse=others, now=0.0)
        if names(evictor.victims(1)) != [each]:
            break
        left += 1
    assert left == pytest.approx(outlives, rel=0.05)


@pytest.mark.parametrize(("took_s", "goes_first"), [(10.0, 2), (1_000.0, 1)])
def test_how_soon_somebody_returns_counts_against_the_turnover_of_late(
    evictor: Evictor[Cell], took_s: float, goes_first: int
) -> None:
    for each in range(200):
        overwrite(evictor, 1, now=(each + 1) * took_s / 200)
    evictor.claim("older", cells(1), reuse=1.0, back_in_s=0.0, now=took_s)
    overwrite(evictor, 50, now=took_s)
    evictor.claim("later", cells(2), reuse=1.0, back_in_s=12.0, now=took_s)
    order = [each for each in names(evictor.victims(200)) if each in (1, 2)]
    assert order[0] == goes_first


@pytest.mark.parametrize("slow", [0, 500], ids=["the cache filled", "the turnover was slow"])
def test_what_was_slow_long_ago_is_forgotten(evictor: Evictor[Cell], slow: int) -> None:
    for each in range(slow):
        overwrite(evictor, 1, now=2.0 * each)
    for each in range(500):
        overwrite(evictor, 1, now=1_000.0 + each / 100)
    evictor.claim("older", cells(1), reuse=0.9, now=1_005.0)
    overwrite(evictor, 20, now=1_005.0)
    evictor.claim("later", cells(2), reuse=0.9, back_in_s=1.0, now=1_005.0)
    assert [each for each in names(evictor.victims(200)) if each in (1, 2)] == [2, 1]


def test_no_time_at_all_leaves_an_order(evictor: Evictor[Cell]) -> None:
    overwrite(evictor, 2_000, now=5.0)
    evictor.claim("now", cells(1), reuse=0.5, back_in_s=0.0, now=5.0)
    evictor.claim("later", cells(2), reuse=0.5, back_in_s=9.0, now=5.0)
    assert [each for each in names(evictor.victims(200)) if each in (1, 2)] == [2, 1]


def test_of_what_is_over_the_oldest_goes_first(evictor: Evictor[Cell]) -> None:
    evictor.claim("old", cells(1), reuse=0.0, now=0.0)
    evictor.claim("new", cells(2), reuse=0.0, now=1.0)
    evictor.wake("old")
    assert names(evictor.victims(2)) == [1, 2]


def test_what_turns_out_to_be_over_counts_for_no_turnover(evictor: Evictor[Cell]) -> None:
    evictor.claim("a", cells(1), reuse=0.9, now=0.0)
    evictor.expect("a", 0.1, now=0.0)
    assert names(evictor.victims(1)) == [1] and evictor._turnovers == 0.0


TOUCHES = st.lists(st.tuples(st.integers(0, 3), st.integers(0, 3), st.integers(0, 6)), max_size=60)


@given(TOUCHES)
def test_without_reuse_size_and_returns_the_order_is_lru(touches: list[tuple[int, int, int]]) -> None:
    """Threads that go on from any earlier turn: a turn is a path of a tree of blocks."""
    evictor: Evictor[Cell] = Evictor(EvictionConfig(beta=0.0, gamma=0.0))
    there: dict[tuple[int, ...], Cell] = {}
    used: dict[tuple[int, ...], tuple[int, int]] = {}
    for now, (who, branch, depth) in enumerate(touches):
        paths = [(branch,) * length for length in range(1, depth + 1)]
        for path in paths:
            there.setdefault(path, Cell(len(there), path))
            used[path] = (now, -len(path))
        evictor.claim(who, [there[path] for path in paths], reuse=0.5, now=float(now))
    expected = [there[path].block_id for path in sorted(used, key=lambda path: used[path])]
    assert names(evictor.victims(len(there))) == expected


def test_what_was_overwritten_meanwhile_is_passed_over(evictor: Evictor[Cell]) -> None:
    blocks = cells(1, 2)
    evictor.claim("a", blocks, reuse=0.5, now=0.0)
    blocks[1].block_hash = "somebody else's"
    assert names(evictor.victims(2)) == [1]
    lost = cells(7)
    evictor.claim("b", lost, reuse=0.5, now=0.0)
    lost[0].block_hash = None
    evictor.claim("b", [], reuse=0.5, now=0.0)
    assert evictor.victims(2) == []
    assert evictor._entries == 0


def test_forgetting(evictor: Evictor[Cell]) -> None:
    evictor.claim("a", cells(1, 2), reuse=1.0, now=0.0)
    evictor.forget("a")
    evictor.forget("a")
    assert evictor.victims(3) == [] and evictor._entries == 0
    evictor.claim("b", cells(3), reuse=1.0, now=0.0)
    evictor.clear()
    assert evictor.victims(3) == [] and evictor.chain("b") is None


def test_the_heap_does_not_pile_up(evictor: Evictor[Cell]) -> None:
    evictor.claim("a", cells(1), reuse=1.0, now=0.0)
    for turn in range(1_000):
        evictor.expect("a", 0.5, now=float(turn))
    assert len(evictor._heap) < 100


TURNS = st.tuples(
    st.integers(0, 5), st.integers(0, 10), st.integers(0, 10), st.floats(0, 1), st.integers(0, 12)
)


@given(st.lists(TURNS, max_size=60))
def test_leaf_before_parent_and_no_block_twice(turns: list[tuple[int, int, int, float, int]]) -> None:
    evictor: Evictor[Cell] = Evictor(EvictionConfig())
    shared = cells(*range(10))
    fresh, now = 100, 0.0
    live: dict[str, list[Cell]] = {}
    for who, common, own, reuse, wanted in turns:
        now += 1.0
        chain = [each for each in shared[:common] if each.block_hash is not None]
        chain = chain if len(chain) == common else chain[:0]
        chain += cells(*range(fresh, fresh + own))
        fresh += own
        owner = f"s{who}"
        evictor.claim(owner, chain, reuse=reuse, now=now)
        live[owner] = chain
        found = evictor.victims(wanted)
        assert evictor._entries == sum(len(each.blocks) for each in evictor._chains.values())
        assert len(found) <= wanted and len({id(each) for each in found}) == len(found)
        for block in found:
            assert block.block_hash is not None
            block.block_hash = None
        for owner, chain in live.items():
            claimed = evictor.chain(owner)
            left = [] if claimed is None else claimed.blocks
            assert left == chain[: len(left)], "it goes from the leaf on"
        for claimed in evictor._chains.values():
            assert all(block.block_hash is not None for block in claimed.blocks), (
                "and not while it is claimed"
            )


def test_claims_on_what_is_never_overwritten_are_bounded() -> None:
    evictor: Evictor[Cell] = Evictor(EvictionConfig(), max_entries=40)
    shared = cells(*range(10))
    for number in range(1_000):
        evictor.claim(f"s{number}", shared, reuse=0.5, now=float(number))
    assert len(evictor) == 4
    assert evictor.chain("s999") and not evictor.chain("s900")
    assert len(evictor._heap) < 100
    assert len(evictor.victims(99)) == 10
    assert (len(evictor), evictor._entries) == (0, 0)


def test_a_claim_larger_than_the_bound_is_kept_alone() -> None:
    evictor: Evictor[Cell] = Evictor(EvictionConfig(), max_entries=4)
    evictor.claim("a", cells(1), reuse=0.5, now=0.0)
    evictor.claim("b", cells(*range(10, 20)), reuse=0.5, now=1.0)
    assert len(evictor) == 1 and len(evictor.victims(99)) == 10
