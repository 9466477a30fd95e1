"""A short run of every target, with inputs that Hypothesis chooses and can make smaller."""

import random

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.examples import examples
from tests.fuzz import runner
from tests.fuzz.targets import TARGETS, Target


@pytest.mark.parametrize("target", TARGETS, ids=lambda target: target.name)
@settings(
    max_examples=examples(60),
    deadline=None,
    derandomize=True,
    database=None,
    suppress_health_check=list(HealthCheck),
)
@given(rng=st.randoms(use_true_random=False))
def test_it_holds_for_any_input(target: Target, rng: random.Random) -> None:
    target.check(target.make(rng))


@pytest.mark.parametrize("target", TARGETS, ids=lambda target: target.name)
def test_it_holds_for_many(target: Target) -> None:
    outcome = runner.run(runner.Batch(target.name, 0, 0, int(examples(500) * target.share)))
    assert outcome.crashes == []
