"""Which block is overwritten next: over or not, recency, shared prefixes, leaf before parent."""

from dataclasses import dataclass

import pytest
from hypothesis import given
from hypothesis import strategies as st

from turnpike_vllm.eviction import Evictor


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
    return Evictor()


def test_what_is_over_goes_first_then_what_was_left_longest_ago_from_its_leaf(evictor: Evictor[Cell]) -> None:
    evictor.claim("old", cells(1, 2))
    evictor.claim("new", cells(5, 6))
    evictor.claim("over", cells(3, 4), is_over=True)
    assert names(evictor.victims(3)) == [4, 3, 2]
    assert names(evictor.victims(9)) == [1, 6, 5]
    assert len(evictor) == 0 and not evictor.is_claimed(Cell(1, "h1"))


def test_a_block_in_use_is_never_named_and_its_thread_sleeps_until_woken(evictor: Evictor[Cell]) -> None:
    used = cells(1, 2)
    evictor.claim("a", used, is_over=True)
    evictor.claim("b", cells(3, 4))
    used[1].ref_cnt = 1
    assert names(evictor.victims(1)) == [4]
    used[1].ref_cnt = 0
    evictor.wake("a")
    evictor.wake("nobody")
    assert names(evictor.victims(1)) == [2]


def test_sleepers_are_kept_while_others_suffice(evictor: Evictor[Cell]) -> None:
    used = cells(1)
    used[0].ref_cnt = 1
    evictor.claim("a", used, is_over=True)
    evictor.claim("b", cells(2, 3))
    assert names(evictor.victims(1)) == [3]
    assert names(evictor.victims(1)) == [2]
    used[0].ref_cnt = 0
    assert names(evictor.victims(1)) == [1]


def test_of_what_is_over_the_oldest_goes_first(evictor: Evictor[Cell]) -> None:
    evictor.claim("old", cells(1))
    evictor.claim("new", cells(2), is_over=True)
    evictor.claim("back", cells(3), is_over=True)
    evictor.expect("old", is_over=True)
    evictor.expect("back", is_over=False)
    evictor.expect("nobody", is_over=True)
    evictor.wake("old")
    assert names(evictor.victims(9)) == [1, 2, 3]


TOUCHES = st.lists(st.tuples(st.integers(0, 3), st.integers(0, 3), st.integers(0, 6)), max_size=60)


@given(TOUCHES)
def test_the_order_is_lru(touches: list[tuple[int, int, int]]) -> None:
    """Threads that go on from any earlier turn: a turn is a path of a tree of blocks."""
    evictor: Evictor[Cell] = Evictor()
    there: dict[tuple[int, ...], Cell] = {}
    used: dict[tuple[int, ...], tuple[int, int]] = {}
    for now, (who, branch, depth) in enumerate(touches):
        paths = [(branch,) * length for length in range(1, depth + 1)]
        for path in paths:
            there.setdefault(path, Cell(len(there), path))
            used[path] = (now, -len(path))
        evictor.claim(who, [there[path] for path in paths])
    expected = [there[path].block_id for path in sorted(used, key=lambda path: used[path])]
    assert names(evictor.victims(len(there))) == expected


def test_what_was_overwritten_meanwhile_is_passed_over(evictor: Evictor[Cell]) -> None:
    blocks = cells(1, 2)
    evictor.claim("a", blocks)
    blocks[1].block_hash = "somebody else's"
    assert names(evictor.victims(2)) == [1]
    lost = cells(7)
    evictor.claim("b", lost)
    lost[0].block_hash = None
    evictor.claim("b", [])
    assert evictor.victims(2) == []
    assert evictor._entries == 0


def test_forgetting(evictor: Evictor[Cell]) -> None:
    evictor.claim("a", cells(1, 2))
    evictor.forget("a")
    evictor.forget("a")
    assert evictor.victims(3) == [] and evictor._entries == 0
    evictor.claim("b", cells(3))
    evictor.clear()
    assert evictor.victims(3) == [] and evictor.chain("b") is None


def test_the_heap_does_not_pile_up(evictor: Evictor[Cell]) -> None:
    evictor.claim("a", cells(1))
    for _ in range(1_000):
        evictor.wake("a")
    assert len(evictor._heap) < 100


TURNS = st.tuples(
    st.integers(0, 5), st.integers(0, 10), st.integers(0, 10), st.booleans(), st.integers(0, 12)
)


@given(st.lists(TURNS, max_size=60))
def test_leaf_before_parent_and_no_block_twice(turns: list[tuple[int, int, int, bool, int]]) -> None:
    evictor: Evictor[Cell] = Evictor()
    shared = cells(*range(10))
    fresh = 100
    live: dict[str, list[Cell]] = {}
    for who, common, own, is_over, wanted in turns:
        chain = [each for each in shared[:common] if each.block_hash is not None]
        chain = chain if len(chain) == common else chain[:0]
        chain += cells(*range(fresh, fresh + own))
        fresh += own
        owner = f"s{who}"
        evictor.claim(owner, chain, is_over=is_over)
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
    evictor: Evictor[Cell] = Evictor(max_entries=40)
    shared = cells(*range(10))
    for number in range(1_000):
        evictor.claim(f"s{number}", shared)
    assert len(evictor) == 4
    assert evictor.chain("s999") and not evictor.chain("s900")
    assert len(evictor._heap) < 100
    assert len(evictor.victims(99)) == 10
    assert (len(evictor), evictor._entries) == (0, 0)


def test_a_claim_larger_than_the_bound_is_kept_alone() -> None:
    evictor: Evictor[Cell] = Evictor(max_entries=4)
    evictor.claim("a", cells(1))
    evictor.claim("b", cells(*range(10, 20)))
    assert len(evictor) == 1 and len(evictor.victims(99)) == 10
