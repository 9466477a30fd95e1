"""When a prompt is worth computing elsewhere."""

import pytest

from gateway.routing.disaggregation import DisaggregationConfig, Work, pays


def work(seconds: float, *, turns: int = 0, waits_s: float = 0.0) -> Work:
    return Work(first_token_s=waits_s + seconds, prefill_s=seconds, turns=turns)


@pytest.mark.parametrize(
    ("here", "there", "transfer_s", "is_worth_it"),
    [
        (work(1.0), work(1.0), 0.0, False),  # both are as quick, and nobody is held up
        (work(1.0, turns=4), work(1.0), 0.1, True),
        (work(1.0, turns=4), work(1.0), 1.5, False),  # the transfer takes too long
        (work(1.0, turns=4), work(1.0, waits_s=2.0), 0.1, False),  # others wait there
        (work(1.0, turns=4), work(1.0, turns=4), 0.0, False),  # it would hold up as many there
        (work(1.0), work(0.3), 0.1, True),  # a quicker replica
        (work(0.04, turns=50), work(0.04), 0.0, False),  # too short to be worth a request
        (work(1.0, waits_s=3.0), work(1.0), 0.1, True),  # others wait here
    ],
)
def test_the_sooner_one_computes_it(here, there, transfer_s, is_worth_it):
    config = DisaggregationConfig()
    assert pays(config, new_tokens=9_999, here=here, there=there, transfer_s=transfer_s) == is_worth_it


@pytest.mark.parametrize(("new_tokens", "is_worth_it"), [(999, False), (1_000, True)])
def test_a_threshold_alone_decides(new_tokens, is_worth_it):
    config = DisaggregationConfig(threshold_tokens=1_000)
    slow = work(9.0)
    assert pays(config, new_tokens=new_tokens, here=work(0.01), there=slow, transfer_s=9.0) == is_worth_it
