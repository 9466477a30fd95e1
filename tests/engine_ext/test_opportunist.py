"""Chunks shrink by halves, to a block, to nothing; they never grow and always fit."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from turnpike_vllm.opportunist import shrink


@pytest.mark.parametrize(
    ("tokens", "computed", "held", "free", "chunk"),
    [
        (1_000, 0, 0, 100, 1_000),
        (1_000, 0, 0, 50, 500),
        (1_000, 0, 0, 31, 250),
        (1_000, 0, 0, 1, 16),
        (1_000, 0, 0, 0, 0),
        (1_000, 8, 1, 0, 8),  # what is left of the last block
        (4, 30, 2, 0, 2),
        (1_000, 16, 1, 0, 0),
    ],
)
def test_by_halves(tokens: int, computed: int, held: int, free: int, chunk: int) -> None:
    assert shrink(tokens, computed=computed, held_blocks=held, free_blocks=free, block_size=16) == chunk


@given(
    st.integers(1, 10_000),
    st.integers(0, 5_000),
    st.integers(0, 20),
    st.integers(0, 700),
    st.integers(1, 128),
)
def test_it_fits(tokens: int, computed: int, extra: int, free: int, size: int) -> None:
    held = -(-computed // size) + extra
    chunk = shrink(tokens, computed=computed, held_blocks=held, free_blocks=free, block_size=size)
    assert 0 <= chunk <= tokens
    assert -(-(computed + chunk) // size) <= held + free
    least = min(tokens, size - computed % size)
    assert chunk >= least or -(-(computed + least) // size) > held + free
