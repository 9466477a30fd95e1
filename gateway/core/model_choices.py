"""Names of the operator's: which model runs a turn, and what it falls back to.

It keeps with each session what a name means for it, so a run stays on one model; `gateway/routing/models.py`
says which.

Invariants: all turns of a session that ask for one name run on the same model, unless the name may change in
the middle of a run; what builds on stored state never falls back.
"""

from collections.abc import Mapping
from typing import Final, Protocol

from gateway.core.brain_state import BrainState
from gateway.core.turns.gate import Gate
from gateway.core.turns.lifecycle import State
from gateway.core.turns.live import LiveRequest, Route
from gateway.core.turns.waiting_room import Lane
from gateway.domain.decision import Refusal, RefusalReason, WaitReason
from gateway.domain.ids import PoolId, SessionId
from gateway.domain.model_choice import Choice, Fallback, Target
from gateway.routing.models import NamedModel
from gateway.workflow.turns import Session

# Refusals that another model spares; those of a tenant's share or quota are meant for the tenant.
_FALLS_BACK: Final = {
    RefusalReason.NO_REPLICA: Fallback.OUTAGE,
    RefusalReason.QUEUE_FULL: Fallback.OVERLOAD,
}


class Admit(Protocol):
    def __call__(self, live: LiveRequest, *, now: float) -> None:
        """Decides a request that is not decided."""


class ModelChoices:
    def __init__(self, named: Mapping[str, NamedModel], shared: BrainState, gate: Gate, admit: Admit) -> None:
        self.named = named
        self._fleet = shared.fleet
        self._sessions = shared.sessions.sessions
        self._live = shared.live
        self._gate = gate
        self._admit = admit

    def route(self, live: LiveRequest, named: NamedModel) -> None:
        session = self._session(live)
        known = session.runs_on.get(named.name) if session is not None else None
        if known is not None and known.target not in named.all_targets():
            known = None
        choice = known or Choice(named.draw(live.draw_key))
        if not self._is_for_home(choice.target, live):
            at_home = [each for each in named.all_targets() if self._is_for_home(each, live)]
            choice = Choice(at_home[0]) if at_home else choice
        if session is not None and known is None:
            session.runs_on[named.name] = choice
        live.route = Route(named=named, choice=choice)

    def falls_back_at_once(self, live: LiveRequest, *, now: float) -> bool:
        """Finds out where it may run as things are. Whether another model runs it, as no replica is there for
        it; then it is decided."""
        route, session = live.route, self._session(live)
        assert route is not None
        if session is not None and live.home is None:
            route.choice = session.runs_on.get(route.named.name, route.choice)
        live.pool = self._pool(route.choice.target, live)
        live.model = self._fleet.served_by_some(live.pool, live.runs_on)
        if live.pool is not None and self._gate.candidates(live.lane):
            return False
        return self.falls_back(live, now=now)

    def spares(self, live: LiveRequest, refusal: Refusal, *, now: float) -> bool:
        why = _FALLS_BACK.get(refusal.reason)
        return why is not None and self.falls_back(live, why, is_refused=True, now=now)

    def deadline_came(self, live: LiveRequest, *, now: float) -> bool:
        why = Fallback.OUTAGE if live.waits_for is WaitReason.NO_REPLICA else Fallback.OVERLOAD
        deadline_s = self._gate.deadline_s(live)
        if self.falls_back(live, why, is_refused=deadline_s <= now, now=now):
            return True
        if deadline_s > now:
            self._gate.waiting_room.prolong_first(deadline_s)
        return deadline_s > now

    def falls_back(
        self, live: LiveRequest, why: Fallback = Fallback.OUTAGE, *, is_refused: bool = False, now: float
    ) -> bool:
        """Whether another model runs it, if its name says so; then it is decided, with those of its session
        that wait for the same. `is_refused`: else it is turned away."""
        route = live.route
        if route is None or live.home is not None or not route.named.fallbacks:
            return False
        if route.choice.begun and not (is_refused and route.named.may_change_mid_run):
            return False
        if route.choice.target not in route.tried:
            route.tried.append(route.choice.target)
        options = route.named.options(live.draw_key)
        for target in options:
            if target not in route.tried and self._is_open(target, live, why):
                route.choice = Choice(target, is_fallback=target != options[0])
                route.why = why
                self._decide_anew(live, route, now=now)
                return True
        return False

    def _decide_anew(self, live: LiveRequest, route: Route, *, now: float) -> None:
        session, moved = self._session(live), [live]
        if session is not None:
            session.runs_on[route.named.name] = route.choice
            moved += self._beside(live, route, session)
        for each in moved:
            self._gate.withdraw(each, now=now)
        for each in moved:
            self._admit(each, now=now)

    def _is_open(self, target: Target, live: LiveRequest, why: Fallback) -> bool:
        pool = self._pool(target, live)
        if pool is None:
            return False
        model = self._fleet.served_by_some(pool, target.model)
        lane = Lane(pool=pool, without=frozenset(live.tried), model=model)
        return bool(self._gate.candidates(lane) if why is Fallback.OUTAGE else self._gate.with_room(lane))

    def _beside(self, live: LiveRequest, route: Route, session: Session) -> list[LiveRequest]:
        turns = [self._live.get(turn.request) for turn in session.log]
        return [
            each
            for each in turns
            if each is not None
            and each is not live
            and each.state is State.WAITING
            and each.route is not None
            and each.route.named is route.named
            and each.home is None
        ]

    def _pool(self, target: Target, live: LiveRequest) -> PoolId | None:
        home = self._fleet.get(live.home) if live.home is not None else None
        if home is not None:
            return home.facts.pool
        return target.pool or self._fleet.pool_for(target.model)

    def _is_for_home(self, target: Target, live: LiveRequest) -> bool:
        home = self._fleet.get(live.home) if live.home is not None else None
        if home is None:
            return True
        facts = home.facts
        return target.pool in (None, facts.pool) and (not facts.models or target.model in facts.models)

    def _session(self, live: LiveRequest) -> Session | None:
        session: SessionId | None = live.session_id
        return self._sessions.get(session) if session is not None else None
