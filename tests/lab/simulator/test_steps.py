"""How long a step takes that several turns share."""

from types import SimpleNamespace
from typing import Any

import pytest

from lab.simulator.engine.roofline import Batch, step_s
from lab.simulator.engine.steps import StepTimes
from tests.lab.simulator.worlds import LITTLE


def row(prompt: int, computed: int) -> Any:
    """Of a turn that has computed so many tokens, those of the step included."""
    return SimpleNamespace(request=SimpleNamespace(num_prompt_tokens=prompt, num_computed_tokens=computed))


def test_prompts_cost_their_products_and_those_that_decode_their_contexts() -> None:
    times = StepTimes(LITTLE, noise=0.0, seed="")
    work = {1: row(500, 640), 2: row(300, 301), 3: row(900, 700)}
    decoding = Batch(new_tokens=2, rows=2, decode_context_tokens=639 + 300)
    assert times.next_s({1: 1, 2: 1}, work) == pytest.approx(step_s(LITTLE, decoding))
    products = 200 * (500 + 100)
    both = Batch(new_tokens=202, rows=3, prefill_context_products=products, decode_context_tokens=639 + 300)
    assert times.next_s({1: 1, 2: 1, 3: 200}, work) == pytest.approx(step_s(LITTLE, both))
