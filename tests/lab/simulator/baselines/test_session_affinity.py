"""Affinity: sessions stay where their state is, and spread where it is not."""

from collections import Counter

from gateway.domain.decision import PlacementReason, SessionRef, SessionSource
from gateway.domain.fleet import ReplicaLoad
from gateway.domain.ids import ReplicaId, SessionId, ThreadId
from lab.simulator.baselines.session_affinity import SessionAffinity


def loads(**running: int) -> list[ReplicaLoad]:
    return [ReplicaLoad(ReplicaId(name), load) for name, load in running.items()]


def turn(session: str, thread: str = "1") -> SessionRef:
    return SessionRef(
        session=SessionId(session), thread=ThreadId(thread), source=SessionSource.NEW, confidence=0.5
    )


def test_new_sessions_go_where_the_fewest_live_though_their_tools_run():
    affinity = SessionAffinity()
    chosen = [affinity.place(loads(a=0, b=0, c=0), turn(str(n))) for n in range(6)]
    assert Counter(placement.replica for placement in chosen) == {"a": 2, "b": 2, "c": 2}
    assert {placement.reason for placement in chosen} == {PlacementReason.LEAST_LOADED}


def test_a_session_stays():
    affinity = SessionAffinity()
    affinity.place(loads(a=1, b=0), turn("s"))
    placement = affinity.place(loads(a=0, b=8), turn("s"))
    assert placement.replica == "b" and placement.reason is PlacementReason.SESSION_LIVES_THERE


def test_it_leaves_a_home_that_is_much_busier_than_the_others_and_stays_away():
    affinity = SessionAffinity(spill_factor=1.5, spill_floor=4)
    affinity.place(loads(a=1, b=0), turn("s"))
    assert affinity.place(loads(a=2, b=6), turn("s")).replica == "b", "1.5 × the average of 4"
    placement = affinity.place(loads(a=1, b=6), turn("s"))
    assert placement.replica == "a" and placement.reason is PlacementReason.HOME_IS_BUSY
    assert affinity.place(loads(a=1, b=0), turn("s")).replica == "a"
    assert affinity.sessions_at == {"a": 1}


def test_sub_agents_follow_their_parent_and_leave_it_in_peace():
    affinity = SessionAffinity(spill_floor=1)
    affinity.place(loads(a=1, b=0), turn("s", "main"))
    assert affinity.place(loads(a=0, b=1), turn("s", "sub-1")).replica == "b"
    assert affinity.place(loads(a=0, b=2), turn("s", "sub-2")).replica == "a"
    assert affinity.place(loads(a=1, b=1), turn("s", "sub-2")).replica == "a"
    assert affinity.place(loads(a=1, b=1), turn("s", "main")).replica == "b"
    assert affinity.sessions_at == {"b": 1}
