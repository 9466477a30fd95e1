"""Budgets, as the brain acts on them; WebSockets in it; and that what is known of a replica goes with it."""

from collections.abc import Iterator
from typing import Any

import msgspec
import pytest

from gateway.admission.classes import ServiceClass
from gateway.assembly import assemble
from gateway.budgets.budgets import Budgets
from gateway.config import Config
from gateway.core import events as ev
from gateway.core.commands import Dispatch, Refuse, Spend
from gateway.domain import records as rec
from gateway.domain.decision import PlacementReason, RefusalReason
from gateway.domain.engine import EngineSignals
from gateway.domain.ids import PoolId, ReplicaId, RequestId, SessionId, TenantId
from gateway.domain.request import NewItems, Protocol, Transcript, Usage, Work
from gateway.domain.session_ids import numbered_ids
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
    up,
)
from tests.reachable import reachable

USAGE = Usage(prompt_tokens=90, output_tokens=10)
TENANTS = [{"name": "t", "key_hashes": ["sha256:" + "0" * 64]}]


def bounded(**bound) -> Playbook:
    return Playbook(bounds=[{"name": "b", **bound}])


def bounds_of(play: Playbook) -> Budgets:
    bounds = play.brain.session_limits.bounds
    assert bounds is not None
    return bounds


def turn(play: Playbook, request: str, session: str = "x", usage: Usage = USAGE, **fields) -> None:
    play >> arrived(request, explicit=stated(session), **fields) << dispatch(request, to="a")
    play >> at_once(request, usage=usage)


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


@pytest.mark.parametrize(("action", "shadow"), [("warn", False), ("refuse", True), ("deprioritize", True)])
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
    bound = {"name": "b", "turns": 1, "action": "deprioritize"}
    play = Playbook(bounds=[bound], tenants=[{**TENANTS[0], "quota": {"max_sessions": 1}}])
    pools = play.brain.admission.pools
    turn(play, "r1", "greedy")
    play >> arrived("r2", explicit=stated("modest")) << nothing
    # With its next turn the greedy one would go on, as its place is its own; now the other one is first.
    play >> arrived("r3", explicit=stated("greedy")) << dispatch("r2", to="a")
    greedy = next(each for each in pools[PoolId("pool")].places.members.values() if each.is_deprioritized)
    assert not greedy.is_in
    assert greedy.class_on_engines is ServiceClass.PROACTIVE
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
    play >> started("r1") >> first_token("r1") >> finished("r1", content_bytes=80)
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
    play = Playbook(tenants=TENANTS, bounds=[{"name": "b", "scope": "tenant", "period": "day", "turns": 2}])
    turn(play, "r1", "x")
    turn(play, "r2", "y")
    command = play.arrives("r3", explicit=stated("z"))
    assert isinstance(command, Refuse)
    assert command.refusal.message == "This key has reached the bound `b` this day: 2 turns."


def test_what_earlier_processes_knew_is_remembered():
    play = Playbook(tenants=TENANTS, bounds=[{"name": "b", "scope": "tenant", "period": "day", "turns": 2}])
    account = Account(TenantId("t"), ALL_AGENTS, "1970-01-01")
    play >> ev.SpendRemembered((Spent(account, Amounts(1, 0, 0)),))
    turn(play, "r1", "x")
    play >> arrived("r2", explicit=stated("y")) << refuse("r2", RefusalReason.BOUND_REACHED)
    Playbook() >> ev.SpendRemembered((Spent(account, Amounts(1, 0, 0)),)) << nothing


def test_what_the_store_reserved_for_who_is_refused_at_the_door_is_given_back():
    config: dict[str, Any] = {
        "tenants": TENANTS,
        "bounds": [{"name": "b", "scope": "tenant", "period": "day", "turns": 2}],
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
    assert not play.brain.session_limits.is_on


@pytest.mark.parametrize("how", ["released", "final", "idle", "evicted"])
def test_no_client_ends_a_session_that_is_stopped(how: str) -> None:
    play = Playbook(sessions={"idle_s": 5.0, "max_sessions": 2})
    play.begins("r1", explicit=stated("wild", final=how == "final"))
    play >> ev.SessionStopped(play.session.id, 60.0, cancels=False, by="")
    play >> finished("r1")
    if how == "released":
        play >> session_finished(play.session.id)
    play.later(10.0 if how == "idle" else 0.0)
    for number in range(2, 6) if how == "evicted" else ():
        play.begins(f"r{number}", explicit=stated(f"tame-{number}")) >> finished(f"r{number}")
    play >> arrived("r9", explicit=stated("wild")) << refuse("r9", RefusalReason.SESSION_STOPPED)
    play.later(60.0)
    play >> arrived("r10", explicit=stated("wild")) << dispatch("r10", to="a")


def test_events_are_recorded_whole():
    event = ev.SessionStopped(SessionId("s"), 60.0, cancels=False, by="0123abcd")
    assert msgspec.json.decode(msgspec.json.encode(event), type=ev.Event) == event


def test_what_runs_in_the_background_is_refused_where_tokens_count():
    responses: dict[str, Any] = {"protocol": Protocol.RESPONSES, "is_background": True}
    for bound, is_counted in (({"tokens": 1000}, True), ({"turns": 5}, False)):
        found = bounded(**bound).arrives("r1", **responses)
        assert isinstance(found, Refuse) == is_counted


HASH = "sha256:" + "0" * 64


def tunnel(request: str, *without: str, **fields: Any) -> ev.RequestArrived:
    event = arrived(request, work=Work.TUNNEL, is_replayable=True, **fields)
    return msgspec.structs.replace(event, without=tuple(map(ReplicaId, without)))


def test_it_takes_a_place_and_teaches_nothing():
    play = Playbook(max_running_per_replica=1)
    play >> tunnel("r1", explicit=stated("s")) << dispatch("r1", to="a")
    play >> started("r1", 101) >> arrived("r2") << nothing
    play.later(3600.0) << refuse("r2", RefusalReason.QUEUE_TIMEOUT)
    play >> finished("r1", status=101)
    [submitted] = play.seen(rec.GpuSubmit)
    [end] = play.seen(rec.GpuEnd)
    assert submitted.expected is None and end.status == 101 and end.usage.prompt_tokens is None
    assert not play.brain.forecasts.is_experienced(ReplicaId("a"))
    assert play.session.turns == 1 and not play.session.live_turns


def test_placement_hears_nothing_of_it(monkeypatch):
    """It would hold that this session has nothing in the cache."""
    play, heard = Playbook(), []
    monkeypatch.setattr(play.brain.placement, "turn_over", lambda *_, **__: heard.append(1))
    play >> tunnel("r1") << dispatch("r1", to="a")
    play >> started("r1", 101) >> finished("r1", status=101)
    assert not heard
    play >> arrived("r2") << dispatch("r2", to="a")
    play >> started("r2") >> finished("r2")
    assert heard


def test_it_never_runs_where_it_may_not():
    play = Playbook(replicas="a b c", core={"no_replica_wait_s": 0.0})
    play >> tunnel("r1", "a") << dispatch("r1", to="b")
    play >> failed("r1") << dispatch("r1", to="c", because=PlacementReason.RETRIED_ELSEWHERE)
    play >> failed("r1") << refuse("r1", RefusalReason.UPSTREAM_UNREACHABLE)
    play >> tunnel("r2", "a", "b", "c") << refuse("r2", RefusalReason.NO_REPLICA)


def test_it_waits_for_one_where_it_may():
    play = Playbook(replicas="a", core={"no_replica_wait_s": 10.0})
    play >> tunnel("r1", "a") << nothing
    play >> up("b") << dispatch("r1", to="b")
    play >> left("r1") << nothing


@pytest.mark.parametrize(
    ("settings", "is_refused"),
    [
        ({}, False),
        ({"tenants": [{"name": "t", "key_hashes": [HASH], "quota": {"max_sessions": 1}}]}, False),
        ({"tenants": [{"name": "t", "key_hashes": [HASH], "quota": {"tokens_per_minute": 1}}]}, True),
        ({"bounds": [{"name": "b", "turns": 1}]}, False),
        ({"bounds": [{"name": "b", "tokens": 1}]}, True),
        ({"bounds": [{"name": "b", "cost": 1.0}], "prices": [{"model": "*"}]}, True),
        ({"bounds": [{"name": "b", "tokens": 1, "tenants": ["u"]}]}, False),
        ({"bounds": [{"name": "b", "tokens": 1, "shadow": True}]}, False),
    ],
)
def test_who_has_limits_of_tokens_gets_none(settings, is_refused):
    play = Playbook(**settings)
    expected = refuse("r1", RefusalReason.UNSUPPORTED_UPGRADE) if is_refused else dispatch("r1", to="a")
    play >> tunnel("r1") << expected


SAID = Transcript(agent=7)
COUNTED = Usage(prompt_tokens=1_000, cached_tokens=0, output_tokens=10)


def keyed_by(name: str, root: object) -> Iterator[dict[Any, Any] | set[Any]]:
    """Every table that `root` leads to and that has an entry of that name."""
    return (each for each in reachable(root) if isinstance(each, dict | set) and name in each)


class Fleet(Playbook):
    def __init__(self, **sections: Any) -> None:
        super().__init__(replicas="stays", **sections)
        settings = {"pools": [{"name": "pool", "replicas": [{"url": "http://0"}]}], **sections}
        self.brain = assemble(msgspec.convert(settings, Config), session_ids=numbered_ids())
        _ = self >> up("stays")

    def answers(self, request: str, **fields: Any) -> ReplicaId:
        command = self.arrives(request, transcript=SAID, body_bytes=4_000, stream=True, **fields)
        assert isinstance(command, Dispatch)
        _ = self >> started(request) >> first_token(request)
        self.now += 1.0
        _ = self >> finished(request, f"call-{request}", usage=COUNTED)
        return command.placement.replica

    def serves(self, name: str) -> None:
        signals = EngineSignals(kv_tokens=100_000, kv_used=0.5)
        _ = self >> up(name) >> ev.EngineReported(ReplicaId(name), signals)
        self.answers("newcomer", explicit=stated("newcomer"))  # both are looked at
        _ = self >> ev.ReplicaDrained(ReplicaId("stays"), is_draining=True)
        for number in range(3):
            for turn in ("first", "second"):
                assert self.answers(f"{turn}-{number}", explicit=stated(f"s-{number}")) == name
        assert self.answers("light", work=Work.LIGHT) == name
        _ = self >> ev.CacheResidencyReported(ReplicaId(name), {SessionId("s"): 5.0})
        _ = self >> ev.ReplicaDrained(ReplicaId("stays"), is_draining=False)


def test_nothing_is_kept_of_a_replica_that_left():
    fleet = Fleet()
    fleet.serves("goes")
    assert len(list(keyed_by("goes", fleet.brain))) > 5
    fleet >> ev.ReplicaLeft(ReplicaId("goes"), "was told to")
    fleet >> ev.CacheResidencyReported(ReplicaId("goes"), {SessionId("s"): 5.0})
    for session in list(fleet.brain.sessions.sessions.newest_first()):
        fleet >> session_finished(session.id)
    fleet.later(400.0)
    fleet >> arrived("last") << dispatch("last", to="stays")
    assert list(keyed_by("goes", fleet.brain)) == []
