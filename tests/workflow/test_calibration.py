"""Calibration: confidence is how often such predictions were right; the threshold keeps its promise."""

import random
from typing import Any

import msgspec
import pytest

from gateway.workflow.calibration import Calibration, CalibrationConfig


def calibration(**settings: Any) -> Calibration:
    return Calibration(msgspec.convert(settings, CalibrationConfig))


def test_nothing_is_known_at_first():
    known = calibration()
    assert known.confidence(0.8) == pytest.approx(0.8) and known.threshold == 0.9


def test_confidence_follows_what_happens():
    known, rng = calibration(), random.Random(1)
    for _ in range(3000):
        share = rng.random()
        known.learn(share, was_right=rng.random() < share**2)  # overconfident
    for share in (0.3, 0.6, 0.9):
        assert known.confidence(share) == pytest.approx(share**2, abs=0.07)
    assert all(0 <= known.confidence(share / 100) <= 1 for share in range(101))


def test_the_threshold_rises_until_enough_are_right():
    known, rng = calibration(), random.Random(2)
    acted = []
    for number in range(6000):
        share = rng.uniform(0.5, 1.0)
        was_right = rng.random() < share - 0.05
        if number > 1000 and known.confidence(share) >= known.threshold:
            acted.append(was_right)
        known.learn(share, was_right=was_right)
    assert len(acted) > 500 and sum(acted) / len(acted) >= 0.87
    assert 0.7 < known.threshold < 0.95


def test_the_threshold_is_never_below_theta():
    known = calibration()
    for _ in range(500):
        known.learn(0.75, was_right=True)
    assert known.threshold == pytest.approx(0.7, abs=0.3) and known.threshold >= 0.7


def test_ends_do_not_make_up_for_others():
    known = calibration()
    before = known.threshold
    for _ in range(500):
        known.learn(0.75, was_right=True, is_end=True)
    assert known.threshold == before and known.confidence(0.75) > 0.8


def test_what_was_supposed_is_taken_back():
    known = calibration()
    known.suppose(0.9, was_right=True)
    assert known.confidence(0.92) > 0.92
    known.suppose(0.9, was_right=True, by=-1.0)
    assert known.confidence(0.92) == pytest.approx(0.92)
