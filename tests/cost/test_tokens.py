import math
import random

import pytest

from gateway.cost.tokens import Counted, TokensPerByte


def test_four_bytes_a_token_at_first() -> None:
    guess = TokensPerByte().guess(4000)
    assert guess.tokens == pytest.approx(1000)
    assert guess.low < 500 and guess.high > 2000


def test_one_report_is_believed() -> None:
    learned = TokensPerByte()
    learned.observe(Counted(3000, 1000))
    assert learned.guess(6000).tokens == pytest.approx(2000)


def test_reports_are_averaged_and_their_error_is_told() -> None:
    learned, rng = TokensPerByte(), random.Random(1)
    within = 0
    for number in range(1000):
        size = rng.randint(1_000, 50_000)
        tokens = int(size / 3.5 * rng.lognormvariate(0, 0.1))
        guess = learned.guess(size)
        within += guess.low <= tokens <= guess.high if number >= 100 else 0
        learned.observe(Counted(size, tokens))
    assert learned.ratio == pytest.approx(1 / 3.5, rel=0.05)
    assert within / 900 == pytest.approx(0.9, abs=0.05)
    guess = learned.guess(35_000)
    assert guess.low > 7_000 and guess.high < 14_000


def test_of_a_conversation_that_goes_on_only_the_rest_is_guessed() -> None:
    learned = TokensPerByte()
    guess = learned.guess(104_000, before=Counted(100_000, 40_000))
    assert guess.tokens == pytest.approx(41_000)
    assert guess.low > 40_000 and guess.high - guess.low < 5_000


def test_a_conversation_that_shrank_is_guessed_anew() -> None:
    assert TokensPerByte().guess(4_000, before=Counted(8_000, 3_000)).tokens == pytest.approx(1_000)


def test_what_a_turn_adds_is_what_it_teaches() -> None:
    learned = TokensPerByte()
    learned.observe(Counted(12_000, 4_000), before=Counted(10_000, 3_000))
    assert learned.ratio == pytest.approx(0.5)


def test_a_turn_that_did_not_grow_teaches_by_its_whole() -> None:
    learned = TokensPerByte()
    learned.observe(Counted(8_000, 1_000), before=Counted(10_000, 3_000))
    assert learned.ratio == pytest.approx(1 / 8)


@pytest.mark.parametrize("counted", [Counted(0, 10), Counted(10, 0)])
def test_nothing_teaches_nothing(counted: Counted) -> None:
    learned = TokensPerByte()
    learned.observe(counted)
    assert learned.ratio == pytest.approx(0.25)


def test_a_picture_moves_the_ratio_a_little() -> None:
    learned = TokensPerByte()
    for _ in range(100):
        learned.observe(Counted(4_000, 1_000))
    learned.observe(Counted(4_000_000, 1_000))
    assert learned.ratio == pytest.approx(0.25 * math.exp(-1 / 50))
