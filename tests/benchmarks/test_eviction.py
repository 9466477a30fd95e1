"""The policies of the eviction benchmark against each other, where the best is known."""

from pathlib import Path
from typing import Any

import pytest

from benchmarks.eviction import Lru, Ours, WaLru, belady, simulate
from benchmarks.eviction_traces import (
    BLOCK,
    BYTES_PER_TOKEN,
    IDLE_REUSE,
    TOOL_REUSE,
    Access,
    exchanged,
    expected,
    generated,
    peak_live,
    play,
)
from lab.evaluation.recording import read_recording
from tests.lab.evaluation.recordings import Recorder


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


def test_turns_before_the_first_that_counts_are_played_and_not_counted() -> None:
    accesses = turns((0, [1, 2]), (1, [3, 4]), (0, [1, 2, 5]))
    for policy in (Lru(9), Lru(2)):
        assert simulate(policy, accesses, 2) == (1 if policy.size == 9 else 3)
    assert belady(9, accesses, 2) == 1


def test_recorded_turns_share_what_their_parents_sent(tmp_path: Path) -> None:
    recorder = Recorder()
    block = "x" * BLOCK * BYTES_PER_TOKEN
    said: list[dict[str, Any]] = [{"role": "user", "content": 3 * block}]
    call = {"id": "c", "type": "function", "function": {"name": "bash", "arguments": "{}"}}
    asks: dict[str, Any] = {"role": "assistant", "content": "Looking.", "tool_calls": [call]}
    recorder.exchange("a", said, asks, lasts=2.0)
    longer: list[dict[str, Any]] = [*said, asks, {"role": "tool", "tool_call_id": "c", "content": 2 * block}]
    for answer in ("Done.", "Done, too."):
        recorder.exchange("a", longer, {"role": "assistant", "content": answer})
        longer = [*longer, {"role": "assistant", "content": answer}, {"role": "user", "content": block}]
    fork = [*said, asks, {"role": "tool", "tool_call_id": "c", "content": block}]
    recorder.exchange("a", fork, {"role": "assistant", "content": "Not quite."})
    recorder.exchange("b", said, asks)
    one, two, three, forked, other = exchanged(read_recording(recorder.write(tmp_path / "r.jsonl")))
    assert two.prompt[: len(one.prompt)] == one.prompt and three.prompt[: len(two.prompt)] == two.prompt
    assert 3 <= len(one.prompt) < len(two.prompt) < len(three.prompt)
    assert one.owner == two.owner == three.owner
    assert len({one.owner, forked.owner, other.owner}) == 3
    assert forked.prompt[: len(one.prompt)] == one.prompt and forked.prompt[-1] != two.prompt[-1]
    assert not set(other.prompt) & set(one.prompt)
    assert (one.reuse, two.reuse, one.back_in_s) == (TOOL_REUSE, IDLE_REUSE, None)


def test_what_is_told_of_recorded_turns_is_what_the_workflow_view_says(tmp_path: Path) -> None:
    recorder = Recorder()
    for number in range(60):
        recorder.run(f"s{number}", steps=2)
    found = exchanged(read_recording(recorder.write(tmp_path / "r.jsonl")))
    late = found[-30:]
    goes_on = [each.reuse for at, each in enumerate(late) if at % 3 < 2]
    ends = [each.reuse for at, each in enumerate(late) if at % 3 == 2]
    assert min(goes_on) > 0.5 > max(ends)
    assert all(each.back_in_s == pytest.approx(1.0, abs=0.2) for at, each in enumerate(late) if at % 3 < 2)
