"""What others say of sessions: one is stopped, and one that another gateway had goes on here."""

from typing import Any

import msgspec
import pytest

from gateway.core import events as ev
from gateway.core.commands import Cancel, Dispatch, Publish, Refuse
from gateway.core.publishing import Publishing
from gateway.domain import records as rec
from gateway.domain.decision import RefusalReason
from gateway.domain.ids import PoolId, RequestId, SessionId
from gateway.domain.turn_trace import TurnTrace
from tests.core.playbook import (
    Playbook,
    answer,
    arrived,
    at_once,
    dispatch,
    finished,
    left,
    nothing,
    refuse,
    started,
    stated,
)
from tests.core.test_bounding import USAGE, turn


def stop(play: Playbook, *, for_s: float = 3600.0, cancels: bool = True) -> list[Cancel]:
    commands = play.brain.handle(
        ev.SessionStopped(play.session.id, for_s, cancels, by="0123abcd"), now=play.now
    )
    play.records += [each for each in commands if isinstance(each, rec.SessionStopped)]
    play.decisions += [each for each in commands if isinstance(each, Refuse)]
    return [each for each in commands if isinstance(each, Cancel)]


def test_a_stopped_session_runs_nothing_until_its_time_is_over():
    play = Playbook()
    turn(play, "r1")
    assert stop(play, for_s=60.0) == []
    play >> arrived("r2", explicit=stated("x")) << refuse("r2", RefusalReason.SESSION_STOPPED)
    turn(play, "r3", "y")
    play.later(59.0)
    play >> arrived("r4", explicit=stated("x")) << refuse("r4", RefusalReason.SESSION_STOPPED)
    play.later(1.0)
    turn(play, "r5", "x")
    assert not play.brain.bounding.is_on
    (record,) = play.seen(rec.SessionStopped)
    assert (record.tenant, record.for_s, record.cancelled, record.by) == ("t", 60.0, 0, "0123abcd")


def test_what_runs_is_cancelled_or_may_end():
    for cancels in (True, False):
        play = Playbook()
        play >> arrived("r1", explicit=stated("x")) << dispatch("r1", to="a")
        play >> started("r1")
        cancelled = stop(play, cancels=cancels)
        assert [each.request for each in cancelled] == ["r1"] * cancels
        places = play.brain.admission.pools[PoolId("pool")].places
        assert len(places.members) == 1, "its turn has not ended"
        play >> (left("r1", answer(has_terminal=False)) if cancels else finished("r1", usage=USAGE))
        assert places.members == {} and not places.count, "others may have its place"


def test_what_waits_is_refused_at_once():
    play = Playbook(max_running_per_replica=1)
    play >> arrived("r1", explicit=stated("y")) << dispatch("r1", to="a")
    play >> arrived("r2", explicit=stated("x")) << nothing
    assert stop(play, cancels=False) == []
    play << refuse("r2", RefusalReason.SESSION_STOPPED)
    play >> at_once("r1", usage=USAGE)
    assert play.seen(rec.SessionStopped)[0].cancelled == 1


def test_what_runs_on_its_behalf_stops_too():
    play = Playbook()
    turn(play, "r1")
    sub = stated("sub", parent="x")
    play >> arrived("r3", explicit=sub) << dispatch("r3", to="a")
    assert play.brain.live[RequestId("r3")].session_id == play.session.id
    assert [each.request for each in stop(play)] == ["r3"]
    play >> left("r3")
    play >> arrived("r4", explicit=sub) << refuse("r4", RefusalReason.SESSION_STOPPED)


def test_to_stop_nobody_is_no_error():
    play = Playbook()
    assert play.brain.handle(ev.SessionStopped(SessionId("s-nobody"), 60.0), now=play.now) == []
    assert not play.brain.bounding.is_on


def test_one_that_rests_gives_its_place_to_others():
    play = Playbook(admission={"policy": "session-cap", "session_cap": 1})
    turn(play, "r1", "x")
    stopped = play.session.id
    play >> arrived("r2", explicit=stated("y")) << nothing
    commands = play.brain.handle(ev.SessionStopped(stopped, 60.0), now=play.now)
    assert [each.request for each in commands if isinstance(each, Dispatch)] == ["r2"]


@pytest.mark.parametrize(
    ("known", "changes", "lives_at"),
    [("a b", {}, {"b": 1}), ("a b", {"is_side": True}, {}), ("a", {}, {}), ("a b", {"replica": None}, {})],
)
def test_a_session_of_another_gateway_lives_where_it_ran_there(known: str, changes: dict[str, Any], lives_at):
    other = Playbook(replicas="b")
    other.brain.sessions.publishing = Publishing(other.brain.sessions.sessions)
    other >> arrived("r1", explicit=stated("x")) << dispatch("r1", to="b")
    commands = other.brain.handle(at_once("r1", usage=USAGE), now=other.now)
    [trace] = [each.trace for each in commands if isinstance(each, Publish) and each.trace is not None]
    sent = msgspec.structs.replace(trace, **changes)
    here = Playbook(replicas=known, have_homes=True)
    here >> ev.SessionAdopted(msgspec.msgpack.decode(msgspec.msgpack.encode(sent), type=TurnTrace))
    assert here.brain.placement.sessions_at == lives_at
