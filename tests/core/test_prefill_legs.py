"""Turns whose prompts are computed on one replica and decoded on another."""

import random
from typing import Any

import pytest

from gateway.core import events as ev
from gateway.core.commands import Dispatch, Refuse
from gateway.core.fleet import PoolFacts
from gateway.core.live_settings import LiveSettings
from gateway.core.turns.lifecycle import LifecycleError
from gateway.domain import records as rec
from gateway.domain.decision import PlacementReason, RefusalReason
from gateway.domain.fleet import ReplicaLoad
from gateway.domain.ids import PoolId, ReplicaId, RequestId
from gateway.domain.request import Protocol, Usage, Work
from gateway.routing.placement import PredictedPlacement
from lab.simulator.invariants import check_books
from tests.core.playbook import (
    Playbook,
    arrived,
    at_once,
    dispatch,
    down,
    failed,
    finished,
    first_token,
    left,
    nothing,
    refuse,
    started,
    stated,
    up,
)

USAGE = Usage(prompt_tokens=5_000, cached_tokens=0, output_tokens=1)
LONG, SHORT = 20_000, 400
ROLES = {"p": "prefill", "d": "decode", "e": "decode"}
SPREAD = {"d", "e"}


class Fleet(Playbook):
    """`p` computes prompts, `d` and `e` decode. Prompts of a thousand tokens go to `p` first."""

    def __init__(
        self,
        up: str = "p d e",
        *,
        roles: dict[str, str] | None = None,
        disaggregation: dict[str, Any] | None = None,
        transfer: str = "shared_storage",
        prices: dict[str, float] | None = None,
        **settings: Any,
    ) -> None:
        if prices is not None:
            settings["routing"] = {"price_per_s": 1.0}
        replicas = [
            {
                "url": f"http://{name}",
                "name": name,
                "role": role,
                "price_per_h": 3_600.0 * (prices or {}).get(name, 0.0),
            }
            for name, role in (roles or ROLES).items()
        ]
        super().__init__(
            replicas=up,
            pools=({"name": "pool", "transfer": transfer, "replicas": replicas},),
            have_homes=True,
            disaggregation=disaggregation if disaggregation is not None else {"threshold_tokens": 1_000},
            **settings,
        )

    def asks(self, turn: str, *, session: str | None = None, size: int = LONG, **fields: Any) -> "Fleet":
        fields = {"is_replayable": True, "stream": True, "body_bytes": size, **fields}
        _ = self >> arrived(turn, explicit=stated(session or turn), **fields)
        return self

    def sent_on(self) -> Dispatch:
        sent = self.take()
        assert isinstance(sent, Dispatch)
        return sent

    def ended(self, turn: str, usage: Usage | None = USAGE, **fields: Any) -> "Fleet":
        _ = self >> ev.PrefillLegEnded(RequestId(turn), usage, **fields)
        return self

    def runs(self, turn: str, **usage: Any) -> "Fleet":
        self.sent = self.sent_on()
        told = Usage(**{"prompt_tokens": 5_000, "cached_tokens": 0, "output_tokens": 20, **usage})
        _ = self >> started(turn) >> first_token(turn) >> finished(turn, usage=told)
        return self

    def running(self, replica: str) -> int:
        state = self.brain.fleet.get(ReplicaId(replica))
        assert state is not None
        return state.running

    def outcomes(self) -> list[str]:
        return [record.outcome for record in self.seen(rec.PrefillLegEnded)]

    def seconds_of(self, tokens: float) -> float:
        return self.brain.legs._rates[PoolId("pool")].transfer_s(tokens, now=self.now)


@pytest.mark.parametrize("drained", sorted(SPREAD))
def test_a_long_prompt_is_computed_first_and_the_turn_placed_when_that_has_ended(drained):
    fleet = Fleet().asks("r1")
    [leg] = fleet.legs
    assert (leg.request, leg.replica) == ("r1", "p") and not fleet.decisions
    assert (fleet.running("p"), fleet.running("d"), fleet.running("e")) == (1, 0, 0)
    _ = fleet >> ev.ReplicaDrained(ReplicaId(drained), is_draining=True)
    fleet.ended("r1")
    sent = fleet.sent_on()
    assert sent.placement.replica in SPREAD - {drained}, "it was free to go to either"
    assert sent.attempt == 1 and fleet.running("p") == 0 and fleet.outcomes() == ["ready"]


def test_a_short_prompt_goes_straight_to_where_it_is_decoded():
    fleet = Fleet().asks("r1", size=SHORT)
    sent = fleet.sent_on()
    assert sent.placement.replica in SPREAD and not fleet.legs


def test_a_warm_prompt_goes_straight_to_its_home():
    fleet = Fleet().asks("r1", session="s").ended("r1").runs("r1", cached_tokens=4_990)
    home = fleet.sent.placement.replica
    fleet.asks("r2", session="s", size=LONG + 400, echoed_ids=()).runs("r2", cached_tokens=5_000)
    assert fleet.sent.placement.replica == home and len(fleet.legs) == 1
    assert fleet.sent.placement.reason is PlacementReason.SESSION_LIVES_THERE


@pytest.mark.parametrize(
    "fields",
    [
        {"is_replayable": False},
        {"is_readable": False},
        {"protocol": Protocol.OTHER},
        {"protocol": Protocol.RESPONSES, "state_ids": ("resp_1",)},
        {"protocol": Protocol.RESPONSES, "is_replayable": False, "stores": True},
        {"moves_kv": True},
        {"work": Work.POOL},
        {"work": Work.LIGHT},
    ],
    ids=str,
)
def test_what_may_not_be_asked_for_one_token_has_no_leg(fields):
    fleet = Fleet().asks("r1", **fields)
    fleet.sent_on()
    assert not fleet.legs


def test_a_response_that_is_not_stored_has_one():
    fleet = Fleet().asks("r1", protocol=Protocol.RESPONSES)
    assert len(fleet.legs) == 1


@pytest.mark.parametrize("is_fault", [True, None])
def test_a_leg_that_fails_leaves_the_turn_to_compute_its_prompt_itself(is_fault):
    fleet = Fleet().asks("r1").ended("r1", None, is_fault=is_fault)
    fleet.runs("r1")
    assert fleet.sent.placement.replica in SPREAD and len(fleet.legs) == 1
    assert fleet.outcomes() == ["failed"] and fleet.running("p") == 0
    blamed = fleet.brain.fleet.health._breakers[ReplicaId("p")].failed_of
    assert blamed == (("t",) if is_fault else ()), "a leg is its tenant's, too"


def test_a_replica_whose_legs_fail_is_left_alone():
    fleet = Fleet()
    for number in range(3):
        fleet.asks(f"r{number}").ended(f"r{number}", None, is_fault=True).runs(f"r{number}")
    fleet.asks("r3").runs("r3")
    assert len(fleet.legs) == 3
    fleet.now += 6.0
    fleet.asks("r4").asks("r5").runs("r5")
    assert len(fleet.legs) == 4, "one is tried after a rest"
    fleet.ended("r4", is_fault=False).runs("r4")
    fleet.now += 60.0
    fleet.asks("r6").asks("r7")
    assert len(fleet.legs) == 6


def test_a_client_that_leaves_ends_its_leg():
    fleet = Fleet().asks("r1")
    _ = fleet >> left("r1") << nothing
    assert fleet.running("p") == 0 and fleet.outcomes() == ["client_left"] and not fleet.brain.live
    assert [record.turn for record in fleet.seen(rec.TurnLeft)] == ["r1"]
    with pytest.raises(LifecycleError, match="is over"):
        fleet.brain.handle(ev.PrefillLegEnded(RequestId("r1"), USAGE), now=fleet.now)


def test_an_end_of_a_leg_that_nobody_began_is_the_drivers_mistake():
    fleet = Fleet().asks("r1", size=SHORT)
    with pytest.raises(LifecycleError, match="submitted cannot hand over"):
        fleet.brain.handle(ev.PrefillLegEnded(RequestId("r1"), USAGE), now=fleet.now)


def test_a_turn_whose_decoding_fails_is_tried_elsewhere_without_another_leg():
    fleet = Fleet().asks("r1").ended("r1")
    first = fleet.sent_on()
    _ = fleet >> failed("r1", was_sent=True)
    [other] = SPREAD - {first.placement.replica}
    _ = fleet << dispatch("r1", to=other, because=PlacementReason.RETRIED_ELSEWHERE)
    assert len(fleet.legs) == 1 and fleet.brain.live[RequestId("r1")].handed_over == 0.0


def test_who_is_for_prompts_gets_a_turn_only_where_nobody_else_is_left():
    fleet = Fleet("p d", roles={"p": "prefill", "d": "decode"}, core={"no_replica_wait_s": 0})
    for number in range(20):
        fleet.asks(f"r{number}", size=SHORT)
        sent = fleet.sent_on()
        assert sent.placement.replica == "d"
    _ = fleet >> down("d")
    fleet.asks("last", size=LONG)
    _ = fleet << dispatch("last", to="p")
    assert not fleet.legs
    _ = fleet >> up("d")
    fleet.asks("next", size=SHORT)
    assert fleet.sent_on().placement.replica == "d"


def test_who_waits_goes_to_a_replica_for_prompts_when_the_last_other_one_dies():
    fleet = Fleet("p d", max_running_per_replica=1).asks("r1", size=SHORT)
    fleet.sent_on()
    fleet.asks("r2", size=SHORT)
    assert not fleet.decisions
    _ = fleet >> down("d")
    sent = fleet.sent_on()
    assert (sent.request, sent.placement.replica) == ("r2", "p")


def test_admission_counts_those_that_decode():
    fleet = Fleet()
    pool = fleet.brain.admission.pools[PoolId("pool")]
    assert set(pool.limits._up) == SPREAD
    _ = fleet >> down("d") >> down("e")
    assert set(pool.limits._up) == {"p"}


def test_a_full_replica_computes_no_more():
    fleet = Fleet(max_running_per_replica=1).asks("r1").asks("r2")
    assert len(fleet.legs) == 1
    assert fleet.take().request == "r2"


def test_whoever_comes_from_its_leg_waits_for_a_place_like_others():
    fleet = Fleet("p d", max_running_per_replica=1).asks("r1")
    fleet.asks("r2", size=SHORT)
    assert fleet.take().request == "r2"
    fleet.ended("r1")
    assert not fleet.decisions and RequestId("r1") in fleet.brain.waiting_room
    _ = fleet >> at_once("r2")
    assert fleet.take().request == "r1" and len(fleet.legs) == 1


def test_who_waits_for_a_place_has_its_prompt_computed_when_it_has_one():
    fleet = Fleet("p d", max_running_per_replica=1).asks("r1", size=SHORT)
    fleet.sent_on()
    fleet.asks("r2")
    assert not fleet.legs
    _ = fleet >> at_once("r1")
    assert [leg.request for leg in fleet.legs] == ["r2"]


def test_a_place_that_a_leg_took_goes_to_whoever_waits():
    fleet = Fleet("d b", roles={"d": "decode", "b": "both"}, max_running_per_replica=1)
    fleet.asks("r1")
    assert fleet.legs[0].replica == "b"
    fleet.asks("r2", size=SHORT).sent_on()
    fleet.asks("r3", size=SHORT)
    assert not fleet.decisions
    _ = fleet >> left("r1") << dispatch("r3", to="b")


def test_what_was_handed_over_is_as_good_anywhere():
    """So a session whose home is busy need not stay there for what it left."""
    fleet = Fleet().asks("r1", session="s").ended("r1").runs("r1", prompt_tokens=100_000)
    home = fleet.sent.placement.replica
    [other] = SPREAD - {home}
    _ = fleet >> ev.ReplicaDrained(ReplicaId(other), is_draining=True)
    for number in range(8):
        fleet.asks(f"busy-{number}", size=SHORT).sent_on()
    _ = fleet >> ev.ReplicaDrained(ReplicaId(other), is_draining=False)
    fleet.asks("r2", session="s", size=2 * LONG, echoed_ids=())
    grown = Usage(prompt_tokens=110_000, cached_tokens=0, output_tokens=1)
    sent = fleet.ended("r2", grown).sent_on()
    assert len(fleet.legs) == 2 and sent.placement.replica == other


def test_a_leg_may_end_when_nobody_decodes_any_more():
    fleet = Fleet("p d", core={"no_replica_wait_s": 0}).asks("r1")
    _ = fleet >> down("d") >> down("p")
    fleet.ended("r1", None, is_fault=True)
    _ = fleet << refuse("r1", RefusalReason.NO_REPLICA)
    assert not fleet.brain.live


def test_a_replica_that_leaves_is_forgotten_when_its_leg_has_ended():
    fleet = Fleet().asks("r1")
    _ = fleet >> down("p") >> ev.ReplicaLeft(ReplicaId("p"), "is no member")
    assert fleet.brain.fleet.get(ReplicaId("p")) is not None
    fleet.ended("r1", None)
    fleet.sent_on()
    assert fleet.brain.fleet.get(ReplicaId("p")) is None


def test_it_is_known_what_the_prefill_replica_holds():
    fleet = Fleet().asks("r1", session="s").ended("r1")
    placement = fleet.brain.placement
    assert isinstance(placement, PredictedPlacement)
    fleet.sent_on()
    session = fleet.brain.live[RequestId("r1")].session
    assert session is not None and placement.ledger.held_by(session, ReplicaId("p")) == 5_001


# --- what is predicted -------------------------------------------------------------------------------


def test_where_nothing_is_gained_nothing_is_computed_elsewhere():
    fleet = Fleet(disaggregation={}).asks("r1", size=400_000)
    fleet.sent_on()
    assert not fleet.legs, "both are idle and alike"


def busy(fleet: Fleet) -> Fleet:
    for number in range(6):
        fleet.asks(f"runs-{number}", size=SHORT)
        fleet.sent_on()
        _ = fleet >> started(f"runs-{number}") >> first_token(f"runs-{number}")
    return fleet


def busy_fleet(**disaggregation: Any) -> Fleet:
    return busy(Fleet("p d", roles={"p": "prefill", "d": "decode"}, disaggregation=disaggregation))


def test_what_would_hold_up_those_that_decode_is_computed_elsewhere():
    fleet = busy_fleet().asks("r1", size=400_000)
    assert [leg.request for leg in fleet.legs] == ["r1"]
    assert fleet.legs[0].limit_s >= 10.0


@pytest.mark.parametrize(("role", "legs"), [("prefill", 1), ("both", 0)])
def test_what_could_run_as_a_whole_where_it_would_be_computed_has_no_leg(role, legs):
    """Its home is busy, and the other replica idle: the turn moves there, if it may."""
    fleet = Fleet("p d", roles={"p": role, "d": "decode"}, disaggregation={})
    _ = fleet >> ev.ReplicaDrained(ReplicaId("p"), is_draining=True)
    fleet.asks("r0", session="s", size=SHORT).sent_on()
    _ = fleet >> left("r0")
    _ = busy(fleet) >> ev.ReplicaDrained(ReplicaId("p"), is_draining=False)
    fleet.asks("r1", session="s", size=400_000)
    assert len(fleet.legs) == legs
    if not legs:
        sent = fleet.sent_on()
        assert (sent.placement.replica, sent.placement.reason) == ("p", PlacementReason.HOME_IS_BUSY)


def test_a_slow_transfer_is_not_worth_it():
    fleet = busy_fleet(tokens_per_s=1_000.0).asks("r1", size=400_000)
    fleet.sent_on()
    assert not fleet.legs


def test_prompts_that_wait_there_count():
    fleet = busy_fleet()
    for number in range(12):
        fleet.asks(f"r{number}", size=400_000).decisions.clear()
    assert 1 <= len(fleet.legs) < 12


def test_prompts_that_wait_there_hold_up_nobody():
    fleet = busy_fleet().asks("r1", size=400_000)
    assert len(fleet.legs) == 1 and fleet.running("p") == 1
    work = fleet.brain.legs._work(ReplicaLoad(ReplicaId("p"), 1), 5_000.0, 0.0, now=fleet.now)
    assert work.turns == 0 and work.first_token_s > 1.5 * work.prefill_s, "but come first"


def test_a_prompt_is_begun_when_the_one_before_it_is_over():
    fleet = Fleet().asks("r1").asks("r2")
    fleet.now += 30.0
    fleet.ended("r1").sent_on()
    queued = fleet.brain.forecasts._of(ReplicaId("p")).in_flight.load(now=fleet.now).queued_tokens
    assert queued > 1_000


def test_what_a_transfer_takes_is_seen_at_the_first_token():
    fleet = Fleet()
    before_s = fleet.seconds_of(10_000)
    for number in range(8):
        turn = f"r{number}"
        fleet.asks(turn).ended(turn)
        fleet.sent_on()
        _ = fleet >> started(turn)
        fleet.later(3.0)
        _ = fleet >> first_token(turn) >> finished(turn, usage=USAGE)
    assert before_s == pytest.approx(0.2) and fleet.seconds_of(10_000) > 4.0


def test_what_a_transfer_takes_is_no_lesson_about_a_replica():
    fleet = Fleet().asks("r1").ended("r1")
    fleet.sent_on()
    _ = fleet >> started("r1")
    fleet.later(30.0)
    forecasts = fleet.brain.forecasts
    replica = fleet.brain.live[RequestId("r1")].replica
    assert replica is not None
    _ = fleet >> first_token("r1") >> finished("r1", usage=USAGE)
    assert forecasts._of(replica).estimator.observations == 0
    assert forecasts._of(ReplicaId("p")).estimator.observations == 1, "but its leg was one"


# --- faults, and chance ------------------------------------------------------------------------------


@pytest.mark.parametrize("broken", ["leg_sent", "completion_s"])
def test_a_fault_when_a_leg_is_to_begin_costs_nobody_an_answer(monkeypatch, broken):
    fleet = Fleet()
    monkeypatch.setattr(fleet.brain.forecasts, broken, lambda *_, **__: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        fleet.asks("r1", protocol=Protocol.CHAT)
    commands = fleet.brain.recover(now=fleet.now)
    assert [each.request for each in commands if isinstance(each, Dispatch)] == ["r1"]
    check_books(fleet.brain)


@pytest.mark.parametrize("broken", ["gate.decide", "dispatcher.leg_ended", "legs.ended"])
def test_a_fault_when_a_leg_ends_costs_nobody_an_answer(monkeypatch, broken):
    fleet = Fleet().asks("r1")
    *path, name = broken.split(".")
    owner: Any = fleet.brain
    for each in path:
        owner = getattr(owner, each)
    monkeypatch.setattr(owner, name, lambda *_, **__: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        fleet.brain.handle(ev.PrefillLegEnded(RequestId("r1"), USAGE), now=fleet.now)
    commands = fleet.brain.recover(now=fleet.now)
    assert [each.request for each in commands if isinstance(each, Dispatch)] == ["r1"]
    check_books(fleet.brain)
    assert fleet.running("p") == 0


class Chance:
    """Anything may come at any time; each request is asked, sent, answered, lost or left."""

    def __init__(self, seed: int) -> None:
        self.dice = random.Random(seed)
        self.fleet = Fleet(
            "p d e b", roles={**ROLES, "b": "both"}, max_running_per_replica=2, core={"no_replica_wait_s": 0}
        )
        self.phases: dict[str, str] = {}
        self.had_legs = 0
        self._asked = 0

    def take(self) -> None:
        fleet = self.fleet
        for each in fleet.decisions:
            if isinstance(each, Refuse):
                del self.phases[each.request]
            else:
                self.phases[each.request] = "sent"
        for leg in fleet.legs:
            self.had_legs += 1
            self.phases[leg.request] = "leg"
        fleet.decisions.clear()
        fleet.legs.clear()

    def one(self, *phases: str) -> str | None:
        found = [turn for turn, phase in self.phases.items() if phase in phases]
        return self.dice.choice(found) if found else None

    def ask(self) -> None:
        self._asked += 1
        turn, dice = f"r{self._asked}", self.dice
        self.phases[turn] = "waits"
        self.fleet.asks(turn, session=f"s{dice.randrange(9)}", size=dice.choice([SHORT, LONG]))

    def end_leg(self) -> None:
        if (turn := self.one("leg")) is not None:
            self.phases[turn] = "waits"
            usage = self.dice.choice([USAGE, None])
            is_fault = self.dice.choice([True, None]) if usage is None else False
            self.fleet.ended(turn, usage, is_fault=is_fault)

    def start(self) -> None:
        if (turn := self.one("sent")) is not None:
            self.phases[turn] = "on"
            _ = self.fleet >> started(turn)
            self.take()
            _ = self.fleet >> first_token(turn)

    def finish(self) -> None:
        if (turn := self.one("on")) is not None:
            del self.phases[turn]
            _ = self.fleet >> finished(turn, usage=USAGE)

    def fail(self) -> None:
        if (turn := self.one("sent")) is not None:
            self.phases[turn] = "waits"
            _ = self.fleet >> failed(turn, was_sent=self.dice.choice([True, False]))

    def leave(self) -> None:
        if (turn := self.one("waits", "leg", "sent", "on")) is not None:
            del self.phases[turn]
            _ = self.fleet >> left(turn)

    def lose(self) -> None:
        _ = self.fleet >> down(self.dice.choice("pdeb"))

    def find(self) -> None:
        _ = self.fleet >> up(self.dice.choice("pdeb"))

    def happens(self) -> None:
        what = [self.ask, self.ask, self.end_leg, self.end_leg, self.start, self.finish, self.fail]
        self.dice.choice([*what, self.leave, self.lose, self.find])()
        self.take()
        self.fleet.later(0.5)
        self.take()


@pytest.mark.parametrize("seed", range(20))
def test_whatever_happens_the_books_balance(seed):
    chance = Chance(seed)
    for _ in range(300):
        chance.happens()
    while chance.phases:
        chance.leave()
        chance.take()
    assert chance.had_legs
    brain = chance.fleet.brain
    assert not brain.live and not any(state.running for state in brain.fleet)


def test_a_prompt_goes_to_the_cheaper_of_equal_replicas():
    roles = {"p": "prefill", "q": "prefill", "d": "decode"}
    for dear, cheap in (("p", "q"), ("q", "p")):
        fleet = Fleet("p q d", roles=roles, prices={dear: 0.2}).asks("r1")
        assert fleet.legs[-1].replica == cheap


BOTH = {"d": "both", "e": "both"}


def test_a_rented_replica_gets_turns_once_the_others_are_late_enough():
    fleet = Fleet("d e", roles=BOTH, prices={"e": 1.0})
    places = [fleet.asks(f"r{number}", size=SHORT).sent_on().placement for number in range(12)]
    assert places[0].replica == "d" and places[0].reason is PlacementReason.LEAST_LOADED
    assert places[1].replica == "d" and places[1].reason is PlacementReason.CHEAPER
    assert "e" in {each.replica for each in places}


def test_prices_are_swapped_in_place():
    fleet = Fleet("d e", roles=BOTH, prices={"e": 9.0})
    assert fleet.asks("r1", size=SHORT).sent_on().placement.replica == "d"
    _ = fleet >> ev.SettingsChanged(
        LiveSettings(pools=(PoolFacts(PoolId("pool")),), prices={ReplicaId("d"): 9.0})
    )
    assert fleet.asks("r2", size=SHORT).sent_on().placement.replica == "e"
    assert fleet.asks("r3", size=SHORT).sent_on().placement.replica == "e"
