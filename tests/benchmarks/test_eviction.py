"""The policies of the eviction benchmark against each other, where the best is known."""

import pytest

from benchmarks.eviction import Lru, Ours, WaLru, belady, simulate
from benchmarks.eviction_traces import Access, expected, generated, peak_live, play


def turns(*chains: tuple[int, list[int]]) -> list[Access]:
    return [Access(float(at), (owner, 0), chain, [], 0.5, "") for at, (owner, chain) in enumerate(chains)]


def test_with_room_for_everything_only_first_touches_are_computed() -> None:
    accesses = turns((0, [1, 2]), (1, [1, 3]), (0, [1, 2, 4]))
    for policy in (Lru(9), WaLru(9), Ours(9)):
        assert simulate(policy, accesses) == 4
    assert belady(9, accesses) == 4


def test_the_oracle_keeps_what_comes_back() -> None:
    accesses = turns((0, [1, 2]), (1, [3, 4]), (0, [1, 2]), (2, [5, 6]), (0, [1, 2]))
    assert belady(4, accesses) == 6
    assert simulate(Lru(2), accesses) == 10


def test_nobody_beats_the_oracle() -> None:
    sessions = generated(12)
    accesses = play(sessions, 1)
    size = max(peak_live(accesses) // 2, *(len(each.prompt) + len(each.answer) for each in accesses))
    best = belady(size, accesses)
    assert all(simulate(policy, accesses) >= best for policy in (Lru(size), WaLru(size), Ours(size)))


def test_prompts_share_what_the_workload_says() -> None:
    first = {"input_tokens": 640, "output_tokens": 64, "tools": [{"name": "t", "duration_s": 2.0}]}
    second = {"input_tokens": 900, "output_tokens": 64, "prefix_of": [0, 0], "prefix_tokens": 704}
    opening = {"turns": [first, second], "shared_key": "k", "shared_tokens": 128}
    one, two, *_ = sorted(play([{"threads": [opening]}] * 2, 1), key=lambda each: (each.owner, each.at))
    assert two.prompt[:11] == one.prompt + one.answer
    assert (one.reuse, two.reuse) == (0.95, 0.5)
    assert two.at - one.at == pytest.approx(1.0 + 0.64 + 2.0)
    other = next(each for each in play([{"threads": [opening]}] * 2, 1) if each.owner == (1, 0))
    assert other.prompt[:2] == one.prompt[:2] and other.prompt[2] != one.prompt[2]


def test_a_return_is_expected_after_what_was_seen_until_then() -> None:
    steps = [(0.0, 0, "a"), (4.0, 0, "a"), (5.0, 1, "b"), (6.0, 0, "a"), (20.0, 1, "b"), (21.0, 2, "b")]
    accesses = [Access(at, (owner, 0), [], [], 0.95, step) for at, owner, step in steps]
    assert [each.back_in_s for each in expected(accesses)] == [None, 4.0, None, 4.0, 15.0, 15.0]
