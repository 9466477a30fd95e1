"""Prefill ahead: what pays, and what became of it."""

import pytest

from gateway.domain.request import Usage
from gateway.prefill_ahead.worth import Outcome, PrefillAheadConfig, outcome_of, pays

CONFIG = PrefillAheadConfig(enabled=True)


@pytest.mark.parametrize(
    ("prefill_s", "pause_s", "probability", "running", "does"),
    [
        (2.0, 2.0, 1.0, 100, True),  # what is right is only done sooner, whoever runs
        (2.0, 2.0, 0.8, 0, True),
        (2.0, 2.0, 0.8, 9, False),
        (2.0, 2.0, 0.8, 7, True),  # gains 1.6 s, costs 7 × 0.2 s
        (2.0, 0.1, 0.8, 2, False),  # tools that are over at once leave nothing to gain
        (0.04, 9.0, 1.0, 0, False),
        (2.0, 2.0, 0.0, 0, False),
    ],
)
def test_what_pays(prefill_s, pause_s, probability, running, does):
    found = pays(CONFIG, prefill_s=prefill_s, pause_s=pause_s, probability=probability, running=running)
    assert found == does


def usage(prompt: int, cached: int | None) -> Usage:
    return Usage(prompt_tokens=prompt, cached_tokens=cached, output_tokens=1)


@pytest.mark.parametrize(
    ("computed", "found", "is_right", "outcome"),
    [
        (usage(1000, 100), usage(1500, 1000), True, (Outcome.USED, 900)),
        (usage(1000, 100), usage(1500, 960), True, (Outcome.USED, 860)),
        (usage(1000, 100), usage(1500, 500), True, (Outcome.PARTLY_USED, 400)),
        (usage(1000, 100), usage(1500, 100), True, (Outcome.LOST, 0)),
        (usage(1000, 100), usage(1500, None), True, (Outcome.LOST, 0)),
        (usage(1000, 990), usage(1500, 990), True, (Outcome.USED, 0)),  # there was only its last block to do
        (usage(1000, 1000), usage(1500, 1000), True, (Outcome.USED, 0)),
        (usage(1000, 100), usage(1500, 1000), False, (Outcome.WRONG, 0)),
        (usage(1000, 100), None, True, (Outcome.CANCELLED, 0)),
        (None, usage(1500, 700), True, (Outcome.LATE, 0)),
    ],
)
def test_what_became_of_it(computed, found, is_right, outcome):
    assert outcome_of(computed, found, is_right=is_right) == outcome
