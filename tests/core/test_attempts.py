"""What becomes of a request that was sent: how its answer ends, and when it is sent again."""

from typing import Any

import pytest

from gateway.core.lifecycle import LifecycleError
from gateway.domain import records as rec
from gateway.domain.decision import PlacementReason, RefusalReason, SessionSource
from tests.core.playbook import (
    Playbook,
    answer,
    arrived,
    at_once,
    call_seen,
    cut,
    dispatch,
    failed,
    finished,
    first_token,
    left,
    nothing,
    refuse,
    started,
    state_minted,
)

RETRY = PlacementReason.RETRIED_ELSEWHERE


@pytest.mark.parametrize(("end", "outcome"), [(cut("r1"), "cut"), (left("r1", answer()), "client_left")])
def test_an_answer_may_end_badly(end, outcome):
    play = Playbook()
    play >> arrived("r1") << dispatch("r1", to="a")
    play >> started("r1") >> end << nothing
    assert play.seen(rec.GpuEnd)[0].outcome == outcome
    assert not play.brain.live


def test_an_attempt_cannot_fail_once_the_answer_began():
    play = Playbook(replicas="a b")
    play >> arrived("r1") << dispatch("r1", to="a")
    play >> started("r1")
    with pytest.raises(LifecycleError, match="answering cannot fail"):
        play >> failed("r1")
    play >> finished("r1") << nothing


def test_what_was_not_sent_is_tried_elsewhere():
    play = Playbook(replicas="a b", core={"max_outage_s": 0})
    play >> arrived("r1") << dispatch("r1", to="a")
    play >> failed("r1") << dispatch("r1", to="b", because=RETRY)
    play >> failed("r1") << refuse("r1", RefusalReason.UPSTREAM_UNREACHABLE)
    assert [end.outcome for end in play.seen(rec.GpuEnd)] == ["failed", "failed"]
    assert [submit.attempt for submit in play.seen(rec.GpuSubmit)] == [1, 2]


def test_what_was_sent_is_tried_elsewhere_only_if_that_harms_nobody():
    play = Playbook(replicas="a b")
    play >> arrived("r1") << dispatch("r1", to="a")
    play >> failed("r1", was_sent=True) << refuse("r1", RefusalReason.UPSTREAM_BROKEN)
    play >> arrived("r2", is_replayable=True) << dispatch("r2", to="b")
    play >> failed("r2", was_sent=True) << dispatch("r2", to="a", because=RETRY)


POISON = RefusalReason.UPSTREAM_BROKEN_TWICE


def test_what_two_replicas_may_have_died_of_is_sent_no_more():
    play = Playbook(replicas="a b c d", core={"max_attempts": 9})
    play >> arrived("r1", is_replayable=True) << dispatch("r1", to="a")
    play >> failed("r1", was_sent=True) << dispatch("r1", to="b", because=RETRY)
    play >> failed("r1", was_sent=True) << refuse("r1", POISON)


def test_what_was_not_sent_counts_for_nothing_and_a_resend_for_one_attempt():
    play = Playbook(replicas="a b c d", core={"max_attempts": 9})
    play >> arrived("r1", is_replayable=True) << dispatch("r1", to="a")
    play >> failed("r1") << dispatch("r1", to="b", because=RETRY)
    play >> failed("r1", was_sent=True, resends=1) << refuse("r1", RefusalReason.UPSTREAM_BROKEN)


def test_what_timed_out_is_not_tried_again():
    play = Playbook(replicas="a b")
    play >> arrived("r1", is_replayable=True) << dispatch("r1", to="a")
    play >> failed("r1", was_sent=True, timed_out=True) << refuse("r1", RefusalReason.UPSTREAM_TIMEOUT)


def test_attempts_are_bounded():
    play = Playbook(replicas="a b c", core={"max_attempts": 2})
    play >> arrived("r1") << dispatch("r1", to="a")
    play >> failed("r1") << dispatch("r1", to="b", because=RETRY)
    play >> failed("r1") << refuse("r1", RefusalReason.UPSTREAM_UNREACHABLE)


def test_a_failed_attempt_may_have_to_wait_for_the_next():
    play = Playbook(replicas="a b", max_running_per_replica=1)
    play >> arrived("r1") << dispatch("r1", to="a")
    play >> arrived("r2") << dispatch("r2", to="b")
    play >> failed("r1") << nothing
    play >> left("r2") << dispatch("r1", to="b", because=RETRY)


def test_an_answer_that_came_at_once_leaves_the_same_records_as_one_that_came_bit_by_bit():
    def told(*events):
        play = Playbook()
        play.arrives("r1")
        for event in events:
            play >> event
        session = play.arrives("r2", tool_result_ids=("c1",), echoed_ids=("c1",), state_ids=("s1",)).session
        assert session is not None and session.source in (SessionSource.CALL_ID, SessionSource.STATE_ID)
        return play.records

    seen: dict[str, Any] = {"state_ids": ("s1",), "finish_reason": "tool_calls"}
    slowly = told(
        started("r1"), first_token("r1"), call_seen("r1", "c1"), state_minted("r1", "s1"),
        finished("r1", "c1", **seen),
    )  # fmt: skip
    assert told(at_once("r1", "c1", **seen)) == slowly


def test_an_answer_cannot_come_at_once_after_it_began():
    play = Playbook()
    play.begins("r1")
    with pytest.raises(LifecycleError):
        _ = play >> at_once("r1")
