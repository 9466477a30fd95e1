"""The gateways that are not ours, event by event."""

from gateway.core import events as ev
from gateway.domain.ids import ReplicaId
from lab.simulator.baselines.router import Affinity
from lab.simulator.baselines.session_cap import SessionCap
from tests.lab.simulator.baselines.router_play import Play


def test_affinity_keeps_a_session_and_puts_a_new_one_where_the_fewest_are():
    play = Play(Affinity(), replicas=2)
    assert play.asks("a/0") == ["a/0 on r0"]
    assert play.asks("b/0") == ["b/0 on r1"]
    assert play.asks("c/0") == ["c/0 on r0"]
    play.ends("a/0")
    assert play.asks("a/1") == ["a/1 on r0"]  # though there are two
    play.ends("b/0")
    assert play.asks("b/1") == ["b/1 on r1"]
    play.over("a")
    play.over("c")
    assert play.asks("d/0") == ["d/0 on r0"]


def test_a_session_cap_lets_the_next_in_when_one_is_over_and_never_makes_members_wait():
    play = Play(Affinity(), SessionCap(2))
    assert play.asks("a/0") and play.asks("b/0")
    assert play.asks("c/0") == play.asks("d/0") == []
    assert play.ends("a/0") == []  # its tools run; its place is its own
    assert play.asks("a/1", final=True) == ["a/1 on r0"]
    assert play.ends("a/1", now=7.0) == ["c/0 on r0"]  # that was the end, as the client said
    play.ends("b/0")
    assert play.over("b") == ["d/0 on r0"]  # as somebody else said
    play.ends("c/0")
    play.ends("d/0")
    assert not play.router.live


def test_sessions_that_wait_may_have_another_order():
    play = Play(Affinity(), SessionCap(1), rank={"a": 9.0, "b": 2.0, "c": 1.0}.__getitem__)
    assert play.asks("a/0", final=True) == ["a/0 on r0"]
    assert play.asks("b/0", final=True) == play.asks("c/0", final=True) == []
    assert play.ends("a/0") == ["c/0 on r0"]
    assert play.ends("c/0") == ["b/0 on r0"]


def test_a_session_that_asks_twice_while_it_waits_enters_with_both():
    play = Play(Affinity(), SessionCap(1))
    play.asks("a/0")
    assert play.asks("b/0") == play.asks("b/1") == []
    play.ends("a/0")
    assert play.over("a") == ["b/0 on r0", "b/1 on r0"]


def test_sessions_of_a_replica_that_is_lost_enter_anew():
    play = Play(Affinity(), SessionCap(1), replicas=2)
    assert play.asks("a/0") == ["a/0 on r0"]
    assert play.asks("b/0") == ["b/0 on r1"]
    assert play.hears(ev.ReplicaWentDown(ReplicaId("r1"), why="is lost")) == []
    assert play.ends("b/0") == []
    assert play.asks("b/1") == []  # there is no place
    assert play.over("a") == ["b/1 on r0"]
    assert play.ends("b/1") == [] and play.over("b") == []
