"""Sends requests to replicas: says where each runs, and books the place that it takes there until its attempt
ends.

It asks placement *where*, has a prompt computed elsewhere first if that is better, and tells engines,
forecasts and health what they have to know of a request that is sent.

Invariants: a place is booked from the command that takes it until the end of the attempt or of the prefill
leg; the pool in which one becomes free is among the `pools_with_room`.
"""

from collections.abc import Sequence
from functools import partial
from typing import Final

from gateway.core.brain_state import BrainState
from gateway.core.commands import Dispatch
from gateway.core.optional.remote_prefills import RemotePrefills
from gateway.core.optional.speculative_prefill import PrefillsAhead
from gateway.core.to_engines import ToEngines
from gateway.core.turns.lifecycle import Step
from gateway.core.turns.live import LiveRequest
from gateway.domain.decision import Edge, Placement, PlacementReason
from gateway.domain.fleet import ReplicaLoad
from gateway.domain.ids import PoolId, ReplicaId
from gateway.domain.request import Answer, Usage, Work
from gateway.routing.placement_policy import NOTHING_KNOWN, Query

_EFFORT: Final = {Work.GENERATE: 2, Work.POOL: 1, Work.TUNNEL: 1}
# The prompt begins with all that its session's last turn left in the cache.
_EXTENDS_PROMPT: Final = (Edge.CONTINUES, Edge.RETRIES)
# Work that costs an engine next to nothing and so never waits for a place.
CAPACITY_FREE_WORK = (Work.LIGHT, Work.STATE)


class Dispatcher:
    def __init__(
        self, shared: BrainState, legs: RemotePrefills, ahead: PrefillsAhead, to_engines: ToEngines
    ) -> None:
        self._fleet = shared.fleet
        self._admission = shared.admission
        self._placement = shared.placement
        self._forecasts = shared.forecasts
        self._migrations = shared.migrations
        self._ranks = shared.ranks
        self._out, self._records = shared.out, shared.records
        self._legs = legs
        self._ahead = ahead
        self._to_engines = to_engines
        # Where a place became free since the gate looked last.
        self.pools_with_room: dict[PoolId, None] = {}

    def with_room(self, candidates: Sequence[ReplicaLoad], *, now: float) -> list[ReplicaLoad]:
        open_to_more = self._fleet.open_to_more(candidates, now=now)
        return [load for load in open_to_more if self._admission.has_room(load)]

    def submit(
        self,
        live: LiveRequest,
        candidates: Sequence[ReplicaLoad],
        tokens: float | None = None,
        *,
        now: float,
    ) -> None:
        """`tokens`: of its prompt, as expected at this moment, if that was worked out."""
        if self._legs.pools and self._legs.may_have_one(live):
            elsewhere = self._legs.choose(live, candidates, partial(self.with_room, now=now), now=now)
            if elsewhere is not None:
                self._legs.begin(live, elsewhere, now=now)
                live.step(Step.PREFILL)
                return
        query = NOTHING_KNOWN
        if live.session is not None:
            adapters, expected = self._fleet.adapters, partial(self._forecasts.expected_tokens, live)
            waits_at = self._fleet.without_slot(live.runs_on, candidates) if adapters.is_used else ()
            query = Query(now, live.agent, live.text_bytes, expected, waits_at, live.handed_over)
        placement = self._placement.place(candidates, live.session, query)
        if live.leg_left is not None:
            self._legs.placed(live)
        if self._ahead.config.enabled:
            self._ahead.sent(live, placement.replica)
        if live.home is not None:
            placement = Placement(replica=placement.replica, reason=PlacementReason.STATE_LIVES_THERE)
        elif live.tried:
            placement = Placement(replica=placement.replica, reason=PlacementReason.RETRIED_ELSEWHERE)
        self.send(live, placement, tokens, now=now)

    def send(
        self, live: LiveRequest, placement: Placement, tokens: float | None = None, *, now: float
    ) -> None:
        live.replica, live.submitted_s = placement.replica, now
        live.tried.append(placement.replica)
        live.attempts += 1
        self._fleet.submitted(placement.replica, is_light=live.facts.work in CAPACITY_FREE_WORK)
        if self._fleet.adapters.is_used:
            self._fleet.adapters.began(live.request, placement.replica, live.runs_on)
        held, live.left = 0.0, None
        if live.session is not None:
            session, ledger = live.session, self._placement.ledger
            held = ledger.held_by(session, placement.replica)
            if session.edge in _EXTENDS_PROMPT:
                own = session.session, session.thread
                live.left = ledger.held(own, placement.replica, if_nothing_was_evicted=True) or None
        expected = self._forecasts.sent(live, placement.replica, held, tokens, now=now)
        first_s, end_s, worst_s, output_tokens = None, float("inf"), 0.0, None
        if expected is not None and live.handed_over:  # nobody is judged by how long that takes to come
            self._legs.went_on(live, expected.first_token_ms / 1e3)
        elif expected is not None and self._fleet.health.compares:
            if self._forecasts.is_experienced(placement.replica):
                first_s, end_s = expected.first_token_p90_ms / 1e3, expected.completion_p90_ms / 1e3
                if not live.facts.stream:
                    first_s = float("inf")
                output_tokens = expected.output_tokens
            shown = 1 if first_s is not None or live.facts.stream else expected.output_tokens
            worst_s = self._forecasts.turn_s(placement.replica, expected.prompt_tokens, 0, shown)
        self._fleet.health.sent(
            live.request,
            placement.replica,
            first_s,
            end_s,
            worst_s=worst_s,
            output_tokens=output_tokens,
            now=now,
        )
        hint, hinted_class = None, None
        if live.session is not None and self._to_engines.takes_hints(placement.replica):
            hint, hinted_class = self._to_engines.with_request(live, placement.replica, now=now)
        service_class = hinted_class or self._to_engines.class_of(live)
        self._records.submitted(live, placement, expected, hinted_class, service_class, now=now)
        route = live.route
        if route is not None:
            route.choice.begun += 1
            self._records.model_chosen(live, route, now=now)
        rank = None
        if self._ranks.sessions and live.session is not None:
            rank = self._ranks.of(live.session.session, placement.replica)
        live.step(Step.SUBMIT)
        self._out.append(
            Dispatch(
                request=live.request,
                placement=placement,
                session=live.session,
                waited_s=live.waited_s,
                attempt=live.attempts,
                hint=hint,
                rank=rank,
                model=live.runs_on if route is not None else None,
                fallback=route.fallback if route is not None else None,
                bound=live.bound,
            )
        )

    def first_token(self, live: LiveRequest, *, now: float) -> None:
        if live.saw_first_token:
            return
        assert live.replica is not None
        live.saw_first_token, live.first_token_s = True, now
        self._forecasts.first_token(live, live.replica, now=now)
        self._fleet.health.first_token(live.request, live.replica, now=now)
        if live.handed_over:
            self._legs.first_token(live, now=now)
        if self._migrations.known:
            self._migrations.over(live.request)
        self._records.first_token(live, live.replica, now=now)

    def ended(
        self,
        live: LiveRequest,
        outcome: str,
        answer: Answer | None,
        *,
        blames_replica: bool = True,
        now: float,
    ) -> Answer | None:
        """Books the end of one attempt; its place on the replica is free from now on. Returns the answer,
        with a guess of what the backend did not count. `blames_replica`: a failure may be the replica's."""
        assert live.replica is not None and live.pool is not None
        replica, live.replica = live.replica, None
        self._fleet.ended(replica, is_light=live.facts.work in CAPACITY_FREE_WORK)
        if self._fleet.adapters.running:
            self._fleet.adapters.ended(live.request, replica)
        self.pools_with_room[live.pool] = None
        if live.handed_over:
            self._legs.left_replica(live)
        is_good = answer is not None and answer.is_good
        is_clients_fault = answer is not None and not is_good and not answer.is_fault
        failed: bool | None = False
        if not is_good or outcome != "finished":
            failed = _is_fault(live, outcome, answer) if blames_replica else None
        self._fleet.health.ended(
            live.request,
            replica,
            failed=failed,
            how=_how(outcome, answer) if failed else "",
            output_tokens=answer.usage.output_tokens if answer is not None else None,
            effort=0 if is_clients_fault else _EFFORT.get(live.facts.work, 0),
            tenant=live.tenant,
            now=now,
        )
        is_whole = outcome == "finished" and is_good
        counted = self._forecasts.ended(live, replica, answer, is_whole=is_whole, now=now)
        live.alone = None
        if counted is not None and is_good:
            live.alone = self._forecasts.alone(live, replica, counted.usage)
        took = counted.usage if counted is not None and (is_good or live.is_served_by(counted)) else None
        if answer is None and outcome == "client_left":
            took = self._forecasts.prompt_alone(live)
        self._records.left_replica(live, replica, outcome, answer, estimated=took, now=now)
        return counted

    def leg_ended(
        self, live: LiveRequest, usage: Usage | None, outcome: str, *, is_fault: bool | None, now: float
    ) -> ReplicaId:
        """Its prefill leg has ended; its place there, which it returns, is free. `usage`: None if nothing was
        handed over."""
        assert live.pool is not None
        self.pools_with_room[live.pool] = None
        return self._legs.ended(live, usage, outcome, is_fault=is_fault, now=now)

    def unbook(self, live: LiveRequest) -> None:
        self._legs.unbook(live.request)
        if live.replica is not None:
            self._fleet.ended(live.replica, is_light=live.facts.work in CAPACITY_FREE_WORK)
            self._fleet.adapters.ended(live.request, live.replica)
            live.replica = None


def _how(outcome: str, answer: Answer | None) -> str:
    if answer is None or outcome != "finished":
        return "no answer" if outcome == "failed" else "answers break off"
    return str(answer.status) if answer.status >= 400 else f"{answer.status} with {answer.failure}"


def _is_fault(live: LiveRequest, outcome: str, answer: Answer | None) -> bool | None:
    """The replica's; None if this says nothing of the replica."""
    if outcome in ("failed", "cut"):
        return True
    if outcome == "finished" and answer is not None:
        is_own = live.facts.work is not Work.STATE  # there, good answers may tell of earlier ones that failed
        return answer.is_fault if is_own else answer.status >= 500
    return None
