"""The waiting room: lanes, order, deadlines, and books that balance."""

import pytest

from gateway.admission.waiting_room import Lane, Waiting, WaitingRoom
from gateway.domain.ids import PoolId, ReplicaId, RequestId

POOL = PoolId("pool")
ANY, HOME = Lane(pool=POOL), Lane(pool=POOL, home=ReplicaId("a"))


def turn(name: str, lane: Lane = ANY, *, arrived_s: float = 0.0, deadline_s: float = 50.0) -> Waiting:
    return Waiting(
        request=RequestId(name), lane=lane, body_bytes=10, arrived_s=arrived_s, deadline_s=deadline_s
    )


def room_with(*turns: Waiting) -> WaitingRoom:
    room = WaitingRoom()
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
    assert room.in_lane(ANY) == 2 and room.in_lane(HOME) == 1
    assert room.in_lane(Lane(pool=PoolId("other"))) == 0
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
