"""Mixtures: a distribution, whatever the opinions, and the better ones gain weight."""

from math import log

import pytest

from gateway.workflow.mixture import Mixture, Opinion, level


def opinion(kind: int, *shares: float) -> Opinion:
    return Opinion(kind, level(100, is_sure=False), [log(share) for share in shares])


def test_a_mixture_is_a_distribution():
    mixed = Mixture(2).mix([opinion(0, 0.98, 0.01, 0.01), opinion(1, 0.2, 0.3, 0.5)])
    assert sum(mixed) == pytest.approx(1.0) and min(mixed) > 0.003 and mixed[0] == max(mixed)


def test_whoever_is_right_is_believed():
    known = Mixture(2)
    right, wrong = opinion(0, 0.8, 0.2), opinion(1, 0.2, 0.8)
    before = known.mix([right, wrong])[0]
    for _ in range(400):
        known.learn([right, wrong], known.mix([right, wrong]), 0)
    assert known.mix([right, wrong])[0] > max(0.8, before + 0.2)


def test_one_opinion_is_heard_as_well_as_many():
    known = Mixture(8)
    alone = known.mix([opinion(0, 0.9, 0.1)])[0]
    assert alone == pytest.approx(known.mix([opinion(kind, 0.9, 0.1) for kind in range(8)])[0])


def test_levels():
    assert level(1, is_sure=True) != level(1, is_sure=False) and level(1e9, is_sure=True) < 14
    assert level(0.2, is_sure=False) == 0
