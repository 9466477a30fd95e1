"""What a transfer is expected to take: as it was seen, and again as believed when that was long ago."""

import pytest

from gateway.cost.transfer import TransferRate


def test_at_first_it_is_what_is_believed():
    assert TransferRate(50_000).transfer_s(10_000, now=0.0) == pytest.approx(0.2)


@pytest.mark.parametrize("tokens_per_s", [5_000, 500_000])
def test_it_becomes_what_is_seen(tokens_per_s):
    rate = TransferRate(50_000)
    for number in range(40):
        rate.observe(8_000, 8_000 / tokens_per_s, now=0.1 * number)
    assert rate.transfer_s(10_000, now=4.0) == pytest.approx(10_000 / tokens_per_s, rel=0.1)


def test_one_that_came_sooner_than_predicted_took_nothing():
    rate = TransferRate(50_000)
    for _ in range(100):
        rate.observe(8_000, -3.0, now=0.0)
    assert 0.0 <= rate.transfer_s(10_000, now=0.0) < 0.001


def test_what_once_was_slow_is_tried_again():
    rate = TransferRate(50_000)
    for _ in range(40):
        rate.observe(8_000, 8.0, now=0.0)
    assert rate.transfer_s(10_000, now=0.0) > 9
    assert rate.transfer_s(10_000, now=3_600.0) == pytest.approx(0.2, rel=0.05)


def test_no_tokens_teach_nothing():
    rate = TransferRate(50_000)
    rate.observe(0.0, 5.0, now=0.0)
    assert rate.transfer_s(10_000, now=0.0) == pytest.approx(0.2)
