"""The brain's own refusals: the reason, and words that help a person."""

from gateway.core import refusals
from gateway.domain.decision import RefusalReason
from tests.core.playbook import failed


def test_each_has_its_reason():
    assert refusals.draining().reason is RefusalReason.DRAINING
    assert refusals.unknown_state("resp_1").reason is RefusalReason.STATE_NOT_FOUND
    assert "resp_1" in refusals.unknown_state("resp_1").message
    assert "m1" in refusals.unknown_model("m1").message


def test_clients_that_waited_too_long_come_back_at_different_times():
    pauses = [refusals.waited_too_long(number).retry_after_s for number in range(58)]
    assert set(pauses) == set(range(1, 30)) and pauses[0] != pauses[1]


def test_an_attempt_fails_in_three_ways():
    for event, reason in (
        (failed("r", was_sent=True, timed_out=True), RefusalReason.UPSTREAM_TIMEOUT),
        (failed("r", was_sent=True), RefusalReason.UPSTREAM_BROKEN),
        (failed("r"), RefusalReason.UPSTREAM_UNREACHABLE),
    ):
        assert refusals.attempt_failed(event).reason is reason
