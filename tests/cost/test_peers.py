"""What is expected of a replica of which nothing is known: what is expected of another one of its pool."""

import pytest

from gateway.config.profiles import load_profile
from gateway.cost.estimator import Estimator, Load, Peers, TurnWork

WORK = TurnWork(new_tokens=1_000, cached_tokens=4_000, output_tokens=100)
IDLE = Load()


def saw(estimator: Estimator, seconds: float, *, times: int = 1) -> Estimator:
    """So long each such turn took, half of it until the first token."""
    for _ in range(times):
        prediction = estimator.predict(WORK, IDLE)
        estimator.observe_first_token(prediction, seconds / 2)
        estimator.observe_end(prediction, duration_s=seconds, output_tokens=100, first_token_s=seconds / 2)
    return estimator


def expected_s(estimator: Estimator) -> float:
    return estimator.predict(WORK, IDLE).completion.seconds


def test_it_is_expected_to_be_as_the_one_that_was_seen():
    peers = Peers()
    newcomer, seen = Estimator(peers=peers), Estimator(peers=peers)
    assert expected_s(newcomer) == expected_s(Estimator())
    saw(seen, 40.0)
    assert expected_s(newcomer) == expected_s(seen) > 10 * expected_s(Estimator())
    assert newcomer.turn_s(1_000, 4_000, 100) == seen.turn_s(1_000, 4_000, 100)
    assert newcomer.usual_output == pytest.approx(100)
    saw(seen, 80.0, times=8)
    assert expected_s(newcomer) == expected_s(seen), "which goes on learning"


def test_its_error_bars_stay_those_of_a_guess():
    peers = Peers()
    saw(Estimator(peers=peers), 40.0, times=40)
    found, guess = (each.predict(WORK, IDLE).first_token for each in (Estimator(peers=peers), Estimator()))
    assert found.p90_s / found.seconds == pytest.approx(guess.p90_s / guess.seconds)
    assert found.p10_s / found.seconds == pytest.approx(guess.p10_s / guess.seconds)


def test_its_own_first_answer_counts_more():
    peers = Peers()
    saw(Estimator(peers=peers), 4.0)
    newcomer, alone = Estimator(peers=peers), Estimator()
    assert newcomer.is_unseen
    saw(newcomer, 40.0)
    assert not newcomer.is_unseen
    assert expected_s(newcomer) == pytest.approx(expected_s(saw(alone, 40.0)))


def test_of_several_the_median_says():
    peers = Peers()
    quick, usual, slow = (saw(Estimator(peers=peers), seconds) for seconds in (2.0, 8.0, 90.0))
    newcomer = Estimator(peers=peers)
    assert expected_s(newcomer) == expected_s(usual)
    peers.left(slow)
    assert expected_s(newcomer) == expected_s(quick), "the quicker one of two"
    peers.left(quick)
    peers.left(usual)
    assert expected_s(newcomer) == expected_s(Estimator())


def test_with_a_profile_nobody_else_is_asked_and_others_are_told():
    profile = load_profile("qwen3-14b@l40s")
    peers = Peers()
    stated = Estimator(profile, peers)
    assert not stated.is_unseen
    assert expected_s(Estimator(peers=peers)) == expected_s(stated) == expected_s(Estimator(profile))
    saw(Estimator(peers=peers), 90.0)
    assert expected_s(stated) == expected_s(Estimator(profile))
