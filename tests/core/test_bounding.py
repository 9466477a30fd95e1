"""Bounds, as the brain acts on them."""

from typing import Any

import msgspec
import pytest

from gateway.admission.bounds import Bounds
from gateway.admission.classes import ServiceClass
from gateway.core import events as ev
from gateway.core.bounding import MAX_STOPPED
from gateway.core.commands import Dispatch, Refuse, Spend
from gateway.domain import records as rec
from gateway.domain.decision import RefusalReason
from gateway.domain.ids import PoolId, RequestId, SessionId, TenantId
from gateway.domain.request import NewItems, Transcript, Usage, Work
from gateway.domain.spending import ALL_AGENTS, Account, Amounts, Reserved, Spent
from tests.core.playbook import (
    Playbook,
    arrived,
    at_once,
    dispatch,
    facts,
    failed,
    finished,
    first_token,
    left,
    nothing,
    refuse,
    session_finished,
    started,
    stated,
)

USAGE = Usage(prompt_tokens=90, output_tokens=10)
TENANTS = [{"name": "t", "key_hashes": ["sha256:" + "0" * 64]}]


def bounded(**bound) -> Playbook:
    return Playbook(bounds=[{"name": "b", **bound}])


def bounds_of(play: Playbook) -> Bounds:
    bounds = play.brain.bounding.bounds
    assert bounds is not None
    return bounds


def turn(play: Playbook, request: str, session: str = "x", usage: Usage = USAGE, **fields) -> None:
    play >> arrived(request, explicit=stated(session), **fields) << dispatch(request, to="a")
    play >> at_once(request, usage=usage)


# --- bounds ------------------------------------------------------------------------------------------


def test_who_is_beyond_its_bound_is_refused_and_others_are_not():
    play = bounded(turns=2)
    turn(play, "r1")
    turn(play, "r2")
    play >> arrived("r3", explicit=stated("x")) << refuse("r3", RefusalReason.BOUND_REACHED)
    turn(play, "r4", "y")
    (record,) = play.seen(rec.BoundReached)
    assert (record.turn, record.bound, record.limit, record.action) == ("r3", "b", "turns", "refuse")
    assert (record.used, record.most, record.tenant) == (3, 2, "t")
    assert bounds_of(play).turns == {}


def test_a_refusal_says_what_was_reached():
    play = bounded(turns=1)
    turn(play, "r1")
    command = play.arrives("r2", explicit=stated("x"))
    assert isinstance(command, Refuse)
    assert command.bound == "b turns"
    assert command.refusal.message == "This session has reached the bound `b`: 1 turns."
    assert command.refusal.retry_after_s is None


@pytest.mark.parametrize(("action", "shadow"), [("warn", False), ("refuse", True), ("behind", True)])
def test_who_is_warned_or_only_watched_goes_on(action, shadow):
    play = bounded(turns=1, action=action, shadow=shadow)
    turn(play, "r1")
    command = play.arrives("r2", explicit=stated("x"))
    assert isinstance(command, Dispatch)
    assert command.placement.replica == "a"
    assert command.bound == (None if shadow else "b turns")
    (record,) = play.seen(rec.BoundReached)
    assert record.action == ("shadow" if shadow else action)


def test_who_is_behind_gives_its_place_to_those_who_wait():
    """Its turns are background work to engines, too."""
    bound = {"name": "b", "turns": 1, "action": "behind"}
    play = Playbook(bounds=[bound], tenants=[{**TENANTS[0], "quota": {"max_sessions": 1}}])
    pools = play.brain.admission.pools
    turn(play, "r1", "greedy")
    play >> arrived("r2", explicit=stated("modest")) << nothing
    # With its next turn the greedy one would go on, as its place is its own; now the other one is first.
    play >> arrived("r3", explicit=stated("greedy")) << dispatch("r2", to="a")
    greedy = next(each for each in pools[PoolId("pool")].places.members.values() if each.is_behind)
    assert not greedy.is_in
    assert pools[PoolId("pool")].class_on_engines(greedy) is ServiceClass.PROACTIVE
    play >> at_once("r2", usage=USAGE)
    play.later(30.0)
    play << dispatch("r3", to="a")
    play >> at_once("r3", usage=USAGE)


def test_who_is_not_behind_keeps_its_place():
    play = Playbook(
        tenants=[{**TENANTS[0], "quota": {"max_sessions": 1}}], bounds=[{"name": "b", "turns": 9}]
    )
    turn(play, "r1", "greedy")
    play >> arrived("r2", explicit=stated("modest")) << nothing
    play >> arrived("r3", explicit=stated("greedy")) << dispatch("r3", to="a")


def test_a_loop_is_seen_in_the_requests_themselves():
    play = bounded(repeats=3)
    for number in range(1, 5):
        new = NewItems(called=1, brought=2) if number > 1 else NewItems()
        event = arrived(f"r{number}", explicit=stated("x"), transcript=Transcript(tail=number, new=new))
        if number < 4:
            play >> event << dispatch(f"r{number}", to="a")
            play >> at_once(f"r{number}", usage=USAGE)
        else:
            play >> event << refuse("r4", RefusalReason.BOUND_REACHED)


def test_what_ends_badly_costs_nothing():
    play = bounded(tokens=1000)
    play >> arrived("r1", explicit=stated("x"), body_bytes=400) << dispatch("r1", to="a")
    play >> failed("r1", was_sent=True) << refuse("r1", RefusalReason.UPSTREAM_BROKEN)
    play >> arrived("r2", explicit=stated("x"), body_bytes=400) << dispatch("r2", to="a")
    play >> at_once("r2", status=500)
    assert bounds_of(play).sessions[play.session.id].used == Amounts()


def test_who_leaves_before_its_answer_pays_all_the_same():
    play = bounded(tokens=1000)
    play >> arrived("r1", explicit=stated("x"), body_bytes=400) << dispatch("r1", to="a")
    play >> left("r1")
    assert bounds_of(play).sessions[play.session.id].used == Amounts(1, 100, 0)


def test_a_stream_that_does_not_count_is_guessed():
    play = bounded(tokens=1000)
    play >> arrived("r1", explicit=stated("x"), body_bytes=400) << dispatch("r1", to="a")
    play >> started("r1") >> first_token("r1") >> finished("r1", said_bytes=80)
    assert bounds_of(play).sessions[play.session.id].used == Amounts(1, 120, 0)


def test_light_requests_are_not_bounded():
    play = bounded(turns=1)
    for number in range(3):
        play >> arrived(f"r{number}", work=Work.LIGHT) << dispatch(f"r{number}", to="a")
        play >> at_once(f"r{number}")
    assert play.seen(rec.BoundReached) == []


def test_a_session_that_is_over_is_forgotten():
    play = bounded(turns=1)
    turn(play, "r1")
    play >> session_finished(play.session.id)
    assert bounds_of(play).sessions == {}
    turn(play, "r2")


def test_sessions_without_end_leave_no_more_than_may_be_kept():
    play = Playbook(bounds=[{"name": "b", "turns": 99}], sessions={"max_sessions": 20})
    for number in range(300):
        turn(play, f"r{number}", f"session-{number}")
    assert 10 < len(bounds_of(play).sessions) <= 21


def test_a_days_bound_is_of_all_sessions():
    play = Playbook(tenants=TENANTS, bounds=[{"name": "b", "of": "tenant", "per": "day", "turns": 2}])
    turn(play, "r1", "x")
    turn(play, "r2", "y")
    command = play.arrives("r3", explicit=stated("z"))
    assert isinstance(command, Refuse)
    assert command.refusal.message == "This key has reached the bound `b` this day: 2 turns."


def test_what_earlier_processes_knew_is_remembered():
    play = Playbook(tenants=TENANTS, bounds=[{"name": "b", "of": "tenant", "per": "day", "turns": 2}])
    account = Account(TenantId("t"), ALL_AGENTS, "1970-01-01")
    play >> ev.SpendRemembered((Spent(account, Amounts(1, 0, 0)),))
    turn(play, "r1", "x")
    play >> arrived("r2", explicit=stated("y")) << refuse("r2", RefusalReason.BOUND_REACHED)
    Playbook() >> ev.SpendRemembered((Spent(account, Amounts(1, 0, 0)),)) << nothing


def test_what_the_store_reserved_for_who_is_refused_at_the_door_is_given_back():
    config: dict[str, Any] = {
        "tenants": TENANTS,
        "bounds": [{"name": "b", "of": "tenant", "per": "day", "turns": 2}],
    }
    play = Playbook(**config)
    account = Account(TenantId("t"), ALL_AGENTS, "1970-01-01")
    reserved = Reserved((Spent(account, Amounts(1, 0, 0)),), Amounts(1, 0, 0))
    bounds_of(play)._publishes = True
    play.brain.handle(ev.DrainStarted(), now=play.now)
    event = ev.RequestArrived(RequestId("r1"), TenantId("t"), facts(), reserved=reserved)
    commands = play.brain.handle(event, now=play.now)
    assert [each.more for each in commands if isinstance(each, Spend)] == [Spent(account, Amounts(-1, 0, 0))]


def test_without_bounds_there_is_nothing_to_ask():
    play = Playbook()
    assert not play.brain.bounding.is_on


# --- sessions that are stopped -----------------------------------------------------------------------


def test_those_that_are_stopped_are_bounded_in_number():
    play = Playbook()
    for number in range(MAX_STOPPED + 5):
        play.brain.bounding.stop(SessionId(f"s{number}"), until_s=1e9)
    assert not play.brain.bounding.is_stopped(SessionId("s4"))
    assert play.brain.bounding.is_stopped(SessionId("s5"))


def test_events_are_recorded_whole():
    event = ev.SessionStopped(SessionId("s"), 60.0, cancels=False, by="0123abcd")
    assert msgspec.json.decode(msgspec.json.encode(event), type=ev.Event) == event
