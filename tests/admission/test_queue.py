"""The queue of a pool and its waiting room: classes, tenants, deadlines; who is refused where it is full."""

import itertools
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.admission.classes import ServiceClass, classify
from gateway.admission.pack_queue import Entry, SessionQueue
from gateway.admission.tenants.fair_share import FairShare
from gateway.admission.tenants.quotas import Quota, Quotas, retry_after_s
from gateway.core.turns.waiting_room import Lane, Waiting, WaitingRoom
from gateway.domain.decision import RefusalReason
from gateway.domain.ids import PoolId, ReplicaId, RequestId, SessionId, TenantId
from gateway.domain.request import Claims
from tests.admission import applicants

REACTIVE, PROACTIVE = ServiceClass.REACTIVE, ServiceClass.PROACTIVE
numbers = itertools.count()


def make() -> tuple[SessionQueue, FairShare]:
    fair = FairShare()
    return SessionQueue("arrival", fair, age_s=10.0, max_door_wait=2.0), fair


def entry(name: str, tenant="t", **fields) -> Entry:
    return applicants.entry(name, tenant, arrived=float(next(numbers)), **fields)


def next_of(queue: SessionQueue, *, may=lambda tenant: True) -> str:
    entry = queue.next(may, is_cpu_bound=False)
    return entry.session if entry is not None else ""


def test_the_most_entitled_tenant_is_first():
    queue, fair = make()
    for name, tenant in (("a1", "a"), ("b1", "b"), ("a2", "a"), ("c1", "c")):
        queue.put(entry(name, tenant), REACTIVE)
    fair.hold(TenantId("a"), 2.0)
    fair.hold(TenantId("b"), 1.0)
    assert next_of(queue) == "c1"
    assert next_of(queue, may=lambda tenant: tenant != "c") == "b1"
    assert next_of(queue, may=lambda tenant: tenant == "a") == "a1"
    assert len(queue) == 4 and SessionId("a2") in queue.entries
    assert queue.entries.get(SessionId("a2")) and queue.entries.get(SessionId("x")) is None


def test_a_bounded_number_of_tenants_is_looked_at():
    queue, _ = make()
    for number in range(1000):
        queue.put(entry(f"s{number}", f"t{number}"), REACTIVE)
    looked_at: list[TenantId] = []

    def may(tenant: TenantId) -> bool:
        looked_at.append(tenant)
        return True

    next_of(queue, may=may)
    assert len(looked_at) == 32


def entered_before(queue: SessionQueue, fair: FairShare, name: str, *, at_most: int) -> int:
    """How many of ever new tenants enter before the session does, one a second."""
    for count in range(at_most):
        now = 100.0 + count
        queue.put(entry(f"new-{count}", f"new-{count}", since=now), REACTIVE)
        queue.age(now=now)
        chosen = queue.next(lambda _: True, is_cpu_bound=False)
        assert chosen is not None
        queue.take(chosen.session)
        if chosen.session == name:
            return count
        fair.hold(chosen.tenant, 1.0)
    return at_most


def test_newcomers_of_ever_new_tenants_pass_nobody_for_good():
    queue, fair = make()
    fair.hold(TenantId("a"), 1.0)
    fair.hold(TenantId("b"), 1.0)
    queue.put(entry("waits", "a", lasts_s=52.0), REACTIVE)
    assert entered_before(queue, fair, "waits", at_most=300) == 4, "for twice as long as it lasts"


def test_but_who_holds_far_more_than_its_share_waits():
    queue, fair = make()
    fair.hold(TenantId("a"), 30.0)
    queue.put(entry("waits", "a", lasts_s=52.0), REACTIVE)
    assert entered_before(queue, fair, "waits", at_most=30) == 30


def test_proactive_ones_wait_for_reactive_ones_until_they_have_aged():
    queue, _ = make()
    queue.put(entry("back", "a"), PROACTIVE)
    queue.put(entry("gone", "a"), PROACTIVE)
    assert next_of(queue) == "back"
    queue.put(entry("front", "b"), REACTIVE)
    assert next_of(queue) == "front"
    queue.take(SessionId("gone"))
    queue.age(now=9.9)
    assert next_of(queue) == "front"
    queue.age(now=10.0)
    assert (back := queue.entries.get(SessionId("back"))) and back.is_aged
    queue.take(SessionId("back"))
    assert next_of(queue) == "front" and len(queue) == 1
    queue.take(SessionId("front"))
    assert next_of(queue) == ""


def test_what_ages_is_forgotten_with_what_waits():
    queue, _ = make()
    for number in range(300):
        queue.put(entry(f"s{number}"), PROACTIVE)
        queue.take(SessionId(f"s{number}"))
    assert len(queue._due) <= 66 and not queue.overdue


def test_the_longest_overdue_is_first_whatever_its_size_and_its_tenant():
    queue, _ = make()
    for name, lasts_s in (("a", 30.0), ("b", 20.0), ("c", 1e6)):
        queue.put(entry(name, name, lasts_s=lasts_s), REACTIVE)
    queue.put(entry("back", "d", lasts_s=6.0), PROACTIVE)
    queue.age(now=10.0)
    assert (back := queue.entries.get(SessionId("back"))) and back.is_aged and not queue.overdue
    queue.age(now=12.0)
    assert next_of(queue) == "back", "it is overdue now"
    queue.take(SessionId("back"))
    queue.age(now=100.0)
    assert next_of(queue) == "b" and next_of(queue, may=lambda tenant: tenant != "b") == "a"
    queue.take(SessionId("b"))
    queue.take(SessionId("a"))
    assert next_of(queue) == "c" and not queue.overdue


REACTIVE, PROACTIVE = ServiceClass.REACTIVE, ServiceClass.PROACTIVE


@pytest.mark.parametrize(
    ("claim", "expected"),
    [
        ({}, REACTIVE),
        ({"is_background": True}, PROACTIVE),
        ({"stated": Claims()}, REACTIVE),
        ({"stated": Claims(service_tier="flex")}, PROACTIVE),
        ({"stated": Claims(service_tier="default")}, REACTIVE),
        ({"stated": Claims(service_tier="priority"), "is_background": True}, REACTIVE),
        ({"stated": Claims(service_tier="priority"), "of_key": "background"}, PROACTIVE),
        ({"stated": Claims(service_class="reactive"), "of_key": "background"}, REACTIVE),
        (
            {"stated": Claims(service_class="proactive", service_tier="priority"), "of_key": "interactive"},
            PROACTIVE,
        ),
    ],
)
def test_the_first_evidence_counts(claim, expected):
    assert classify(**{"stated": None, "of_key": None, "is_background": False, **claim}) is expected


POOL = PoolId("pool")
ANY, HOME = Lane(pool=POOL), Lane(pool=POOL, home=ReplicaId("a"))


def turn(name: str, lane: Lane = ANY, *, tenant="t", arrived_s=0.0, deadline_s=50.0) -> Waiting:
    return Waiting(
        request=RequestId(name),
        tenant=TenantId(tenant),
        lane=lane,
        body_bytes=10,
        arrived_s=arrived_s,
        deadline_s=deadline_s,
    )


def room_with(*turns: Waiting, max_turns: int = 4096, max_bytes: int = 1 << 30) -> WaitingRoom:
    room = WaitingRoom(max_turns, max_bytes)
    for each in turns:
        room.enter(each)
    return room


def first(room: WaitingRoom, pool: PoolId = POOL) -> list[str]:
    return [waiting.request for waiting in room.first_of_each_lane(pool)]


def test_turns_enter_and_leave():
    room = room_with(turn("r1"), turn("r2", HOME))
    assert len(room) == 2 and room.body_bytes == 20 and RequestId("r1") in room
    assert {waiting.request for waiting in room} == {"r1", "r2"}
    assert room.leave(RequestId("r1")).request == "r1"
    assert len(room) == 1 and room.body_bytes == 10 and RequestId("r1") not in room
    room.leave(RequestId("r2"))
    assert not room._lanes and not room._by_deadline
    with pytest.raises(KeyError):
        room.leave(RequestId("r2"))


def test_of_each_lane_the_first_in_order_of_arrival():
    room = room_with(turn("r3", arrived_s=3), turn("r1", HOME, arrived_s=1), turn("r4", arrived_s=4))
    assert first(room) == ["r1", "r3"]
    assert first(room, PoolId("other")) == []
    room.leave(RequestId("r3"))
    assert first(room) == ["r1", "r4"]


def test_lanes_know_their_turns():
    room = room_with(turn("r1"), turn("r2", HOME), turn("r3"))
    assert room.has_lane(ANY) and room.has_lane(HOME)
    assert not room.has_lane(Lane(pool=PoolId("other")))
    assert [waiting.request for waiting in room.behind(room.first_of_each_lane(POOL)[0])] == ["r1", "r3"]


def test_the_earliest_deadline_is_first_whoever_entered_when():
    room = room_with(turn("r1", deadline_s=50), turn("r2", deadline_s=20), turn("r3", deadline_s=20))
    assert room.next_deadline_s() == 20
    assert room.first_expired(now=19.9) is None
    assert room.first_expired(now=20) == "r2"
    room.leave(RequestId("r2"))
    assert room.first_expired(now=20) == "r3"
    room.leave(RequestId("r3"))
    assert room.first_expired(now=20) is None and room.next_deadline_s() == 50
    room.leave(RequestId("r1"))
    assert room.next_deadline_s() is None and room.first_expired(now=99) is None


def test_a_turn_that_comes_back_has_its_new_deadline():
    room = room_with(turn("r0", deadline_s=5), turn("r1", deadline_s=10))
    room.leave(RequestId("r1"))
    room.enter(turn("r1", deadline_s=30))
    room.leave(RequestId("r0"))
    assert room.next_deadline_s() == 30


def test_deadlines_of_those_who_left_do_not_pile_up():
    room = room_with(turn("stays", deadline_s=0))
    for number in range(1000):
        room.enter(turn(f"r{number}"))
        room.leave(RequestId(f"r{number}"))
    assert len(room._by_deadline) < 100
    assert room.next_deadline_s() == 0


def test_a_turn_that_is_held_leaves_its_lane_and_comes_back_to_its_end():
    room = room_with(turn("r1"), turn("r2"))
    room.hold(RequestId("r1"))
    assert [each.request for each in room.first_of_each_lane(POOL)] == ["r2"]
    assert [each.request for each in room.held(POOL)] == ["r1"] and len(room) == 2
    room.release(RequestId("r1"))
    assert [each.request for each in room.behind(room.first_of_each_lane(POOL)[0])] == ["r2", "r1"]
    room.hold(RequestId("r1"))
    room.leave(RequestId("r1"))
    assert len(room) == 1 and not room.held(POOL)


def test_tenants_of_a_lane_take_turns():
    room = room_with(*(turn(f"t{number}", tenant="t") for number in range(9)), turn("u0", tenant="u"))
    out = []
    for number in range(4):
        out += first(room)
        room.leave(RequestId(out[-1]))
        room.enter(turn(f"v{number}", tenant="v"))
    assert out == ["t0", "u0", "t1", "v0"]


def displaced(room: WaitingRoom, tenant: str, *, body_bytes=10, **weights: float) -> Any:
    if not room.is_full(body_bytes):
        return None
    found = room.displaced_by(TenantId(tenant), body_bytes, lambda of: weights.get(of, 1.0))
    return found.request if isinstance(found, Waiting) else found


def test_a_full_room_loses_the_newest_of_the_tenant_with_the_most():
    room = room_with(*(turn(f"t{number}", tenant="t") for number in range(3)), max_turns=4)
    assert displaced(room, "u") is None
    room.enter(turn("u0", tenant="u"))
    assert displaced(room, "u") == "t2" and displaced(room, "v") == "t2"
    assert displaced(room, "t") is RefusalReason.TENANT_SHARE
    assert displaced(room, "v", t=4.0) == "u0"
    room.hold(RequestId("t1"))
    assert displaced(room, "u") == "t1", "its session has no slot: nothing is lost"


def test_a_tenant_alone_is_refused_for_the_fleet():
    assert displaced(room_with(turn("t0", tenant="t"), max_turns=1), "t") is RefusalReason.QUEUE_FULL
    assert displaced(room_with(max_turns=0), "t") is RefusalReason.QUEUE_FULL


def test_nobody_is_displaced_for_one_who_would_still_not_fit():
    room = room_with(*(turn(f"t{number}", tenant="t") for number in range(3)), max_bytes=100)
    assert displaced(room, "u", body_bytes=70) is None and displaced(room, "u", body_bytes=80) == "t2"
    assert displaced(room, "u", body_bytes=81) is RefusalReason.QUEUE_FULL


T, U = TenantId("t"), TenantId("u")


def test_tokens_come_back_over_the_minute():
    quotas = Quotas({T: Quota(tokens_per_minute=600)})
    assert quotas.charge(T, 400, now=0.0) == 0.0
    assert quotas.charge(T, 300, now=0.0) == 10.0  # 100 are missing, 10 come a second
    assert quotas.charge(T, 300, now=10.0) == 0.0
    assert quotas.charge(U, 1e9, now=0.0) == 0.0


def test_what_was_not_used_is_given_back_and_more_is_taken():
    quotas = Quotas({T: Quota(tokens_per_minute=600)})
    quotas.charge(T, 600, now=0.0)
    quotas.correct(T, 600, 100, now=0.0)
    assert quotas.charge(T, 500, now=0.0) == 0.0
    quotas.correct(T, 500, 800, now=0.0)
    assert quotas.charge(T, 0, now=0.0) == 30.0  # 300 in debt
    quotas.correct(T, 0, -9999, now=0.0)
    assert quotas.charge(T, 601, now=0.0) == 0.0  # never more than a minute's
    quotas.correct(U, 1, 2, now=0.0)


def test_one_that_costs_more_than_a_minute_waits_for_a_full_bucket():
    quotas = Quotas({T: Quota(tokens_per_minute=600)})
    assert quotas.charge(T, 6000, now=0.0) == 0.0
    assert quotas.charge(T, 6000, now=0.0) == 600.0
    assert quotas.charge(T, 6000, now=600.0) == 0.0


@given(st.lists(st.tuples(st.floats(0, 30), st.floats(0, 2000)), max_size=50))
def test_nobody_gets_more_than_the_quota(steps):
    quotas = Quotas({T: Quota(tokens_per_minute=600)})
    now = used = 0.0
    for pause_s, tokens in steps:
        now += pause_s
        if quotas.charge(T, min(tokens, 600), now=now) == 0.0:
            used += min(tokens, 600)
        assert used <= 600 + now * 10 + 1e-6


@given(st.floats(-5, 100), st.integers(0, 1000))
def test_times_to_come_back_are_distinct_and_bounded(wait_s, number):
    first = retry_after_s(wait_s, number)
    assert 1 <= first <= 30 and (first >= wait_s or first == 30)
    assert wait_s > 28 or retry_after_s(wait_s, number + 1) != first
