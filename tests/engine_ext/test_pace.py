"""The measured time of a step."""

import random

import pytest

from turnpike_vllm.pace import Pace


def taught(steps: int = 300, *, noise: float = 0.0, seed: int = 1) -> Pace:
    rng, pace = random.Random(seed), Pace()
    for _ in range(steps):
        tokens, context = rng.choice([(8, 20_000), (32, 90_000), (2_048, 0), (512, 40_000)])
        seconds = 0.003 + 2e-5 * tokens + 5e-8 * context
        pace.observe(seconds * (1 + rng.uniform(-noise, noise)), tokens=tokens, context=context)
    return pace


def test_it_learns_what_steps_cost() -> None:
    pace = taught()
    assert pace.steps == 300
    assert pace.per_token_s == pytest.approx(2e-5, rel=0.01)
    assert pace.per_context_s == pytest.approx(5e-8, rel=0.05)
    assert pace.predict(tokens=1_000, context=10_000) == pytest.approx(0.0235, rel=0.01)


def test_noise_does_not_throw_it_off() -> None:
    assert taught(noise=0.2).predict(tokens=2_048, context=0) == pytest.approx(0.044, rel=0.1)


def test_it_follows_a_change() -> None:
    pace = taught()
    for _ in range(400):
        pace.observe(0.003 + 8e-5 * 2_048, tokens=2_048, context=0)
        pace.observe(0.003 + 8e-5 * 8, tokens=8, context=0)
    assert pace.per_token_s == pytest.approx(8e-5, rel=0.05)


def test_room_in_a_step() -> None:
    pace = taught()
    assert pace.tokens_within(0.05, rows=10, context=20_000) == pytest.approx(2_290, rel=0.02)
    assert pace.tokens_within(0.001, rows=10, context=20_000) == 0


def test_nothing_is_ever_negative() -> None:
    pace = Pace()
    for tokens in (1_000, 10, 500, 3):
        pace.observe(0.1 / tokens, tokens=tokens, context=tokens * 10)
    assert pace.per_token_s > 0 and pace.per_context_s >= 0 and pace.predict(tokens=5, context=5) > 0


def test_many_steps_of_one_kind_do_not_blow_it_up() -> None:
    pace = Pace()
    for _ in range(20_000):
        pace.observe(0.01, tokens=16, context=1_000)
    assert pace.predict(tokens=16, context=1_000) == pytest.approx(0.01, rel=0.01)
