"""Durations where a corpus has none."""

from statistics import mean

import pytest

from lab.workload.pacing import ANSWER_CHARS_PER_S, FIRST_TOKEN_S, TOOL_S, USER_S, answer_s, gap_s
from lab.workload.sessions import rng_of


def test_means_are_the_stated_ones():
    rng = rng_of(0, "means")
    assert mean(answer_s(rng, "") for _ in range(5000)) == pytest.approx(FIRST_TOKEN_S, rel=0.1)
    assert mean(gap_s(rng, "tool") for _ in range(5000)) == pytest.approx(TOOL_S, rel=0.1)
    assert mean(gap_s(rng, "user") for _ in range(5000)) == pytest.approx(USER_S, rel=0.1)


def test_a_longer_answer_takes_longer():
    short, long = answer_s(rng_of(0, "x"), "a"), answer_s(rng_of(0, "x"), "a" * 401)
    assert long - short == pytest.approx(400 / ANSWER_CHARS_PER_S)
