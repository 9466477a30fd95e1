"""The gate to the fleet: lets requests through to replicas, or keeps them in the waiting room.

It asks admission *may it start* and placement *where*, and books every place that a request takes on a
replica until the attempt ends.

Two things may keep a turn waiting: its session has no place yet (it is held, until admission lets its session
in), or no replica has room for it (it is in a lane).

A turn for which no replica is there waits for one, for a bounded time, if one was there before. Sessions that
lost their replica move in a trickle.

Invariants: after `let_in`, nobody in a lane waits for a replica that has room for it; a request never runs
on a replica that is down, on one that it was tried on, or anywhere but at its home if it has one.
"""

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import assert_never

from gateway.admission.applicant import Room, TurnOutcome
from gateway.admission.session_admission import SessionAdmission
from gateway.admission.waiting_room import Lane, Waiting, WaitingRoom
from gateway.core.commands import Command, Dispatch
from gateway.core.fleet import Fleet
from gateway.core.forecasts import Forecasts
from gateway.core.lifecycle import Step
from gateway.core.live import LiveRequest
from gateway.core.prefill_legs import PrefillLegs
from gateway.core.prefills_ahead import PrefillsAhead
from gateway.core.stream import Stream
from gateway.core.to_engines import ToEngines
from gateway.domain.by_agent import AgentKey
from gateway.domain.decision import (
    Admit,
    Edge,
    Placement,
    PlacementReason,
    Refusal,
    SessionRef,
    SessionSource,
    Wait,
    WaitReason,
)
from gateway.domain.fleet import ReplicaLoad
from gateway.domain.ids import PoolId, ReplicaId, RequestId
from gateway.domain.prefix_pull import PullPrefix
from gateway.domain.request import Answer, Usage, Work
from gateway.domain.turn_trace import TurnTrace
from gateway.fleet.trickle import Trickle
from gateway.routing.disaggregation import DisaggregationConfig
from gateway.routing.placement import NOTHING_KNOWN, Asked, LeastLoaded, PlacementPolicy
from gateway.routing.prefill_ahead import PrefillAheadConfig
from gateway.routing.ranks import Ranks

NO_USAGE = Usage()
_HOME_LOST = Wait(reason=WaitReason.HOME_LOST)
_NO_REPLICA = Wait(reason=WaitReason.NO_REPLICA)
CAPACITY_FREE_WORK = (Work.LIGHT, Work.STATE)
"""Work that costs an engine next to nothing and so never waits for a place."""


class Gate:
    def __init__(
        self,
        fleet: Fleet,
        admission: SessionAdmission,
        placement: PlacementPolicy,
        forecasts: Forecasts,
        live: Mapping[RequestId, LiveRequest],
        out: list[Command],
        *,
        max_wait_s: float,
        max_held_s: float,
        max_outage_s: float,
        trickle: Trickle,
        ahead: PrefillAheadConfig,
        disaggregation: DisaggregationConfig,
        transfers: frozenset[PoolId],
        pulls: frozenset[PoolId],
        refuse: Callable[[LiveRequest, Refusal, float], None],
        to_engines: ToEngines,
    ) -> None:
        """`live`: the requests whose ids are waiting; `out`: where commands and records are put; `transfers`:
        the pools whose replicas hand over prompts that they computed; `pulls`: those of them whose replicas
        pull what another one holds; `refuse`: turns away a request that left the waiting room for somebody
        else, at a time."""
        self._fleet = fleet
        self._admission = admission
        self.placement = placement
        self._forecasts = forecasts
        self._live = live
        self._out = out
        self._stream = Stream(out)
        self._max_wait_s = max_wait_s
        self._max_held_s = max_held_s
        self._max_outage_s = max_outage_s
        self._trickle = trickle
        self._refuse = refuse
        self._to_engines = to_engines
        self.waiting_room = WaitingRoom()
        self.ahead = PrefillsAhead(
            ahead,
            fleet,
            placement,
            forecasts,
            to_engines,
            out,
            is_anybody_waiting=lambda: bool(self.waiting_room.turns),
        )
        self.legs = PrefillLegs(disaggregation, transfers, fleet, placement, forecasts, out)
        self._pulls = pulls
        self._now = 0.0
        self.pools_with_room: dict[PoolId, None] = {}
        """What `let_in` has to look at."""
        self.ranks = Ranks()

    def ask(self, live: LiveRequest, *, now: float) -> Refusal | None:
        """Submits or parks a request that is undecided; else says why it must be refused."""
        assert live.pool is not None
        self._now = now
        lane = live.lane
        candidates = self.candidates(lane)
        if candidates and live.facts.work in CAPACITY_FREE_WORK:
            self._submit(live, candidates, now=now)
            return None
        waiting = len(self.waiting_room.turns)
        is_outage = not candidates and self._max_outage_s > 0
        if is_outage:
            candidates = self._fleet.absent(live.pool, only=live.home)
        open_to_more = self._fleet.open_to_more(candidates, now=now)
        room = Room(
            candidates=candidates,
            must_queue=is_outage
            or (bool(candidates) and not open_to_more)
            or (waiting > 0 and self.waiting_room.in_lane(lane) > 0),
            waiting=waiting,
            waiting_bytes=self.waiting_room.body_bytes,
        )
        decision = self._admission.ask(live.applicant(self._forecasts.expected_tokens(live)), room, now=now)
        if self._admission.said:  # before what follows from it
            self._stream.extend(self._admission.said)
            self._admission.said.clear()
        match decision:
            case Admit():
                if decision.would_wait is not None:
                    self._stream.would_wait(live, decision.would_wait, now=now)
                if not self._may_move(live, candidates):
                    self._park(live, _HOME_LOST, now=now)
                    return None
                if len(candidates) > 1:
                    fit = self._with_room(candidates)
                    candidates = fit or [c for c in candidates if self._admission.has_room(c)]
                self._submit(live, candidates, now=now)
                return None
            case Wait():
                for displaced in self._admission.displaced():
                    self._turn_away(self._live[displaced.request], displaced.refusal, now=now)
                if is_outage and decision.reason is WaitReason.CONCURRENCY_FULL:
                    decision = _NO_REPLICA
                self._park(live, decision, now=now)
                return None
            case Refusal():
                return decision
            case _:
                assert_never(decision)

    def let_through(self, live: LiveRequest, *, now: float) -> None:
        """Sends it where least runs, whatever the policies say, if anybody may run it."""
        self.unbook(live)
        candidates = self.candidates(live.lane)
        if candidates:
            self._send(live, LeastLoaded().place(candidates), now=now)

    def unbook(self, live: LiveRequest) -> None:
        """Its place on a replica, if it was never sent there."""
        self.legs.unbook(live.request)
        if live.replica is not None:
            self._fleet.ended(live.replica, is_light=live.facts.work in CAPACITY_FREE_WORK)
            self._fleet.adapters.ended(live.request)
            live.replica = None

    def candidates(self, lane: Lane) -> list[ReplicaLoad]:
        """Replicas that are up and may run what waits in this lane, with or without room."""
        return self._fleet.candidates(lane.pool, only=lane.home, without=lane.without, model=lane.model)

    def with_room(self, lane: Lane) -> list[ReplicaLoad]:
        """As of the last event that was looked at."""
        return self._with_room(self.candidates(lane))

    def _with_room(self, candidates: Sequence[ReplicaLoad]) -> list[ReplicaLoad]:
        open_to_more = self._fleet.open_to_more(candidates, now=self._now)
        return [load for load in open_to_more if self._admission.has_room(load)]

    def room_may_be(self, pool: PoolId) -> None:
        """Something changed for the better in this pool; `let_in` looks at it."""
        self.pools_with_room[pool] = None

    def let_in(self, *, now: float) -> None:
        """Submits every waiting turn that fits now: those whose session has a place, in order of arrival."""
        if self.waiting_room.turns:
            self._now = now
            if not self._fleet.health.all_up:
                for state in self._fleet:
                    self.pools_with_room[state.facts.pool] = None
            for request in self._admission.let_in(now=now):
                self.pools_with_room[self.waiting_room.release(request).lane.pool] = None
            if self._trickle:
                self._let_move()
            for pool in self.pools_with_room:
                while self._let_one_in(pool, now=now):
                    pass
        self.pools_with_room.clear()

    def strand(self, pool: PoolId, *, now: float) -> list[LiveRequest]:
        """Takes those out of the waiting room who would wait for nobody."""
        stranded = []
        for first in self.waiting_room.first_of_each_lane(pool):
            if not self.candidates(first.lane):
                stranded += [self._live[waiting.request] for waiting in self.waiting_room.behind(first)]
        stranded += [
            self._live[held.request]
            for held in self.waiting_room.held(pool)
            if not self.candidates(held.lane)
        ]
        for live in stranded:
            self.leave_waiting_room(live, now=now)
            self._trickle.over(live.request)
        return stranded

    def misplaced(self, pool: PoolId, *, now: float) -> list[LiveRequest]:
        """Takes those out of the waiting room who wait in a lane that was theirs while the pool's replicas
        listed other models."""
        waiting = [self._live[each.request] for each in self.waiting_room if each.lane.pool == pool]
        found = [live for live in waiting if self._fleet.served_by_some(pool, live.runs_on) != live.model]
        for live in found:
            self.leave_waiting_room(live, now=now)
            self._trickle.over(live.request)
        return found

    def withdraw(self, live: LiveRequest, *, now: float) -> None:
        """It does not run in this pool after all."""
        if live.request in self.waiting_room:
            self.leave_waiting_room(live, now=now)
        self._trickle.over(live.request)
        self._admission.turn_over(live.request, None, now=now)

    def tell_of_health(self, *, now: float) -> None:
        for changed in self._fleet.health.said:
            self._stream.replica_changed(changed.replica, changed.state.value, changed.why, now=now)
        self._fleet.health.said.clear()

    def first_token(self, live: LiveRequest, *, now: float) -> None:
        self._fleet.health.first_token(live.request, now=now)
        if self._trickle:
            self._trickle.over(live.request)
        if live.handed_over:
            self.legs.first_token(live, now=now)

    def _may_move(self, live: LiveRequest, candidates: Sequence[ReplicaLoad]) -> bool:
        """Whether a turn may be sent now, or waits for its turn to be moved."""
        assert live.pool is not None
        if live.session is None or live.home is not None or len(candidates) < 1:
            return True
        if not self.placement.is_adrift(candidates, live.session):
            return True
        return self._trickle.may_move(live.request, live.pool, live.facts.body_bytes, len(candidates))

    def _let_move(self) -> None:
        for pool in self._trickle.pools():
            replicas = len(self._fleet.candidates(pool, only=None, without=()))
            while (request := self._trickle.next_to_move(pool, replicas)) is not None:
                self.waiting_room.release(request)
                self.pools_with_room[pool] = None

    def adopt(self, trace: TurnTrace, *, now: float) -> None:
        """A turn of another gateway's: what it left is where it ran."""
        if trace.replica is None or self._fleet.get(trace.replica) is None or trace.is_side:
            return
        session = SessionRef(
            session=trace.session,
            source=SessionSource(trace.source),
            confidence=trace.confidence,
            thread=trace.thread,
            edge=Edge.CONTINUES,
        )
        usage = Usage(prompt_tokens=trace.prompt_tokens, output_tokens=trace.output_tokens)
        self.placement.adopt(session, trace.replica, usage, now=now)

    def turn_over(self, live: LiveRequest, answer: Answer | None, *, now: float) -> None:
        """Tells admission how a request ended, whatever became of it."""
        if self._trickle:
            self._trickle.over(live.request)
        if live.session is None:
            return
        outcome = None
        if live.tried:
            usage = answer.usage if answer is not None else NO_USAGE
            is_answered = answer is not None and answer.status < 400
            learns = is_answered and self._admission.may_learn(live.request, now=now)
            outcome = TurnOutcome(
                was_answered=is_answered,
                has_calls=answer is not None and bool(answer.tool_calls),
                replica=live.tried[-1],
                ran_s=now - live.submitted_s,
                usage=usage,
                prefill_s=self._forecasts.prefill_s(live.tried[-1], usage) if learns else None,
                alone=live.alone if learns else None,
            )
            if answer is not None and answer.status < 400:
                self.placement.turn_over(
                    live.session,
                    live.tried[-1],
                    answer.usage,
                    agent=live.facts.transcript.agent,
                    pauses=bool(answer.tool_calls),
                    now=now,
                )
        self._admission.turn_over(live.request, outcome, now=now)
        if self.ahead:
            is_answered = answer is not None and answer.status < 400
            self.ahead.turn_over(live.request, answer.usage if answer and is_answered else None, now=now)
            if live.tried:
                self.ahead.look_for_slack(live.tried[-1], now=now)

    def leave_waiting_room(self, live: LiveRequest, *, now: float) -> None:
        self.waiting_room.leave(live.request)
        live.waited_s += now - live.parked_s

    def leave_replica(
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
            self._fleet.adapters.ended(live.request)
        self.pools_with_room[live.pool] = None
        if live.handed_over:
            self.legs.left_replica(live)
        self._fleet.health.ended(
            live.request,
            replica,
            failed=_is_fault(outcome, answer) if blames_replica else None,
            output_tokens=answer.usage.output_tokens if answer is not None else None,
            now=now,
        )
        counted = self._forecasts.ended(live, replica, answer, is_whole=outcome == "finished", now=now)
        live.alone = None
        if counted is not None and counted.status < 400:
            live.alone = self._forecasts.alone(live, replica, counted.usage)
        self._stream.left_replica(live, replica, outcome, answer, now=now)
        return counted

    def leave_leg(
        self, live: LiveRequest, usage: Usage | None, outcome: str, *, is_fault: bool | None, now: float
    ) -> None:
        """Its prefill leg has ended; its place there is free. `usage`: None if nothing was handed over."""
        assert live.pool is not None
        self.pools_with_room[live.pool] = None
        self.legs.ended(live, usage, outcome, is_fault=is_fault, now=now)

    def prefill_ended(self, turn: RequestId, usage: Usage | None, *, now: float) -> None:
        self.ahead.look_for_slack(self.ahead.ended(turn, usage, now=now), now=now)

    def _turn_away(self, live: LiveRequest, refusal: Refusal, *, now: float) -> None:
        self.leave_waiting_room(live, now=now)
        self._refuse(live, refusal, now)

    def _let_one_in(self, pool: PoolId, *, now: float) -> bool:
        for first in self.waiting_room.first_of_each_lane(pool):
            candidates = self.candidates(first.lane)
            if room := self._with_room(candidates):
                live = self._live[first.request]
                if self._may_move(live, candidates):
                    self.leave_waiting_room(live, now=now)
                    self._submit(live, room, now=now)
                else:
                    self.waiting_room.hold(first.request)
                    live.waits_for = WaitReason.HOME_LOST
                return True
        return False

    def _park(self, live: LiveRequest, wait: Wait, *, now: float) -> None:
        live.step(Step.WAIT)
        live.parked_s = now
        live.waits_for = wait.reason
        deadline_s = self.deadline_s(live)
        if live.route is not None and (patience_s := live.route.patience_s) is not None:
            deadline_s = min(deadline_s, now + max(0.0, patience_s - live.waited_s))
        self.waiting_room.enter(
            Waiting(
                request=live.request,
                lane=live.lane,
                body_bytes=live.facts.body_bytes,
                arrived_s=live.arrived_s,
                deadline_s=deadline_s,
                is_held=wait.reason not in (WaitReason.CONCURRENCY_FULL, WaitReason.NO_REPLICA),
            )
        )
        self._stream.waited(live, wait, len(self.waiting_room), now=now)

    def deadline_s(self, live: LiveRequest) -> float:
        """Until when it may wait, as it waits now."""
        most_s = self._max_held_s if live.facts.takes_keep_alives else self._max_wait_s
        longest_s = self._max_outage_s if live.waits_for is WaitReason.NO_REPLICA else most_s
        return live.parked_s + max(0.0, min(longest_s, most_s - live.waited_s))

    def _submit(self, live: LiveRequest, candidates: Sequence[ReplicaLoad], *, now: float) -> None:
        """Sends it to one of these; or first its prompt elsewhere."""
        if self.legs.pools:
            candidates = self.legs.decoders(live, candidates, now=now)
        if self.legs.pools and self.legs.may_have_one(live):
            elsewhere = self.legs.choose(live, candidates, self._with_room, now=now)
            if elsewhere is not None:
                self.legs.begin(live, elsewhere, now=now)
                live.step(Step.PREFILL)
                return
        asked = NOTHING_KNOWN
        if live.session is not None:
            facts = live.facts
            tokens = partial(self._forecasts.expected_tokens, live)
            agent = AgentKey(live.owner, facts.transcript.agent)
            waits_at = (
                self._fleet.without_slot(live.runs_on, candidates) if self._fleet.adapters.are_told else ()
            )
            transfer_s = None
            if live.pool in self._pulls and not live.handed_over:
                transfer_s = partial(self.legs.transfer_s, live.pool, now=now)
            way_s = None
            if live.handed_over and live.handed_over_by is not None and self._fleet.has_zones:
                assert live.pool is not None
                way_s = partial(self.legs.transfer_s, live.pool, live.handed_over_by, now=now)
            can_wait = self.placement.weighs_classes and self._to_engines.can_wait(live)
            asked = Asked(
                now,
                agent,
                facts.body_bytes,
                tokens,
                waits_at,
                live.handed_over,
                transfer_s,
                way_s,
                can_wait,
            )
        placement = self.placement.place(candidates, live.session, asked)
        pull = None
        if asked.transfer_s is not None and live.session is not None:
            pull = self._pull(live, live.session, placement.replica, asked)
        if live.leg_left is not None:
            self.legs.placed(live)
        if self.ahead:
            self.ahead.sent(live, placement.replica)
        if live.home is not None:
            placement = Placement(replica=placement.replica, reason=PlacementReason.STATE_LIVES_THERE)
        elif live.tried:
            placement = Placement(replica=placement.replica, reason=PlacementReason.RETRIED_ELSEWHERE)
        self._send(live, placement, pull, now=now)

    def _pull(
        self, live: LiveRequest, session: SessionRef, replica: ReplicaId, asked: Asked
    ) -> PullPrefix | None:
        """What its replica is to pull from another one, that is up."""
        found = self.placement.pull(session, replica, asked)
        source = self._fleet.get(found.source) if found is not None else None
        if found is None or source is None or not source.is_up:
            return None
        live.handed_over, live.handed_over_by = found.tokens, found.source
        return PullPrefix(found.source, int(found.tokens))

    def _send(
        self, live: LiveRequest, placement: Placement, pull: PullPrefix | None = None, *, now: float
    ) -> None:
        live.replica, live.submitted_s = placement.replica, now
        live.tried.append(placement.replica)
        live.attempts += 1
        self._fleet.submitted(placement.replica, is_light=live.facts.work in CAPACITY_FREE_WORK)
        if self._fleet.adapters.are_told:
            self._fleet.adapters.began(live.request, placement.replica, live.runs_on)
        expected = self._forecasts.sent(live, placement.replica, now=now)
        first_s, end_s, worst_s, output_tokens = None, float("inf"), 0.0, None
        if expected is not None and live.handed_over:  # nobody is judged by how long that takes to come
            self.legs.went_on(live, expected.first_token_ms / 1e3)
        elif expected is not None and self._forecasts.is_experienced(placement.replica):
            first_s, end_s = expected.first_token_p90_ms / 1e3, expected.completion_p90_ms / 1e3
            if not live.facts.stream:
                first_s = float("inf")
            worst_s = self._forecasts.turn_s(placement.replica, expected.prompt_tokens, 0, 1)
            output_tokens = expected.output_tokens
        self._fleet.health.sent(
            live.request,
            placement.replica,
            first_s,
            end_s,
            worst_s=worst_s,
            output_tokens=output_tokens,
            now=now,
        )
        told = self._to_engines.with_request(live, placement.replica, now=now)
        service_class = told.service_class or self._to_engines.class_of(live)
        self._stream.submitted(live, placement, expected, told.service_class, service_class, now=now)
        route = live.route
        if route is not None:
            route.choice.begun += 1
            self._stream.model_chosen(live, route, now=now)
        live.step(Step.SUBMIT)
        self._out.append(
            Dispatch(
                request=live.request,
                placement=placement,
                session=live.session,
                waited_s=live.waited_s,
                attempt=live.attempts,
                hint=told.hint,
                priority=told.priority,
                rank=self.ranks.of(live.session.session, placement.replica) if live.session else None,
                model=live.runs_on if route is not None else None,
                fallback=route.fallback if route is not None else None,
                bound=live.bound,
                pull=pull,
            )
        )


def _is_fault(outcome: str, answer: Answer | None) -> bool | None:
    """The replica's; None if this says nothing of the replica."""
    if outcome in ("failed", "cut"):
        return True
    if outcome == "finished" and answer is not None:
        return answer.status >= 500
    return None
