"""Several steps in one go leave behind what single steps would."""

from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from gateway.domain.ids import ReplicaId
from lab.simulator.engine import build_engines
from lab.simulator.engine.options import EngineOptions, EngineSpec, SchedulingPolicy
from lab.simulator.kernel import Kernel
from tests.examples import examples
from tests.lab.simulator.engine_log import Log, make_turn
from tests.lab.simulator.worlds import IMPORTS_VLLM, LITTLE

pytestmark = IMPORTS_VLLM

BLOCK = 16


TURNS = st.lists(
    st.tuples(
        st.floats(0, 3, allow_nan=False),  # when
        st.integers(1, 400),  # prompt
        st.integers(1, 120),  # output
        st.integers(0, 200),  # shared with others
    ),
    min_size=1,
    max_size=12,
)


def run(turns: list[tuple[float, int, int, int]], blocks: int, looks: list[float], **options: Any) -> Any:
    """What was heard, and what the engine's books are at the end."""
    kernel = Kernel()
    log = Log(kernel)
    spec = EngineSpec(name=ReplicaId("a"), profile=LITTLE, kv_blocks=blocks, noise=0.1)
    engine_options = EngineOptions(block_size=BLOCK, max_model_len=2048, max_num_seqs=6, **options)
    (engine,) = build_engines([spec], engine_options, kernel=kernel, listener=log, seed=1)
    for number, (when_s, prompt, output, shared) in enumerate(turns):
        turn = make_turn(number, prompt, output, shared, block_size=BLOCK, now=when_s)
        turn.marks = (output // 3 + 1, output // 2 + 1) if number % 2 and output > 6 else ()
        kernel.at(when_s, engine.submit, turn)
    for when_s in looks:
        kernel.at(when_s, engine.settle)
    kernel.run()
    assert engine.turns == 0
    pool = engine.scheduler.kv_cache_manager.block_pool
    free = [block.block_hash for block in pool.free_block_queue.get_all_free_blocks()]
    assert len(free) == blocks - 1
    counts = engine.counts
    return log.events, free, counts.steps, counts.computed_tokens, counts.scheduled_steps, counts.busy_s


@settings(max_examples=examples(150), deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(
    TURNS,
    st.sampled_from([40, 60, 100, 400]),
    st.lists(st.floats(0, 5, allow_nan=False), max_size=4),
    st.sampled_from(SchedulingPolicy),
)
def test_the_same_as_single_steps(
    turns: list[tuple[float, int, int, int]], blocks: int, looks: list[float], policy: SchedulingPolicy
) -> None:
    """Without pressure (400 blocks) and with enough of it for preemptions (40)."""
    *jumped, passes, busy_s = run(turns, blocks, looks, scheduling_policy=policy)
    *stepped, single_passes, single_busy_s = run(
        turns, blocks, looks, scheduling_policy=policy, takes_stretches=False
    )
    assert jumped == stepped
    assert passes <= single_passes
    assert busy_s == pytest.approx(single_busy_s)


def test_marks_are_told_with_the_token_that_reaches_them() -> None:
    turns = [(0.0, 100, 3, 0), (0.0, 100, 120, 0)]
    events, *_ = run(turns, 100, [])
    [first] = [event[0] for event in events if event[1:] == ("first token", 1)]
    [end] = [event[0] for event in events if event[1:3] == ("finished", 1)]
    reached = [(event[0], event[3]) for event in events if event[1] == "reached"]
    assert [tokens for _, tokens in reached] == [41, 61]
    for at_s, tokens in reached:
        assert (at_s - first) / (end - first) == pytest.approx((tokens - 1) / 119, rel=0.1)


def test_there_are_preemptions_in_such_runs() -> None:
    turns = [(0.0, 200, 120, 0)] * 5
    events, *_ = run(turns, 60, [])
    assert any(event[1] == "finished" and event[4] for event in events)


def test_a_stretch_saves_passes() -> None:
    turns = [(0.0, 100, 120, 0)]
    *_, steps, _, passes, _ = run(turns, 100, [])
    assert (steps, passes) == (120, 2)  # the prefill, and the step that ends the turn


@pytest.mark.parametrize("prompt", [511, 512, 513, 1022, 1023])
def test_a_prompt_may_end_with_a_chunk_of_one_token(prompt: int):
    turns = [(0.0, 50, 100, 0), (0.5, prompt, 20, 0)]
    stretched = run(turns, 400, [])
    stepped = run(turns, 400, [], takes_stretches=False)
    assert stretched[0] == stepped[0] and stretched[-1] == pytest.approx(stepped[-1])
