"""Prompts that are computed on one replica and decoded on another: the books of the first legs (X5).

A turn whose prompt is worth computing elsewhere (`gateway/routing/disaggregation.py`) has that done first; it
is placed when its leg has ended, where it is best then. However the leg ends, the turn goes on: without what
the leg computed it computes its prompt itself.

Source: Agent.xpu (arXiv 2506.24045), §4.3: a prefill pipeline and a decode pipeline, bound late.

Deviations: the place of the turn is taken when it is placed, as of any other; while its leg runs, it has none
where it will decode. A turn has at most one leg.

Invariants: a leg is in its replica's books from its command until its end or its client's; a
request has one if and only if it is prefilling; each has one outcome.
"""

import heapq
from collections.abc import Callable, Sequence
from typing import Final, NamedTuple

import msgspec

from gateway.core.brain_state import BrainState
from gateway.core.commands import RemotePrefill
from gateway.core.turns.live import LiveRequest
from gateway.cost.estimator import Prediction, TurnWork
from gateway.cost.transfer import TransferRate
from gateway.domain.fleet import ReplicaLoad
from gateway.domain.ids import PoolId, ReplicaId, RequestId
from gateway.domain.request import Usage
from gateway.domain.request import Work as Kind
from gateway.requests.prefill import may_have_leg
from gateway.routing.disaggregation import DisaggregationConfig, Work, pays

# Times what was predicted.
_PATIENCE: Final = 4.0
# Replicas beside its home where it might run as a whole: those that run least.
_LOOKED_AT: Final = 3


class _Leg(msgspec.Struct, eq=False, frozen=True):
    replica: ReplicaId
    began_s: float
    prediction: Prediction


class Elsewhere(NamedTuple):
    """Where a prompt is to be computed, and what it asks for there."""

    replica: ReplicaId
    work: TurnWork


class RemotePrefills:
    def __init__(
        self,
        config: DisaggregationConfig,
        pools: frozenset[PoolId],
        shared: BrainState,
    ) -> None:
        """`pools`: those whose replicas can hand over what they computed."""
        self._config = config
        self.pools = pools
        self._fleet = shared.fleet
        self._placement = shared.placement
        self._forecasts = shared.forecasts
        self._out, self._records = shared.out, shared.records
        self._under_way: dict[RequestId, _Leg] = {}
        self._rates = {pool: TransferRate(config.tokens_per_s) for pool in pools}
        # By turn that has begun behind a leg: when its first token would come, were its prompt there.
        self._awaited: dict[RequestId, float] = {}

    def __contains__(self, request: RequestId) -> bool:
        return request in self._under_way

    def at(self, replica: ReplicaId) -> int:
        return sum(leg.replica == replica for leg in self._under_way.values())

    def may_have_one(self, live: LiveRequest) -> bool:
        facts = live.facts
        return (
            live.pool in self.pools
            and not live.had_leg
            and not live.tried
            and live.session is not None
            and live.home is None
            and facts.work is Kind.GENERATE
            and facts.is_readable
            and facts.is_replayable
            and not facts.state_ids
            and not facts.moves_kv
            and may_have_leg(facts.protocol)
        )

    def choose(
        self,
        live: LiveRequest,
        candidates: Sequence[ReplicaLoad],
        with_room: Callable[[Sequence[ReplicaLoad]], list[ReplicaLoad]],
        *,
        now: float,
    ) -> Elsewhere | None:
        """Where its prompt is to be computed, if not where it is decoded: on one of these candidates.
        `with_room`: those of some replicas that may have one more turn."""
        assert live.session is not None and live.pool is not None
        tokens = self._forecasts.expected_tokens(live)
        ledger = self._placement.ledger
        lives_at = ledger.home(live.session)
        least = min(candidates, key=lambda load: load.running)
        home = next((load for load in candidates if load.replica == lives_at), least)
        held = min(ledger.held_by(live.session, home.replica), tokens)
        others = with_room(
            self._fleet.may_prefill(live.pool, without=home.replica, model=live.model, now=now)
        )
        here = self._work(home, tokens, held, now=now)
        if not others:
            return None
        found, new_tokens = [], tokens - held
        transfer_s = self._rates[live.pool].transfer_s(new_tokens, now=now)
        for load in others:
            held_there = min(ledger.held_by(live.session, load.replica), tokens)
            found.append((self._work(load, tokens, held_there, now=now), load.replica, held_there))
        there, replica, held_at = min(found, key=lambda each: each[0].cost_s + transfer_s)
        # Without a leg it would not wait at a busy home, but run as a whole where that is quicker.
        elsewhere = [load for load in candidates if load.replica != home.replica]
        for load in heapq.nsmallest(_LOOKED_AT, elsewhere, key=lambda load: load.running):
            held_there = min(ledger.held_by(live.session, load.replica), tokens)
            here = min(here, self._work(load, tokens, held_there, now=now), key=lambda work: work.cost_s)
        if not pays(self._config, new_tokens=new_tokens, here=here, there=there, transfer_s=transfer_s):
            return None
        return Elsewhere(replica, _of_prompt(tokens, held_at))

    def _work(self, load: ReplicaLoad, tokens: float, held: float, *, now: float) -> Work:
        work = _of_prompt(tokens, held)
        return Work(
            first_token_s=self._forecasts.completion_s(load.replica, work, now=now) * (1.0 + load.price),
            prefill_s=self._forecasts.turn_s(load.replica, work.new_tokens, held, 1),
            turns=max(0, load.running - self.at(load.replica)),
        )

    def begin(self, live: LiveRequest, elsewhere: Elsewhere, *, now: float) -> None:
        assert live.session is not None
        replica = elsewhere.replica
        prediction = self._forecasts.leg_sent(live.request, replica, elsewhere.work, now=now)
        self._under_way[live.request] = _Leg(replica, now, prediction)
        live.had_leg, live.submitted_s = True, now
        self._fleet.submitted(replica)
        self._fleet.health.sent(live.request, replica, None, now=now)
        expected_s = prediction.completion.seconds
        self._out.append(
            RemotePrefill(
                request=live.request,
                session=live.session.session,
                replica=replica,
                limit_s=max(self._config.patience_s, _PATIENCE * expected_s),
                model=live.runs_on if live.route is not None else None,
            )
        )

    def ended(
        self, live: LiveRequest, usage: Usage | None, outcome: str, *, is_fault: bool | None, now: float
    ) -> ReplicaId:
        """`usage`: None if nothing was handed over. Returns where it ran."""
        leg = self._under_way.pop(live.request)
        self._fleet.ended(leg.replica)
        self._fleet.health.ended(live.request, leg.replica, failed=is_fault, tenant=live.tenant, now=now)
        took_s = now - leg.began_s
        self._forecasts.leg_ended(live.request, leg.replica, leg.prediction, usage, took_s=took_s, now=now)
        if usage is not None:
            live.handed_over = float(usage.prompt_tokens or 0)
            live.leg_left = leg.replica, usage
        self._records.leg_ended(live, leg.replica, outcome, usage or Usage(), took_s=took_s, now=now)
        return leg.replica

    def unbook(self, request: RequestId) -> None:
        leg = self._under_way.pop(request, None)
        if leg is not None:
            self._fleet.ended(leg.replica)
            self._fleet.health.ended(request, leg.replica, failed=None, now=leg.began_s)
            self._forecasts.leg_ended(request, leg.replica, leg.prediction, None, took_s=0.0, now=leg.began_s)

    def placed(self, live: LiveRequest) -> None:
        if live.leg_left is not None and live.session is not None:
            self._placement.ledger.turn_over((live.session.session, live.session.thread), *live.leg_left)
            live.leg_left = None

    def went_on(self, live: LiveRequest, first_token_s: float) -> None:
        if live.facts.stream:
            self._awaited[live.request] = first_token_s

    def first_token(self, live: LiveRequest, *, now: float) -> None:
        expected_s = self._awaited.pop(live.request, None)
        if expected_s is not None and live.pool is not None:
            transfer_s = now - live.submitted_s - expected_s
            self._rates[live.pool].observe(live.handed_over, transfer_s, now=now)

    def left_replica(self, live: LiveRequest) -> None:
        self._awaited.pop(live.request, None)
        live.handed_over = 0.0


def _of_prompt(tokens: float, held: float) -> TurnWork:
    return TurnWork(new_tokens=tokens - held, cached_tokens=held, output_tokens=1)
