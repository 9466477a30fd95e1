"""Overload: for whom somebody else leaves a full waiting room, and who is refused."""

from gateway.domain.decision import RefusalReason, Wait, WaitReason
from tests.admission.applicants import capped, room


def test_overload_refuses_the_newest_of_the_least_entitled():
    play = capped(1, max_waiting=4)
    play.is_let_in("s0")
    for number in range(1, 5):
        play.is_let_in(f"t{number}", tenant="t", task_arrived_s=float(number))
    assert play.ask("u1", tenant="u") == Wait(reason=WaitReason.BEHIND_OTHERS)
    assert play.refused == ["t4"]
    refused = play.ask("t5", tenant="t")
    assert refused.reason is RefusalReason.TENANT_SHARE
    assert play.ask("v1", tenant="v") == Wait(reason=WaitReason.BEHIND_OTHERS)
    assert play.refused == ["t4", "t3"]
    assert len(play.waiting) == 4


def test_who_needs_a_place_in_the_waiting_room_need_not_be_smaller_than_who_has_it():
    play = capped(1, max_waiting=4, max_waiting_bytes=100_000)
    play.is_let_in("s0")
    for number in range(4):
        play.is_let_in(f"t{number}", tenant="t", body_bytes=2_000, task_arrived_s=float(number))
    there = room(waiting=4, waiting_bytes=8_000)
    assert play.ask("u1", tenant="u", body_bytes=30_000, room=there) == Wait(reason=WaitReason.BEHIND_OTHERS)
    assert play.refused == ["t3"]


def test_a_tenant_alone_is_refused_for_the_fleet():
    play = capped(1, max_waiting=1)
    play.is_let_in("s0")
    play.is_let_in("s1")
    reasons = [play.ask(f"s{number}") for number in (2, 3)]
    assert all(each.reason is RefusalReason.QUEUE_FULL for each in reasons)
    assert reasons[0].retry_after_s != reasons[1].retry_after_s
    assert play.ask("s9", room=room(waiting_bytes=1 << 40)).reason is RefusalReason.QUEUE_FULL


def test_nobody_is_displaced_for_one_who_would_still_not_fit():
    play = capped(1, max_waiting_bytes=100)
    play.is_let_in("s0")
    for number in range(3):
        play.is_let_in(f"t{number}", tenant="t", body_bytes=10)
    big = play.ask("u1", tenant="u", body_bytes=90, room=room(waiting_bytes=30))
    assert big.reason is RefusalReason.QUEUE_FULL and play.refused == []
