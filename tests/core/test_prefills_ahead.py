"""Sessions on their way: their prefix is computed where they go while tools run, and they follow it."""

from typing import Any

import pytest

from gateway.core import events as ev
from gateway.core.commands import Dispatch
from gateway.core.invariants import check_books
from gateway.core.lifecycle import LifecycleError
from gateway.domain import records as rec
from gateway.domain.decision import PlacementReason
from gateway.domain.fleet import Abilities, ReplicaFacts
from gateway.domain.ids import PoolId, ReplicaId, RequestId
from gateway.domain.request import Usage
from gateway.routing.predicted import PredictedPlacement
from tests.core.playbook import Playbook, arrived, down, finished, first_token, started, stated
from turnpike_vllm.hints import Hint, ServiceClass, parse

USAGE = Usage(prompt_tokens=5000, cached_tokens=100, output_tokens=20)
STEALS = {"enabled": True, "idle_s": 0.1, "ratio": 1.0}


class Fleet(Playbook):
    """`a` has four sessions: two run, the tools of `s5` have run for longest; `b` has come and idles."""

    def __init__(self, *, follows_hints: bool = False, may_be_repeated: bool = True, **settings: Any) -> None:
        self.may_be_repeated = may_be_repeated
        super().__init__(replicas="", have_homes=True, routing={"stealing": STEALS}, **settings)
        abilities = Abilities(turnpike_hints=follows_hints)
        self.joins("a", abilities)
        self.asks("s5").answers("s5", "call-5", usage=USAGE)
        for number in range(3):
            self.asks(f"s{number}")
        self.joins("b", abilities)
        self.answers("s0", "call-0")  # somebody looks around, and `b` idles since now
        self.now += 0.2
        self.asks("s0", "call-0", turn="s0-2").answers("s0-2", "call-0-2")

    def joins(self, name: str, abilities: Abilities) -> None:
        _ = self >> ev.ReplicaCameUp(
            ReplicaFacts(id=ReplicaId(name), pool=PoolId("pool"), abilities=abilities)
        )

    def asks(self, session: str, *results: str, turn: str | None = None) -> "Fleet":
        turn = turn or session
        _ = self >> arrived(
            turn,
            explicit=stated(session),
            echoed_ids=results,
            tool_result_ids=results,
            is_replayable=self.may_be_repeated,
        )
        sent = self.take()
        assert isinstance(sent, Dispatch)
        self.sent = sent
        _ = self >> started(turn) >> first_token(turn)
        return self

    def answers(self, turn: str, *calls: str, **fields: Any) -> "Fleet":
        _ = self >> finished(turn, *calls, **{"usage": USAGE, **fields})
        return self

    def ended(self, usage: Usage | None = USAGE) -> "Fleet":
        _ = self >> ev.PrefillEnded(self.prefills[-1].turn, usage)
        return self

    def running(self, replica: str) -> int:
        state = self.brain.fleet.get(ReplicaId(replica))
        assert state is not None
        return state.running

    def moves(self) -> list[str]:
        return [record.outcome for record in self.seen(rec.PrefixMoved)]


def test_what_a_pausing_session_left_is_computed_where_it_goes_and_it_follows():
    fleet = Fleet()
    [prefill] = fleet.prefills
    assert (prefill.turn, prefill.replica, prefill.hint) == ("s5", "b", None)
    assert fleet.running("b") == 1, "it takes a place there"
    fleet.ended()
    assert fleet.running("b") == 0 and fleet.moves() == ["ready"]
    fleet.asks("s5", "call-5", turn="s5-2")
    assert (fleet.sent.placement.replica, fleet.sent.placement.reason) == ("b", PlacementReason.STOLEN)
    assert not fleet.stopped


def test_who_goes_on_sooner_stays_and_nobody_computes_for_it_any_more():
    fleet = Fleet()
    fleet.asks("s5", "call-5", turn="s5-2")
    assert fleet.sent.placement.replica == "a" and fleet.stopped == ["s5"]
    assert fleet.running("b") == 1, "until it has stopped"
    fleet.ended(None)
    assert fleet.running("b") == 0 and fleet.moves() == ["late"]


def test_what_was_computed_too_late_is_not_waited_for():
    fleet = Fleet()
    fleet.asks("s5", "call-5", turn="s5-2").ended().answers("s5-2", "call-6")
    assert fleet.moves() == ["late"]
    placement = fleet.brain.gate.placement
    assert isinstance(placement, PredictedPlacement)
    prefill = fleet.prefills[0]
    assert not placement.ledger.held((prefill.session, prefill.thread), ReplicaId("b"))
    assert fleet.asks("s5", "call-6", turn="s5-3").sent.placement.replica == "a"


def test_what_may_not_run_twice_does_not_go_ahead():
    assert not Fleet(may_be_repeated=False).prefills


def test_whoever_waits_gets_the_place():
    fleet = Fleet(max_running_per_replica=3)
    for number in range(6, 9):
        fleet.asks(f"s{number}")
    _ = fleet >> arrived("waits", explicit=stated("waits"))
    assert not fleet.decisions
    fleet.ended()
    assert fleet.take().request == "waits"


def test_it_is_stopped_once():
    fleet = Fleet()
    fleet.asks("s5", "call-5", turn="s5-2").answers("s5-2")
    _ = fleet >> ev.SessionFinished(fleet.prefills[0].session)
    assert fleet.stopped == ["s5"]


def test_who_could_not_be_prefilled_stays():
    fleet = Fleet().ended(None)
    assert fleet.moves() == ["failed"] and fleet.running("b") == 0
    assert fleet.asks("s5", "call-5", turn="s5-2").sent.placement.replica == "a" and not fleet.stopped


def test_of_whom_is_over_nothing_is_computed():
    fleet = Fleet()
    session = fleet.prefills[0].session
    _ = fleet >> ev.SessionFinished(session)
    assert fleet.stopped == ["s5"]
    fleet.ended(None)
    assert not fleet.brain.gate.ahead


def test_a_thief_that_dies_and_leaves_is_forgotten_when_its_prefill_has_ended():
    fleet = Fleet()
    _ = fleet >> down("b") >> ev.ReplicaLeft(ReplicaId("b"), "is no member")
    assert fleet.brain.fleet.get(ReplicaId("b")) is not None
    fleet.ended(None)
    assert fleet.brain.fleet.get(ReplicaId("b")) is None
    assert fleet.asks("s5", "call-5", turn="s5-2").sent.placement.replica == "a"


def test_an_end_of_what_never_began_is_the_drivers_mistake():
    fleet = Fleet().ended()
    with pytest.raises(LifecycleError, match="no prefill of s5"):
        fleet.brain.handle(ev.PrefillEnded(RequestId("s5"), None), now=fleet.now)


def test_a_fault_when_it_ends_leaves_no_place_taken(monkeypatch):
    fleet = Fleet()
    monkeypatch.setattr(fleet.brain.gate.placement, "moved", lambda *_: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        fleet.brain.handle(ev.PrefillEnded(RequestId("s5"), USAGE), now=fleet.now)
    fleet.brain.recover(now=fleet.now)
    check_books(fleet.brain)
    assert fleet.running("b") == 0


def test_engines_are_told_where_it_goes_and_that_it_left():
    fleet = Fleet(follows_hints=True)
    ahead = read(fleet.prefills[0].hint)
    assert ahead.service is ServiceClass.PROACTIVE
    assert ahead.retain_s and ahead.reuse
    fleet.ended()
    fleet.hints.clear()
    fleet.asks("s5", "call-5", turn="s5-2")
    [gone] = [told for told in fleet.hints if told.replica == "a"]
    released, with_request = read(gone.hint), read(fleet.sent.hint)
    assert (released.retain_s, released.reuse, released.thread) == (0.0, 0.0, ahead.thread)
    assert with_request.attained and 4800 < with_request.attained < 4920, "what it was served elsewhere"
    fleet.answers("s5-2", "call-6").asks("s5", "call-6", turn="s5-3")
    others = [told for told in fleet.hints if told is not gone]
    assert others and all(told.replica == "b" and read(told.hint).retain_s for told in others)
    assert ahead.seq < released.seq < with_request.seq
    sub_agent = arrived("sub", explicit=stated("s5", thread="sub"))
    fleet.hints.clear()
    _ = fleet >> down("b") >> sub_agent
    assert not fleet.hints, "it was never there"


def read(text: str | None) -> Hint:
    assert text is not None
    found = parse(text)
    assert isinstance(found, Hint), found
    return found
