"""Work stealing: who steals what from whom, and what keeps sessions from going to and fro."""

import random

import msgspec
import pytest

from gateway.domain.fleet import ReplicaLoad
from gateway.domain.ids import ReplicaId, RequestId
from gateway.routing.stealing import Stealing, StealingConfig

A, B, D = map(ReplicaId, "abd")


def session(number):
    return (f"s{number}", "1")


class Fleet:
    """`a` has ten sessions, of which three pause, and runs some; `b` has two and idles."""

    def __init__(self, **settings):
        config = msgspec.convert({"enabled": True, **settings}, StealingConfig)
        self.stealing = Stealing(config, random.Random(0))
        self.now = 0.0
        self.sessions = {"a": 10, "b": 2}
        self.full = set()
        for number in range(3):
            self.now += 1.0
            self.stealing.paused(session(number), A, RequestId(f"r{number}"))

    def look(self, seconds=0.2, **running):
        self.now += seconds
        return self.stealing.look(loads(**running), self.burden, self.has_room, now=self.now)

    def burden(self, replica, more):
        return self.sessions.get(replica, 0) + more

    def has_room(self, replica, session):
        return (replica, session) not in self.full

    def steal(self, *, is_there=True, **running):
        """After idling for long enough; the thief has what was stolen at once."""
        steal = self.look(**running) or self.look(**running)
        if steal is not None:
            self.stealing.moved(steal, is_there=is_there)
        return steal

    def claim(self, number, seconds=0.2, **running):
        self.now += seconds
        self.stealing.goes_on(session(number))
        return self.stealing.claim(session(number), loads(**running), now=self.now)


def loads(**running):
    return [ReplicaLoad(ReplicaId(name), count) for name, count in running.items()]


def test_whoever_idles_for_long_enough_gets_what_has_paused_for_longest():
    fleet = Fleet()
    assert fleet.look(a=4, b=0) is None, "it idles since now"
    assert fleet.look(0.06, a=4, b=0) is None
    steal = fleet.look(0.06, a=4, b=0)
    assert (steal.conversation, steal.victim, steal.thief) == (session(0), "a", "b")
    assert steal.turn == "r0"
    assert fleet.look(0.06, a=4, b=0) is None, "it has something to wait for"
    fleet.stealing.moved(steal, is_there=True)
    assert fleet.claim(0, a=4, b=0) == "b"
    assert fleet.claim(0, a=4, b=0) is None and fleet.claim(1, a=4, b=0) is None


def test_work_between_ends_idleness():
    fleet = Fleet()
    fleet.look(a=4, b=0)
    fleet.look(a=4, b=1)
    assert fleet.look(a=4, b=0) is None


@pytest.mark.parametrize(("a", "b", "steals"), [(10, 4, True), (10, 5, False), (2, 0, True), (1, 0, False)])
def test_the_victim_must_have_twice_as_many_sessions(a, b, steals):
    fleet = Fleet()
    fleet.sessions = {"a": a, "b": b}
    assert (fleet.steal(a=4, b=0) is not None) == steals


def test_who_has_no_room_for_a_session_does_not_steal_it():
    fleet = Fleet()
    fleet.full = {("b", "s0")}
    assert fleet.steal(a=4, b=0).conversation == session(1), "there is room for what this one holds"
    fleet = Fleet()
    fleet.full = {("b", f"s{number}") for number in range(3)}
    assert fleet.steal(a=4, b=0) is None


def test_a_victim_that_is_not_busy_itself_is_let_be():
    assert Fleet().steal(a=1, b=0) is None


def test_the_thief_is_the_one_with_the_fewest_sessions_and_the_victim_any_that_has_too_many():
    fleet = Fleet()
    fleet.sessions = {"a": 10, "b": 2, "c": 1, "d": 10}
    for number in range(3, 90):
        fleet.stealing.paused(session(number), D, RequestId(f"r{number}"))
    steals = [fleet.steal(a=4, b=0, c=0, d=4) for _ in range(6)]
    assert {steal.thief for steal in steals} == {"c"} and {steal.victim for steal in steals} == {"a", "d"}


def test_a_stale_steal_is_refused():
    fleet = Fleet(valid_s=10.0)
    fleet.steal(a=4, b=0)
    assert fleet.claim(0, a=1, b=2) is None, "the thief has got busier than the victim"
    fleet.steal(a=4, b=0)
    assert fleet.claim(1, a=4) is None, "the thief is gone"
    fleet.steal(a=4, b=0)
    assert fleet.claim(2, 11.0, a=4, b=0) is None, "too late"


def test_it_stays_until_the_thief_has_what_was_stolen():
    fleet = Fleet()
    steal = fleet.look(a=4, b=0) or fleet.look(a=4, b=0)
    assert fleet.claim(0, a=4, b=0) is None, "too soon"
    fleet.stealing.moved(steal, is_there=True)
    assert fleet.claim(0, a=4, b=0) is None, "and that was that"
    steal = fleet.steal(is_there=False, a=4, b=0)
    assert steal.conversation == session(1) and not fleet.stealing._decided
    assert fleet.steal(a=4, b=0).conversation == session(2), "that is not tried again"
    assert fleet.claim(1, a=4, b=0) is None


def test_who_goes_on_is_not_stolen():
    fleet = Fleet()
    for number in range(3):
        fleet.stealing.goes_on(session(number))
    assert fleet.steal(a=4, b=0) is None


def stolen_once(**settings):
    """`s0`, from `a` to `b`; it pauses there, and `a` idles."""
    fleet = Fleet(**settings)
    for number in (1, 2):
        fleet.stealing.goes_on(session(number))
    fleet.steal(a=4, b=0)
    assert fleet.claim(0, a=4, b=0) == "b"
    fleet.sessions = {"a": 1, "b": 10, "c": 0}
    fleet.stealing.paused(session(0), B, RequestId("r9"))
    return fleet


def test_it_rests_for_a_while_and_does_not_go_back_at_once():
    fleet = stolen_once(cooldown_s=10.0)
    assert fleet.steal(a=4, b=4, c=0) is None
    assert fleet.steal(a=0, b=4) is None, "back"
    fleet.now += 10.0
    assert fleet.steal(a=4, b=4, c=0).thief == "c"
    fleet = stolen_once(cooldown_s=10.0)
    fleet.now += 10.0
    assert fleet.steal(a=0, b=4).thief == "a", "it has rested"


def test_it_is_stolen_only_so_often():
    fleet = stolen_once(cooldown_s=1.0, most=1)
    fleet.now += 100.0
    assert fleet.steal(a=4, b=4, c=0) is None


def test_nothing_is_left_of_sessions_that_ended():
    fleet = stolen_once()
    fleet.stealing.session_ended(session(0))
    stealing = fleet.stealing
    assert not stealing._at and not stealing._past and not stealing._decided


def test_a_replica_that_was_lost_has_not_idled_meanwhile():
    fleet = Fleet()
    assert fleet.look(a=4, b=0) is None
    fleet.stealing.replica_lost(B)
    assert fleet.look(0.2, a=4, b=0) is None, "it is back, and idles since now"
    assert fleet.look(0.2, a=4, b=0).thief == "b"
