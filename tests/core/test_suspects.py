"""What becomes of a request that was sent; and bodies that replicas may have died of."""

from functools import partial
from typing import Any

import pytest

from gateway.core import events as ev
from gateway.core.commands import Dispatch, Refuse
from gateway.core.turns import poison_requests as suspects
from gateway.core.turns.lifecycle import LifecycleError
from gateway.domain import records as rec
from gateway.domain.decision import PlacementReason, RefusalReason, SessionSource
from gateway.domain.request import Transcript
from tests.core.playbook import (
    Playbook,
    answer,
    arrived,
    at_once,
    call_seen,
    cut,
    dispatch,
    down,
    failed,
    finished,
    first_token,
    left,
    nothing,
    refuse,
    started,
    state_minted,
    up,
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
    play = Playbook(replicas="a b", core={"no_replica_wait_s": 0})
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


PROMPT: Any = {"transcript": Transcript(body=7), "is_replayable": True}
INPUT: Any = {"body": 7}


def sent(play: Playbook, request: str, body: Any = PROMPT) -> Any:
    decision = play.arrives(request, **body)
    return isinstance(decision, Dispatch) and decision.placement.replica


def breaks_off(play: Playbook, request: str, body: Any = PROMPT, *, dies: bool = True) -> Any:
    replica = sent(play, request, body)
    play >> started(request) >> cut(request) << nothing
    if dies:
        _ = play >> down(replica)
    return replica


def test_an_answer_that_breaks_off_counts_whatever_the_body_is():
    for body in (PROMPT, INPUT):
        play = Playbook(replicas="a b c d")
        assert breaks_off(play, "r1", body) != breaks_off(play, "r2", body)
        play >> arrived("r3", **body) << refuse("r3", POISON)
        assert sent(play, "r4", {"body": 8}), "another body"
        assert isinstance(play.arrives("r5", "another tenant", **body), Dispatch)
        assert sent(play.later(61.0), "r6", body)


def test_while_those_that_answered_with_an_error_may_die_of_it_nobody_else_gets_it():
    play = Playbook(replicas="a b c d")
    failed_on = []
    for request in ("r1", "r2", "r3", "r4", "r5"):
        failed_on.append(sent(play, request))
        play >> at_once(request, status=500) << nothing
    assert len(set(failed_on[:2])) == 2 and set(failed_on[2:]) <= set(failed_on[:2])
    assert sent(play.later(suspects._DIED_WITHIN_S + 0.1), "r6") not in failed_on, "they live"
    play >> at_once("r6", status=500) << nothing
    assert sent(play, "r7", {"transcript": Transcript(body=8)}) not in failed_on, "another body"


def test_a_good_answer_clears_it_and_a_bad_one_does_not():
    ends: list[Any] = [finished("r2"), finished("r2", status=400), left("r2", answer())]
    for end, clears in zip(ends, (True, False, False), strict=True):
        play = Playbook(replicas="a b c d")
        breaks_off(play, "r1")
        sent(play, "r2")
        play >> started("r2") >> end << nothing
        breaks_off(play, "r3")
        assert bool(sent(play, "r4")) is clears, end


def test_whoever_leaves_and_asks_again_does_not_begin_anew():
    play = Playbook(replicas="a b c d")
    sent(play, "r1")
    _ = play >> failed("r1", was_sent=True)
    play.take()
    play >> left("r1") << nothing
    breaks_off(play, "r2")
    play >> arrived("r3", **PROMPT) << refuse("r3", POISON)


def test_one_death_is_one_however_many_requests_of_a_body_it_ended():
    play = Playbook(replicas="a")
    for request in ("r1", "r2", "r3"):
        sent(play, request)
        _ = play >> started(request)
    for request in ("r1", "r2", "r3"):
        _ = play >> cut(request)
    assert sent(play, "r4") == "a"


def test_two_connections_that_one_replica_breaks_are_one_death():
    play = Playbook(replicas="a b c d")
    replica = sent(play, "r1")
    play >> failed("r1", was_sent=True, resends=1) << refuse("r1", RefusalReason.UPSTREAM_BROKEN)
    _ = play >> down(replica)
    assert sent(play, "r2") not in (False, replica)


def test_a_replica_that_dies_after_its_client_left_may_have_died_of_the_body():
    play = Playbook(replicas="a b c d")
    for request in ("r1", "r2"):
        replica = sent(play, request)
        play >> left(request) << nothing
        _ = play >> down(replica)
    play >> arrived("r3", **PROMPT) << refuse("r3", POISON)


def test_a_replica_that_is_found_well_has_not_died():
    for dies in (True, False):
        play = Playbook(replicas="a b c d")
        for request in ("r1", "r2"):
            replica = breaks_off(play, request, dies=dies)
            _ = play.later(0.1) >> up(replica)
        assert bool(sent(play, "r3")) is not dies


def test_one_that_answers_nothing_in_time_may_be_dead_whatever_its_checks_say():
    play = Playbook(replicas="a b c d")
    for request in ("r1", "r2"):
        replica = sent(play, request)
        _ = play >> failed(request, was_sent=True, timed_out=True)
        play.take()
        _ = play.later(0.1) >> up(replica)
    play >> arrived("r3", **PROMPT) << refuse("r3", POISON)


def test_copies_that_are_sent_at_the_same_time_count_together():
    play = Playbook(replicas="a b c d")
    for request in ("r1", "r2"):
        assert sent(play, request)
    first = (play >> failed("r1", was_sent=True)).take()
    assert isinstance(first, Dispatch), "one may have died of it"
    second = (play >> failed("r2", was_sent=True)).take()
    assert isinstance(second, Refuse) and second.refusal.reason is POISON, "two may have"


@pytest.mark.parametrize("end", [partial(failed, was_sent=True), partial(at_once, status=500), cut])
def test_copies_that_still_wait_after_the_second_death_are_refused(end):
    play = Playbook(replicas="a b c", max_running_per_replica=1)
    at = {request: sent(play, request) for request in ("r1", "r2")}
    assert sent(play, "other", {"body": 8})
    _ = play >> arrived("r3", **PROMPT) >> arrived("other too", body=9) << nothing
    refused: list[str] = []
    for request, replica in at.items():
        _ = play >> down(replica)
        if end is cut:
            _ = play >> started(request)
        _ = play >> end(request)
        refused += [each.request for each in play.decisions if isinstance(each, Refuse)]
        play.decisions.clear()
    assert "r3" in refused and "other too" not in refused
    ended = play >> started("other") >> finished("other")
    assert [each.request for each in ended.decisions] == ["other too"]


def test_a_copy_that_waits_is_refused_once_those_that_failed_are_found_dead():
    play = Playbook(replicas="a b c", max_running_per_replica=1)
    at = [sent(play, request) for request in ("r1", "r2")]
    assert sent(play, "r0", {"body": 8})
    for request in ("r1", "r2"):
        _ = play >> at_once(request, status=500)
        assert sent(play, f"{request}-next", {"body": 8})
    _ = play >> arrived("r3", **PROMPT) << nothing
    _ = play >> down(at[0]) >> down(at[1]) << refuse("r3", POISON)


def test_copies_that_wait_are_refused_whenever_their_body_is_deadly_again():
    play = Playbook(replicas="a b c d", max_running_per_replica=1)
    for first in range(2):
        at = [sent(play, f"r{first}-{number}") for number in range(2)]
        assert all(sent(play, f"{first}-{number}", {"body": 8}) for number in range(2))
        _ = play >> arrived(f"copy {first}", **PROMPT) >> arrived(f"other {first}", body=9) << nothing
        for number, replica in enumerate(at):
            _ = play >> down(replica) >> failed(f"r{first}-{number}", was_sent=True)
        assert f"copy {first}" in {each.request for each in play.decisions if isinstance(each, Refuse)}
        assert f"other {first}" in play.brain.waiting_room.turns
        play.decisions.clear()
        for request in (f"other {first}", *(f"{first}-{number}" for number in range(2))):
            _ = play >> left(request)
        assert not play.brain.waiting_room.by_body
        for replica in at:
            _ = play.later(31.0) >> up(replica)


def test_those_who_leave_do_not_make_it_forget_a_death(monkeypatch):
    monkeypatch.setattr(suspects, "_MOST_REMEMBERED", 3)
    play = Playbook(replicas="a b c d")
    assert breaks_off(play, "r1") and breaks_off(play, "r2")
    for number in range(5):
        assert sent(play, f"left {number}", {"body": 100 + number})
        play >> left(f"left {number}") << nothing
    play >> arrived("r3", **PROMPT) << refuse("r3", POISON)
    assert len(play.brain._attempts.suspects.remembered) == 3


def test_the_same_words_to_another_model_are_another_body():
    play = Playbook(replicas="a b c d")
    for request in ("r1", "r2"):
        assert breaks_off(play, request, PROMPT | {"model": "one"})
    assert not sent(play, "r3", PROMPT | {"model": "one"})
    assert sent(play, "r4", PROMPT | {"model": "two"})


def test_a_restart_later_on_is_no_death():
    ends: tuple[Any, ...] = (partial(at_once, status=500), left)
    for end in ends:
        play, replicas = Playbook(replicas="a b c d"), []
        for request in ("r1", "r2"):
            replicas.append(sent(play, request))
            _ = play >> end(request)
        for replica in replicas:
            _ = play.later(10.0) >> down(replica) >> up(replica)
        assert sent(play, "r3")


def test_a_replica_that_leaves_the_fleet_has_not_died():
    play = Playbook(replicas="a b c d")
    for request in ("r1", "r2"):
        replica = sent(play, request)
        _ = play >> at_once(request, status=500) >> ev.ReplicaLeft(replica, "removed")
    assert sent(play.later(2.1), "r3")


def test_an_error_counts_if_the_replica_goes_down():
    for dies in (True, False):
        play = Playbook(replicas="a b c d")
        for request in ("r1", "r2"):
            replica = sent(play, request)
            _ = play >> at_once(request, status=500)
            if dies:
                _ = play >> down(replica)
        assert bool(sent(play, "r3")) is not dies


def test_what_is_remembered_is_bounded(monkeypatch):
    monkeypatch.setattr(suspects, "_MOST_REMEMBERED", 2)
    play = Playbook(replicas="a b c d e f")
    for number in (1, 2, 3, 1, 2, 3):
        breaks_off(play, f"r{len(play.records)}", {"body": number})
    assert len(play.brain._attempts.suspects.remembered) == 2
    _ = play.later(61.0) >> up("a")
    breaks_off(play, "last", {"body": 9})
    assert len(play.brain._attempts.suspects.remembered) == 1, "what is old is forgotten"
