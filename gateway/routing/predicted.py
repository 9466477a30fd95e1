"""Placement by prediction: where is the turn done soonest, counting what it costs the sessions that are
there?

Source: ours, on the predictions of Agent.xpu (§4.2, `gateway/cost`); SAGA (§5.1) for affinity.

Theory of operation. A turn that has a home stays, unless others run far less than its home, or it is late
there, or those that live there do not fit any more and would fit better elsewhere; only then is anything
predicted, which takes some µs. Each candidate's cost is the predicted completion there, the prompt computed
as far as it is not held there, and the time by which that prefill holds up those that run there; and, as a
session will make many more turns, what each session that lives there adds to each turn, and what would have
to be computed again because the KV cache cannot hold all of them when they are grown as those of their agent
are in the end (both of `paces.py`).

Symbols: —

Deviations: —

Invariants: the chosen replica is one of the candidates; those of `Homes` and `Residency`; at most
`_LOOKED_AT` replicas are predicted beside its home for a turn, unless it is new or its home full.
"""

import heapq
import random
from collections.abc import Iterable, Mapping, Sequence
from typing import Final

import msgspec

from gateway.cost.estimator import TurnWork
from gateway.cost.foresight import Foresight
from gateway.cost.roofline import Turn
from gateway.domain.decision import Edge, Placement, PlacementReason, SessionRef
from gateway.domain.engine import EngineSignals
from gateway.domain.fleet import ReplicaLoad
from gateway.domain.ids import ReplicaId, RequestId, SessionId
from gateway.domain.request import Usage
from gateway.routing.growth import Growth
from gateway.routing.homes import First, Homes
from gateway.routing.paces import Paces
from gateway.routing.placement import NOTHING_KNOWN, Asked, LeastLoaded, PlacementPolicy
from gateway.routing.residency import Residency, ResidencyConfig
from gateway.routing.settings import RoutingConfig
from gateway.routing.stealing import Steal, Stealing

_FEW: Final = 3
"""Turns that a home may run more than the least loaded replica, before anything is predicted."""
_LOOKED_AT: Final = 3
_MOVE_PAYS: Final = 0.8
"""A move must be predicted to take no more than this share of staying."""
_LESS_FULL: Final = 0.9
"""Nor is a full home left for one that would be more than so full, by what is expected there: that changes
nothing, and costs a prompt."""
_HOLDS_UP: Final = 0.5
"""Of a prefill, what those that run meanwhile lose: it is computed in chunks, beside their decoding."""
_ROOM: Final = 0.8
"""Of the KV cache and a host tier, for those who come: the rest is for what runs, and for what those left who
are gone. Those who are there stay until all of it is taken: what they would lose by leaving is certain."""


class PredictedPlacement(PlacementPolicy):
    def __init__(self, config: RoutingConfig, foresight: Foresight, rng: random.Random) -> None:
        self._foresight = foresight
        self._by_load = LeastLoaded()
        self.homes = Homes(config.max_conversations)
        self.residency = Residency(ResidencyConfig(max_conversations=config.max_conversations))
        self.stealing = Stealing(config.stealing, rng)
        self.looks_around = config.stealing.enabled
        self._growth = Growth()
        self._paces = Paces(foresight)
        self._fits: dict[ReplicaId, float] = {}
        """Tokens, with those of a host tier: what is there need not be computed again."""

    @property
    def sessions_at(self) -> dict[ReplicaId, int]:
        return self.homes.sessions_at

    # --- where -------------------------------------------------------------------------------------

    def place(
        self, candidates: Sequence[ReplicaLoad], session: SessionRef | None, asked: Asked = NOTHING_KNOWN
    ) -> Placement:
        if session is None:
            return self._by_load.place(candidates)
        self._ended(self.homes.pass_time(now=asked.now))
        chosen, reason = self._choose(candidates, session, asked)
        grows_to = self._growth.of(asked.agent)
        forgotten = self.homes.settle(session, chosen, agent=asked.agent, grows_to=grows_to, now=asked.now)
        if forgotten is not None:
            self.residency.forget(forgotten)
            self.stealing.session_ended(forgotten)
        return Placement(replica=chosen, reason=reason)

    def is_adrift(self, candidates: Sequence[ReplicaLoad], session: SessionRef) -> bool:
        return self.homes.is_adrift(candidates, session)

    def _choose(
        self, candidates: Sequence[ReplicaLoad], session: SessionRef, asked: Asked
    ) -> tuple[ReplicaId, PlacementReason]:
        if len(candidates) == 1:
            return self._only(candidates[0].replica, session)
        home = self.homes.find(session)
        if home is None:
            return self._for_a_newcomer(candidates, session, asked), PlacementReason.LEAST_LOADED
        conversation = (session.session, session.thread)
        self.stealing.goes_on(conversation)
        thief = self.stealing.claim(conversation, candidates, now=asked.now)
        if thief is not None:
            return thief, PlacementReason.STOLEN
        at_home = next((load for load in candidates if load.replica == home), None)
        if at_home is None:
            return self._for_a_newcomer(candidates, session, asked), PlacementReason.HOME_IS_GONE
        least = min([load.running for load in candidates])
        is_busy = at_home.running > least + _FEW or at_home.slower > 1.0
        if is_busy:
            others = heapq.nsmallest(_LOOKED_AT, candidates, key=lambda load: load.running)
        else:
            others = self._less_full(home, candidates, session, asked)
        if not others:
            return home, PlacementReason.SESSION_LIVES_THERE
        (stay_s, _), *costs = self._costs_to_live([at_home, *others], session, asked)
        cost_s, best = min(costs)
        if best == home or cost_s >= _MOVE_PAYS * stay_s:
            return home, PlacementReason.SESSION_LIVES_THERE
        return best, PlacementReason.HOME_IS_BUSY if is_busy else PlacementReason.HOME_IS_FULL

    def _only(self, replica: ReplicaId, session: SessionRef) -> tuple[ReplicaId, PlacementReason]:
        home = self.homes.find(session)
        if home is None:
            return replica, PlacementReason.LEAST_LOADED
        is_home = home == replica
        return replica, PlacementReason.SESSION_LIVES_THERE if is_home else PlacementReason.HOME_IS_GONE

    def _less_full(
        self, home: ReplicaId, candidates: Sequence[ReplicaLoad], session: SessionRef, asked: Asked
    ) -> list[ReplicaLoad]:
        """Where all would fit better than they do at home, the session among them; none if they fit there."""
        if self.homes.held_at.get(home, 0.0) <= self._fits.get(home, float("inf")):
            return []
        wants = max(self.homes.counted(session.session)[1], asked.tokens())
        wanted_at = self.homes.wanted_at
        most = _LESS_FULL * wanted_at[home] / self._room(home)
        return [
            load
            for load in candidates
            if wanted_at.get(load.replica, 0.0) + wants <= most * self._room(load.replica)
        ]

    def _cost_s(self, load: ReplicaLoad, session: SessionRef, tokens: float, asked: Asked) -> float:
        """Of this turn, to itself and to those that run there."""
        held = min(self._held(session, load.replica, asked.agent.agent_type), tokens)
        work = TurnWork(new_tokens=tokens - held, cached_tokens=held)
        completion_s = self._foresight.completion_s(load.replica, work, now=asked.now)
        prefill = Turn(new_tokens=int(tokens - held), cached_tokens=int(held), output_tokens=1)
        alone_s = self._foresight.isolated_task_s(load.replica, [prefill])
        return completion_s * load.slower + _HOLDS_UP * alone_s * load.running

    def _held(self, session: SessionRef, replica: ReplicaId, agent_type: int) -> float:
        conversation = (session.session, session.thread)
        held = self.residency.held(conversation, replica)
        if not held and session.edge is Edge.FORKS and (first := self.homes.first(session.session)):
            held = self.residency.held(first, replica)
        return max(held, self.residency.shared(agent_type, replica)) if agent_type else held

    def _for_a_newcomer(
        self, candidates: Sequence[ReplicaLoad], session: SessionRef, asked: Asked
    ) -> ReplicaId:
        wary = [msgspec.structs.replace(load, slower=load.seems_slower) for load in candidates]
        return min(self._costs_to_live(wary, session, asked))[1]

    def _costs_to_live(
        self, candidates: Sequence[ReplicaLoad], session: SessionRef, asked: Asked
    ) -> list[tuple[float, ReplicaId]]:
        """Of this turn, and of one more of each session that lives there then."""
        self._paces.compare([load.replica for load in candidates])
        tokens = asked.tokens()
        counted_at, wants = self.homes.counted(session.session)
        wants = max(wants, tokens, self._growth.of(asked.agent))
        found = []
        for load in candidates:
            is_counted = load.replica == counted_at
            there = self.sessions_at.get(load.replica, 0) - is_counted
            cost_s = self._cost_s(load, session, tokens, asked)
            cost_s += (there + 1) * self._paces.usual_turn_s(load.replica) * load.slower
            cost_s += self._overflow_s(load.replica, there, 0.0 if is_counted else wants)
            found.append((cost_s, load.replica))
        return found

    def _burden(self, replica: ReplicaId, more: int) -> float:
        """What a usual turn of each session that lives there takes, together."""
        return (self.sessions_at.get(replica, 0) + more) * self._paces.usual_turn_s(replica)

    def _has_room(self, replica: ReplicaId, session: SessionId) -> bool:
        """For a session that lives elsewhere."""
        _, wants = self.homes.counted(session)
        return self.homes.wanted_at.get(replica, 0.0) + wants <= self._room(replica)

    def _overflow_s(self, replica: ReplicaId, there: int, more: float) -> float:
        """What would be computed again, each turn, of what does not fit when all have grown, with so many
        tokens more."""
        wanted, room = self.homes.wanted_at.get(replica, 0.0) + more, self._room(replica)
        if wanted <= room:
            return 0.0
        again = min(self._paces.context_tokens, (wanted - room) / (there + 1))
        return (there + 1) * self._paces.prefill_s(replica, again)

    def _room(self, replica: ReplicaId) -> float:
        """Tokens, for the sessions that live there."""
        return _ROOM * self._fits.get(replica, float("inf"))

    # --- what happens ------------------------------------------------------------------------------

    def turn_over(
        self,
        session: SessionRef,
        replica: ReplicaId,
        usage: Usage,
        *,
        turn: RequestId,
        agent: int,
        pauses: bool,
        is_movable: bool,
        now: float,
    ) -> None:
        if session.edge is Edge.SERVES:
            return
        conversation = (session.session, session.thread)
        self.homes.heard(session.session, works=pauses, now=now)
        if pauses and is_movable and self.looks_around and self.homes.first(session.session) == conversation:
            self.stealing.paused(conversation, replica, turn)
        prompt = usage.prompt_tokens
        if prompt is None:
            return
        opens = not self.residency.context(conversation)
        self.residency.turn_over(conversation, replica, usage, agent=agent, opens=opens)
        context = prompt + (usage.output_tokens or 0)
        if self.homes.own(session) is not None:
            self.homes.holds(conversation, float(context))
        new_tokens = None
        if usage.cached_tokens is not None and not opens:
            new_tokens = prompt - usage.cached_tokens
        self._paces.seen(context_tokens=context, new_tokens=new_tokens)

    def look_around(self, candidates: Sequence[ReplicaLoad], *, now: float) -> Steal | None:
        if len(candidates) < 2:
            return None
        return self.stealing.look(candidates, self._burden, self._has_room, now=now)

    def moved(self, steal: Steal, usage: Usage | None) -> None:
        if usage is not None:
            self.residency.turn_over(steal.conversation, steal.thief, usage, agent=0, opens=False)
        self.stealing.moved(steal, is_there=usage is not None)

    def session_ended(self, session: SessionId) -> None:
        conversations = self.homes.conversations(session)
        self._ended(self.homes.session_ended(session))
        for conversation in conversations:
            self.residency.forget(conversation)
            self.stealing.session_ended(conversation)

    def _ended(self, sessions: Iterable[First]) -> None:
        """They are over, as far as we know."""
        for first in sessions:
            if first.tokens:
                first.counted = self._growth.held(first.agent, first.tokens, first.counted)

    def replica_lost(self, replica: ReplicaId) -> None:
        """Homes stay: whose replica comes back at once need not move, and who moves is adrift."""
        self.residency.lost(replica)
        self.stealing.replica_lost(replica)

    def replica_left(self, replica: ReplicaId) -> None:
        self._by_load.replica_left(replica)
        self.residency.replica_left(replica)
        self.stealing.replica_left(replica)
        self._fits.pop(replica, None)
        self._paces.replica_left(replica)

    def told(self, replica: ReplicaId, tokens: Mapping[SessionId, float]) -> None:
        self.residency.told(replica, tokens)

    def engine_reported(self, replica: ReplicaId, signals: EngineSignals) -> None:
        if signals.kv_tokens is not None:
            self.residency.has_room_for(replica, signals.kv_tokens)
            self._fits[replica] = float(signals.kv_tokens + (signals.host_kv_tokens or 0))
