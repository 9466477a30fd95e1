"""Placement by prediction: where is the turn done soonest, with its cost for the sessions there?

Source: ours, on the predictions of Agent.xpu (§4.2, `gateway/cost`), which binds background prompts to one
device and reactive ones to any (§4.3); SAGA (§5.1) for affinity.

Theory of operation. Replicas are compared by one cost, in seconds: the predicted completion of the turn, with
a prefill of its uncached tokens; the delay of that prefill for running turns; and, as sessions make many more
turns, one more turn of each session at home there, with recomputation of what their final sizes exceed of the
KV cache. A turn without a slot for its LoRA adapter waits one usual turn more. With prices, the time of this
turn and a usual one converts to seconds: at equal predictions the cheaper replica wins, and a dear one is
used when the others are later by more than that. A turn stays at home, without a prediction (some µs), unless
others run far fewer turns, its home is slow or dearer, or its home's sessions do not fit.

Invariants: the chosen replica is one of the candidates; those of `KvLedger`; a home is compared with at most
`_LOOKED_AT` others.
"""

import heapq
from collections.abc import Sequence
from operator import attrgetter
from typing import Annotated, Final, NamedTuple

import msgspec
from msgspec import Meta

from gateway.cost.cost_model import CostModel
from gateway.cost.estimator import TurnWork
from gateway.domain.decision import Edge, Placement, PlacementReason, SessionRef
from gateway.domain.fleet import ReplicaLoad
from gateway.domain.ids import ReplicaId, SessionId
from gateway.domain.request import Usage
from gateway.routing.kv_ledger import KvLedger
from gateway.routing.placement_policy import NOTHING_KNOWN, PlacementPolicy, Query
from gateway.workflow.aeg.graphs import Graphs

# Turns that a home may run more than another replica without a prediction.
_FEW: Final = 3
_LOOKED_AT: Final = 3
# With these a guessed session is taken for this one.
_GOES_ON: Final = (Edge.CONTINUES, Edge.REWINDS, Edge.COMPACTS)
# Most predicted cost of a move, as a share of staying.
_MOVE_PAYS: Final = 0.8
# Most fullness of a new home, as a share of the old one's.
_LESS_FULL: Final = 0.9
# Share of a prefill that running turns lose: it is chunked, beside their decoding.
HOLDS_UP: Final = 0.5
# Of the KV cache and a host tier, for final sizes: the rest is for running turns and leftovers.
_ROOM: Final = 0.8
# Usual turns within this factor of the fastest replica's count as equal: predictions of equal replicas
# differ by as much with scarce evidence, or shared processors.
_ALIKE: Final = 1.3
_AVERAGED: Final = 0.05
# Prior of a usual turn.
_NEW_TOKENS, _CONTEXT_TOKENS, _OUTPUT_TOKENS = 2_000.0, 20_000.0, 200


class RoutingConfig(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    max_conversations: Annotated[int, Meta(ge=1)] = 200_000
    """Conversations with a known home."""
    price_per_s: Annotated[float, Meta(gt=0)] | None = None
    """Value of a second of a turn's time, in the currency of `price_per_h`: a second on a replica counts as
    `price_per_h / 3600 / price_per_s` seconds more. Needed where replicas have a price."""


class _Cost(NamedTuple):
    replica: ReplicaId
    seconds: float
    price_s: float
    """Its price, as time."""


class PredictedPlacement(PlacementPolicy):
    def __init__(self, config: RoutingConfig, foresight: CostModel, graphs: Graphs | None = None) -> None:
        self._foresight = foresight
        super().__init__(KvLedger(config.max_conversations, graphs))
        # Of a usual turn: uncached tokens of its prompt, and its session's context after it.
        self._new_tokens, self._context_tokens = _NEW_TOKENS, _CONTEXT_TOKENS

    # --- where -------------------------------------------------------------------------------------

    def place(
        self, candidates: Sequence[ReplicaLoad], session: SessionRef | None, query: Query = NOTHING_KNOWN
    ) -> Placement:
        if session is None:
            return self._by_load.place(candidates)
        self.ledger.pass_time(now=query.now)
        chosen, reason = self._choose(candidates, session, query)
        if session.guess is not None and (before := _before(session)) is not None:
            self.ledger.expect_no_more(before)  # probably this session
        self.ledger.settle(session, chosen, agent=query.agent, now=query.now)
        return Placement(replica=chosen, reason=reason)

    def _choose(
        self, candidates: Sequence[ReplicaLoad], session: SessionRef, query: Query
    ) -> tuple[ReplicaId, PlacementReason]:
        home, stays = self.ledger.home(session), PlacementReason.SESSION_LIVES_THERE
        if home is None and session.guess is not None and (guess := session.followed) is not None:
            home, stays = self.ledger.home(guess), PlacementReason.GUESS_LIVES_THERE
        never_had_one = home is None or stays is PlacementReason.GUESS_LIVES_THERE
        at_home, least = None, candidates[0].running
        for load in candidates:
            at_home = load if load.replica == home else at_home
            least = min(least, load.running)
        if home is None or at_home is None:
            reason = PlacementReason.LEAST_LOADED if never_had_one else PlacementReason.AFFINITY_REPLICA_DOWN
            if len(candidates) == 1:
                return candidates[0].replica, reason
            wary = [msgspec.structs.replace(load, slower=load.seems_slower) for load in candidates]
            return _best(self._costs(wary, session, query), reason)
        if len(candidates) == 1:
            return home, stays
        is_full = self.ledger.sums(home).held > self.ledger.replicas[home].fits
        is_busy = at_home.slower > 1.0 or at_home.running > least + _FEW
        is_dear = at_home.price > 0.0 and any(load.price < at_home.price for load in candidates)
        if not (is_busy or is_full or is_dear):
            return home, stays
        others = [load for load in candidates if load.replica != home]
        if is_full and not is_busy:
            roomy = self._less_full(home, others, session, query)
            is_full = bool(roomy)
            others = roomy or others
        if not (is_busy or is_full):
            others = [load for load in others if load.price < at_home.price]
            if not others:
                return home, stays
        some = heapq.nsmallest(_LOOKED_AT, others, key=self._fullness if is_full else attrgetter("running"))
        reason = PlacementReason.HOME_IS_FULL if is_full else PlacementReason.HOME_IS_BUSY
        if never_had_one:
            reason = PlacementReason.LEAST_LOADED
        best, reason = _best(self._costs([at_home, *some], session, query), reason, home=home)
        return best, stays if best == home else reason

    def _less_full(
        self, home: ReplicaId, others: Sequence[ReplicaLoad], session: SessionRef, query: Query
    ) -> list[ReplicaLoad]:
        wants = max(self.ledger.counted(session.session)[1], query.tokens())
        most = _LESS_FULL * self.ledger.sums(home).wanted / self._room(home)
        return [
            load
            for load in others
            if self.ledger.sums(load.replica).wanted + wants <= most * self._room(load.replica)
        ]

    # --- what it costs -----------------------------------------------------------------------------

    def _costs(self, candidates: Sequence[ReplicaLoad], session: SessionRef, query: Query) -> list[_Cost]:
        tokens = query.tokens()
        counted_at, wants = self.ledger.counted(session.session)
        if counted_at is None and (before := _before(session)) is not None:
            counted_at, wants = self.ledger.counted(before)
        if counted_at is None:
            wants = max(wants, self.ledger.grows_to(query.agent, tokens=tokens))
        wants = max(wants, tokens)
        usual = self._new_tokens, self._context_tokens, _OUTPUT_TOKENS
        alone_s = {load.replica: self._foresight.turn_s(load.replica, *usual) for load in candidates}
        fastest = min(alone_s, key=alone_s.__getitem__)
        costs = []
        for load in candidates:
            replica, usual_s = load.replica, alone_s[load.replica] * load.slower
            held = self.ledger.held_by(session, replica, tokens, query.agent)
            held = min(max(held, query.handed_over), tokens)
            work = TurnWork(new_tokens=tokens - held, cached_tokens=held)
            lasts_s = self._foresight.completion_s(replica, work, now=query.now) * load.slower
            prefill_s = self._foresight.turn_s(replica, tokens - held, held, 1)
            turn_s = lasts_s + HOLDS_UP * prefill_s * load.running
            if replica in query.waits_at:
                turn_s += usual_s
            is_counted, sums = replica == counted_at, self.ledger.sums(replica)
            there = sums.sessions + 1 - is_counted
            lacks = sums.wanted + (0.0 if is_counted else wants) - self._room(replica)
            again = min(self._context_tokens, max(0.0, lacks) / there)
            again_s = self._foresight.turn_s(fastest, again, 0.0, 1)
            pace = max(1.0, alone_s[replica] / alone_s[fastest] / _ALIKE)
            turn_s += there * pace * (alone_s[fastest] * load.slower + again_s)
            costs.append(_Cost(replica, turn_s, load.price * (lasts_s + usual_s)))
        return costs

    def _room(self, replica: ReplicaId) -> float:
        return _ROOM * self.ledger.replicas[replica].fits

    def _fullness(self, load: ReplicaLoad) -> float:
        return self.ledger.sums(load.replica).wanted / self._room(load.replica)

    # --- what happens ------------------------------------------------------------------------------

    def turn_over(
        self, session: SessionRef, replica: ReplicaId, usage: Usage, *, pauses: bool, now: float
    ) -> None:
        if session.edge is Edge.SERVES:
            return
        self.ledger.expect(session.session, works=pauses, now=now)
        if (prompt := usage.prompt_tokens) is None:
            return
        goes_on = self.ledger.turn_over((session.session, session.thread), replica, usage)
        self._context_tokens += _AVERAGED * (prompt + (usage.output_tokens or 0) - self._context_tokens)
        if usage.cached_tokens is not None and goes_on:
            self._new_tokens += _AVERAGED * (prompt - usage.cached_tokens - self._new_tokens)


def _before(session: SessionRef) -> SessionId | None:
    """The session that this one probably continues."""
    guess = session.guess
    return guess.session if guess is not None and guess.edge in _GOES_ON else None


def _best(
    costs: Sequence[_Cost], reason: PlacementReason, *, home: ReplicaId | None = None
) -> tuple[ReplicaId, PlacementReason]:
    """`home`: the first cost, for a move that has to pay."""

    def cheapest(priced: float) -> ReplicaId:
        of = [(cost.seconds + priced * cost.price_s, cost.replica) for cost in costs]
        least_s, best = min(of if home is None else of[1:])
        return best if home is None or least_s < _MOVE_PAYS * of[0][0] else home

    best = cheapest(1.0)
    return best, reason if best == cheapest(0.0) else PlacementReason.CHEAPER
