from itertools import pairwise

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.config.profiles import load_profile
from gateway.cost.formula import context_product
from lab.simulator.engine.roofline import Batch, Turn, chunks, decode_s, isolated_turn_s, prefill_s, step_s

H200 = load_profile("qwen3-coder-30b-a3b@h200")
DENSE = load_profile("qwen3-14b@h100")
tokens = st.integers(1, 8192)


@given(new=tokens, context=st.integers(0, 130_000), rows=st.integers(0, 64))
def test_a_step_is_the_reference_formula(new: int, context: int, rows: int) -> None:
    total = new + rows
    weights = 2.4e9 + 58e9 * (1 - (1 - 8 / 128) ** total)
    attention = 786432 * new * context
    read = 98304 * rows * context
    expected = (
        0.004
        + max(2 * 3.3e9 * total / (0.55 * 790e12), weights / 4.3e12)
        + attention / (0.55 * 790e12)
        + read / 4.3e12
    )
    batch = Batch(
        new_tokens=total, prefill_context_products=new * context, decode_context_tokens=rows * context
    )
    assert step_s(H200, batch) == pytest.approx(expected, rel=1e-14)


@pytest.mark.parametrize(("new", "seconds"), [(30_000, 1.3), (60_000, 4.2), (120_000, 14.9)])
def test_cold_prefill_of_the_reference(new: int, seconds: float) -> None:
    """In chunks of 8,192; each token attends to those before it."""
    assert round(prefill_s(H200, new), 1) == seconds


@given(new=st.integers(1, 40_000), cached=st.integers(0, 100_000))
def test_chunks_add_up_to_the_whole(new: int, cached: int) -> None:
    steps = list(chunks(H200, new, cached))
    assert sum(step.new_tokens for step in steps) == new
    assert max(step.new_tokens for step in steps) <= 8192
    assert sum(s.prefill_context_products for s in steps) == pytest.approx(context_product(new, cached))


@given(first=tokens, second=tokens)
def test_more_work_never_takes_less_time(first: int, second: int) -> None:
    small, large = sorted((first, second))
    for profile in (H200, DENSE):
        assert step_s(profile, Batch(new_tokens=small)) <= step_s(profile, Batch(new_tokens=large))
        assert step_s(profile, Batch(new_tokens=small)) > profile.step_overhead_s


def test_each_row_costs_its_overhead() -> None:
    profile = msgspec.structs.replace(H200, row_overhead_s=0.001)
    for rows in (1, 7):
        batch = Batch(new_tokens=700, rows=rows)
        assert step_s(profile, batch) == pytest.approx(step_s(H200, batch) + 0.001 * rows)


def test_a_dense_model_reads_all_its_weights_for_one_token() -> None:
    one = step_s(DENSE, Batch(new_tokens=1))
    assert one == 0.004 + 28e9 / 3.0e12
    assert step_s(DENSE, Batch(new_tokens=64)) == one  # memory-bound: the others come for free
    assert step_s(DENSE, Batch(new_tokens=8192)) == pytest.approx(0.004 + 2 * 14e9 * 8192 / (0.55 * 790e12))


def test_what_is_cached_is_not_computed_but_attended_to() -> None:
    assert prefill_s(H200, 1_000, 29_000) < prefill_s(H200, 30_000) / 10
    assert prefill_s(H200, 1_000, 29_000) > prefill_s(H200, 1_000)


def test_a_prompt_that_is_cached_entirely_still_takes_a_step() -> None:
    assert prefill_s(H200, 0, 5_000) == prefill_s(H200, 1, 5_000) > 0.004


def test_decoding_is_the_sum_of_its_steps() -> None:
    steps = [step_s(H200, Batch(new_tokens=1, decode_context_tokens=30_000 + n)) for n in range(100)]
    assert decode_s(H200, 30_000, 100) == pytest.approx(sum(steps))
    assert all(a < b for a, b in pairwise(steps))


def test_nothing_decoded_takes_no_time() -> None:
    assert decode_s(H200, 30_000, 0) == 0.0
    assert isolated_turn_s(H200, Turn(new_tokens=100)) == prefill_s(H200, 100)
