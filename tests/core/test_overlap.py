"""Prefill ahead: what is known of a next prompt is computed while tools run, if it is foreseen and pays."""

import random
from typing import Any

import pytest

from gateway.core import events as ev
from gateway.core.commands import Dispatch
from gateway.core.turns.lifecycle import LifecycleError
from gateway.domain import records as rec
from gateway.domain.engine import EngineSignals
from gateway.domain.ids import ReplicaId, RequestId
from gateway.domain.request import Transcript, Usage
from lab.simulator.invariants import check_books
from tests.core.playbook import (
    Playbook,
    arrived,
    down,
    failed,
    finished,
    first_token,
    left,
    started,
    stated,
    up,
)
from tests.examples import examples
from turnpike_vllm.hints import Hint, ServiceClass, parse

ASKS, READS = 11, 22
"""System prompts: of an agent's first step, and of the one that reads what its tools found."""
USAGE = Usage(prompt_tokens=20_000, cached_tokens=0, output_tokens=200)
AHEAD = Usage(prompt_tokens=19_000, cached_tokens=1_000, output_tokens=1)


class Fleet(Playbook):
    """An orchestrator's sessions: it asks under one system prompt, and reads under another."""

    def __init__(self, *, follows_hints: bool = False, learns: int = 4, **settings: Any) -> None:
        ahead = {"enabled": True, **settings.pop("ahead", {})}
        super().__init__(replicas="", have_homes=True, prefill_ahead=ahead, **settings)
        _ = self >> up("a", follows_hints=follows_hints)
        for number in range(learns):
            self.asks(f"old-{number}").calls(f"old-{number}").reads(f"old-{number}")
            self.answers(f"old-{number}-2").over(f"old-{number}")
        for prefill in self.prefills:
            _ = self >> ev.PrefillEnded(prefill.turn, None)
        for heard in (self.prefills, self.stopped, self.records):
            heard.clear()

    def sends(self, turn: str, session: str, agent: int, *results: str, **fields: Any) -> "Fleet":
        self.arrives(
            turn,
            explicit=stated(session),
            transcript=Transcript(agent=agent, agent_type=agent),
            echoed_ids=results,
            tool_result_ids=results,
            **{"is_replayable": True, **fields},
        )
        self.now += 3.0
        _ = self >> started(turn) >> first_token(turn)
        self.now += 4.0
        return self

    def asks(self, session: str, **fields: Any) -> "Fleet":
        return self.sends(f"{session}-1", session, ASKS, **fields)

    def calls(self, session: str) -> "Fleet":
        """Its first answer ends, and its tools run for two seconds."""
        _ = self >> finished(f"{session}-1", f"call-{session}", usage=USAGE)
        self.now += 2.0
        return self

    def reads(self, session: str, agent: int = READS) -> "Fleet":
        return self.sends(f"{session}-2", session, agent, f"call-{session}")

    def answers(self, turn: str, cached: int = 0) -> "Fleet":
        usage = Usage(prompt_tokens=30_000, cached_tokens=cached, output_tokens=500)
        _ = self >> finished(turn, usage=usage)
        return self

    def over(self, session: str) -> "Fleet":
        _ = self >> ev.SessionFinished(self.session.id)
        return self

    def computed(self, usage: Usage | None = AHEAD) -> "Fleet":
        _ = self >> ev.PrefillEnded(self.prefills[-1].turn, usage)
        return self

    def outcomes(self) -> list[tuple[str, int]]:
        return [(record.outcome, record.used_tokens) for record in self.seen(rec.PrefilledAhead)]


def test_what_is_known_of_the_next_prompt_is_computed_while_tools_run_and_found():
    fleet = Fleet().asks("s").calls("s")
    [prefill] = fleet.prefills
    assert (prefill.turn, prefill.replica, prefill.agent) == ("s-1", "a", READS)
    fleet.computed().reads("s").answers("s-2", cached=19_000)
    assert fleet.outcomes() == [("used", 18_000)]


@pytest.mark.parametrize(
    ("cached", "outcome"), [(9_000, ("partly_used", 8_000)), (1_000, ("lost", 0)), (30_000, ("used", 18_000))]
)
def test_what_the_next_turn_finds_of_it_is_told(cached, outcome):
    fleet = Fleet().asks("s").calls("s").computed().reads("s").answers("s-2", cached=cached)
    assert fleet.outcomes() == [outcome]


def test_nothing_is_guessed_before_enough_was_seen():
    assert not Fleet(learns=0).asks("s").calls("s").prefills
    assert Fleet(learns=1).asks("s").calls("s").prefills


def test_nothing_is_computed_where_the_system_prompt_stays():
    fleet = Fleet(learns=0)
    for number in range(8):
        fleet.asks(f"s{number}").calls(f"s{number}").reads(f"s{number}", ASKS).over(f"s{number}-2")
    assert not fleet.prefills


def test_it_is_off_unless_it_is_asked_for():
    fleet = Fleet(ahead={"enabled": False}).asks("s").calls("s")
    assert not fleet.prefills and not fleet.brain.ahead._pauses


def test_the_next_turn_stops_it_and_what_was_computed_is_not_counted():
    fleet = Fleet().asks("s").calls("s").reads("s")
    assert fleet.stopped == ["s-1"] and not fleet.outcomes()
    fleet.computed(None).answers("s-2", cached=5_000)
    assert fleet.outcomes() == [("late", 0)]


def test_a_wrong_guess_is_told_and_unlearned():
    fleet = Fleet()
    for number in range(8):
        fleet.asks(f"s{number}").calls(f"s{number}")
        if fleet.prefills and fleet.prefills[-1].turn == f"s{number}-1":
            fleet.computed()
        fleet.reads(f"s{number}", 33 + number).answers(f"s{number}-2").over(f"s{number}")
    assert set(fleet.outcomes()) == {("wrong", 0)} and len(fleet.outcomes()) < 8


def test_nobody_came_back():
    fleet = Fleet().asks("s").calls("s").computed().over("s")
    assert fleet.outcomes() == [("cancelled", 0)]


def test_of_whom_is_over_nothing_more_is_computed():
    fleet = Fleet().asks("s").calls("s").over("s")
    assert fleet.stopped == ["s-1"] and fleet.outcomes() == [("cancelled", 0)]
    fleet.computed(None)
    assert fleet.outcomes() == [("cancelled", 0)]


def test_what_failed_is_told_once():
    fleet = Fleet().asks("s").calls("s").computed(None)
    assert fleet.outcomes() == [("failed", 0)]
    fleet.reads("s").answers("s-2")
    assert fleet.outcomes() == [("failed", 0)] and not fleet.stopped


def test_it_gives_way_to_a_turn_and_is_begun_again_when_that_is_over():
    fleet = Fleet().asks("s").calls("s").sends("other-1", "other", 44)
    assert fleet.stopped == ["s-1"] and len(fleet.prefills) == 1
    fleet.computed(None)
    assert fleet.outcomes() == [("gave_way", 0)] and len(fleet.prefills) == 1
    fleet.answers("other-1")
    assert len(fleet.prefills) == 2
    fleet.computed().reads("s").answers("s-2", cached=19_000)
    assert fleet.outcomes()[1:] == [("used", 18_000)]


def test_on_a_stock_engine_it_waits_until_nothing_else_is_in_flight_there():
    fleet = Fleet().asks("s").asks("t").asks("other").calls("s").calls("t")
    assert not fleet.prefills
    fleet.answers("other-1")
    assert [prefill.turn for prefill in fleet.prefills] == ["s-1"]
    fleet.computed()
    assert [prefill.turn for prefill in fleet.prefills] == ["s-1", "t-1"]


def test_what_has_gone_on_meanwhile_is_not_begun():
    fleet = Fleet().asks("other").asks("s").calls("s").reads("s").answers("s-2").answers("other-1")
    assert not fleet.prefills and not fleet.brain.ahead._wanted


def test_what_is_over_meanwhile_is_not_begun():
    fleet = Fleet().asks("other").asks("s").calls("s").over("s").answers("other-1")
    assert not fleet.prefills and not fleet.brain.ahead._wanted


def test_an_engine_that_follows_hints_computes_it_beside_others():
    fleet = Fleet(follows_hints=True).asks("s").asks("other").calls("s")
    assert [prefill.turn for prefill in fleet.prefills] == ["s-1"]


def test_what_gave_way_and_was_done_all_the_same_counts():
    fleet = Fleet().asks("s").calls("s").sends("other-1", "other", 44).computed()
    assert len(fleet.prefills) == 1
    fleet.reads("s").answers("s-2", cached=19_000)
    assert fleet.outcomes() == [("used", 18_000)]


def test_an_engine_that_follows_hints_puts_it_behind_by_itself():
    fleet = Fleet(follows_hints=True).asks("s").calls("s")
    hint = parse(fleet.prefills[0].hint or "")
    assert isinstance(hint, Hint) and hint.service is ServiceClass.PROACTIVE
    fleet.sends("other-1", "other", 44)
    assert not fleet.stopped


def test_it_takes_no_place():
    fleet = Fleet(max_running_per_replica=1).asks("s").calls("s")
    assert fleet.prefills
    fleet.sends("other-1", "other", 44)


@pytest.mark.parametrize(("kv_tokens", "is_sent"), [(60_000, True), (40_000, False)])
def test_it_costs_nobody_the_state_that_a_session_there_needs_again(kv_tokens, is_sent):
    fleet = Fleet()
    _ = fleet >> ev.EngineReported(ReplicaId("a"), EngineSignals(kv_tokens=kv_tokens))
    assert bool(fleet.asks("s").calls("s").prefills) == is_sent  # beside 20,200 tokens that it holds


def test_nothing_is_computed_ahead_while_somebody_waits():
    fleet = Fleet(max_running_per_replica=1).asks("s")
    _ = fleet >> arrived("waits", explicit=stated("waits")) >> arrived("too", explicit=stated("too"))
    _ = fleet >> finished("s-1", "call-s", usage=USAGE)
    assert fleet.take().request == "waits" and not fleet.prefills


def test_what_may_not_run_twice_is_not_sent_ahead():
    assert not Fleet().asks("s", is_replayable=False).calls("s").prefills


def test_no_more_than_so_many_at_a_time():
    fleet = Fleet(ahead={"max_concurrent": 1}).asks("s").asks("t").calls("s").calls("t")
    assert [prefill.turn for prefill in fleet.prefills] == ["s-1"]


def test_what_one_tenant_teaches_is_not_guessed_for_another():
    fleet = Fleet()
    asks = Transcript(agent=ASKS)
    fleet.begins("x-1", "other", explicit=stated("x"), transcript=asks, is_replayable=True)
    _ = fleet >> first_token("x-1") >> finished("x-1", "call-x", usage=USAGE)
    assert not fleet.prefills


def test_a_replica_that_dies_and_leaves_is_forgotten_when_its_prefill_has_ended():
    fleet = Fleet().asks("s").calls("s")
    _ = fleet >> up("b") >> down("a") >> ev.ReplicaLeft(ReplicaId("a"), "is no member")
    assert fleet.brain.fleet.get(ReplicaId("a")) is not None
    fleet.computed(None)
    assert fleet.brain.fleet.get(ReplicaId("a")) is None and fleet.outcomes() == [("failed", 0)]


def test_an_end_of_what_never_began_is_the_drivers_mistake():
    fleet = Fleet().asks("s").calls("s").computed()
    with pytest.raises(LifecycleError, match="no prefill of s-1"):
        fleet.brain.handle(ev.PrefillEnded(RequestId("s-1"), None), now=fleet.now)


def test_a_fault_when_it_ends_leaves_nothing_in_the_books(monkeypatch):
    fleet = Fleet().asks("s").calls("s")
    monkeypatch.setattr(fleet.brain.placement.ledger, "turn_over", lambda *_: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        fleet.brain.handle(ev.PrefillEnded(RequestId("s-1"), AHEAD), now=fleet.now)
    fleet.brain.recover(now=fleet.now)
    check_books(fleet.brain)
    state = fleet.brain.fleet.get(ReplicaId("a"))
    assert state is not None and state.light == 0


def test_every_prefill_is_told_once_whatever_happens():
    """Random lives of sessions; the books are checked behind every event."""
    for seed in range(examples(30)):
        dice = random.Random(seed)
        fleet = Fleet(max_running_per_replica=3, ahead={"max_concurrent": 2})
        begun = _lives(fleet, dice)
        assert len(fleet.outcomes()) == begun, f"seed {seed}"
        ahead = fleet.brain.ahead
        assert not ahead._under_way and not ahead._awaited and not ahead._wanted


def _lives(fleet: Fleet, dice: random.Random) -> int:
    live: dict[str, str] = {}
    open_prefills: list[RequestId] = []
    seen = 0
    for number in range(120):
        fleet.now += dice.random()
        choice = dice.random()
        if choice < 0.4:
            event: ev.Event = arrived(
                f"t{number}",
                explicit=stated(f"s{dice.randrange(6)}"),
                transcript=Transcript(agent=dice.choice([ASKS, READS, READS])),
                is_replayable=True,
            )
            live[f"t{number}"] = "asked"
        elif choice < 0.8 and live:
            event = _step(live, dice.choice(list(live)), dice)
        elif choice < 0.95 and open_prefills:
            event = ev.PrefillEnded(open_prefills.pop(0), dice.choice([None, AHEAD]))
        elif len(fleet.brain.sessions.sessions):
            event = ev.SessionFinished(fleet.session.id)
        else:
            continue
        _ = fleet >> event
        _take_decisions(fleet, live)
        open_prefills += [prefill.turn for prefill in fleet.prefills[seen:]]
        seen = len(fleet.prefills)
    for turn in list(live):
        _ = fleet >> left(turn)
        _take_decisions(fleet, live)
    for session in list(fleet.brain.sessions.sessions.newest_first()):
        _ = fleet >> ev.SessionFinished(session.id)
    open_prefills += [prefill.turn for prefill in fleet.prefills[seen:]]
    for turn_id in open_prefills:
        _ = fleet >> ev.PrefillEnded(turn_id, None)
    return len(fleet.prefills)


def _step(live: dict[str, str], turn: str, dice: random.Random) -> ev.Event:
    was = live.pop(turn)
    if was == "asked":
        return left(turn)
    if was == "answering":
        return finished(turn, *[f"call-{turn}"] * (dice.random() < 0.8), usage=USAGE)
    if dice.random() < 0.1:
        return failed(turn, timed_out=True)
    live[turn] = "answering"
    return started(turn)


def _take_decisions(fleet: Fleet, live: dict[str, str]) -> None:
    while fleet.decisions:
        decision = fleet.take()
        if str(decision.request) in live:
            live[str(decision.request)] = "sent"
            if not isinstance(decision, Dispatch):
                del live[str(decision.request)]
