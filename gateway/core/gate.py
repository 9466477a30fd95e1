"""The gate to the fleet: lets requests through to replicas, or keeps them in the waiting room.

It asks admission *may it start* and placement *where*, and books every place that a request takes on a
replica until the attempt ends.

Invariants: after `let_in`, nobody waits for a replica that has room for it, and nobody waits where no
replica could ever run it; a request never runs on a replica that is down, on one that it was tried on,
or anywhere but at its home if it has one.
"""

from collections.abc import Mapping
from typing import assert_never

from gateway.admission.controller import AdmissionPolicy, Offer
from gateway.admission.waiting_room import Lane, Waiting, WaitingRoom
from gateway.core.commands import Command, Dispatch
from gateway.core.fleet import Fleet
from gateway.core.lifecycle import Step
from gateway.core.live import LiveRequest
from gateway.core.stream import Stream
from gateway.domain.decision import Admit, Placement, PlacementReason, Refusal, Wait
from gateway.domain.fleet import ReplicaLoad
from gateway.domain.ids import PoolId, RequestId
from gateway.domain.request import Answer, Work
from gateway.routing.placement import PlacementPolicy

_CAPACITY_FREE_WORK = (Work.LIGHT, Work.STATE)
"""Work that costs an engine next to nothing and so never waits for a place."""


class Gate:
    def __init__(
        self,
        fleet: Fleet,
        admission: AdmissionPolicy,
        placement: PlacementPolicy,
        live: Mapping[RequestId, LiveRequest],
        out: list[Command],
        *,
        max_wait_s: float,
    ) -> None:
        """`live`: the requests whose ids are waiting; `out`: where commands and records are put."""
        self._fleet = fleet
        self._admission = admission
        self._placement = placement
        self._live = live
        self._out = out
        self._stream = Stream(out)
        self._max_wait_s = max_wait_s
        self.pools_with_room: dict[PoolId, None] = {}
        """What `let_in` has to look at."""
        self.waiting_room = WaitingRoom()

    def ask(self, live: LiveRequest, *, now: float) -> Refusal | None:
        """Submits or parks a request that is undecided; else says why it must be refused."""
        assert live.pool is not None
        candidates = self._fleet.candidates(live.pool, only=live.home, without=live.tried)
        if candidates and live.facts.work in _CAPACITY_FREE_WORK:
            self._submit(live, candidates, now=now)
            return None
        waiting = len(self.waiting_room.turns)
        offer = Offer(
            request=live.request,
            body_bytes=live.facts.body_bytes,
            candidates=candidates,
            must_queue=waiting > 0 and self.waiting_room.in_lane(live.lane) > 0,
            waiting=waiting,
            waiting_bytes=self.waiting_room.body_bytes,
        )
        decision = self._admission.decide(offer, now=now)
        match decision:
            case Admit():
                if len(candidates) > 1:
                    candidates = [c for c in candidates if self._admission.has_room(c)]
                self._submit(live, candidates, now=now)
                return None
            case Wait():
                self._park(live, decision, now=now)
                return None
            case Refusal():
                return decision
            case _:
                assert_never(decision)

    def candidates(self, lane: Lane) -> list[ReplicaLoad]:
        """Replicas that are up and may run what waits in this lane, with or without room."""
        return self._fleet.candidates(lane.pool, only=lane.home, without=lane.without)

    def with_room(self, lane: Lane) -> list[ReplicaLoad]:
        return [load for load in self.candidates(lane) if self._admission.has_room(load)]

    def room_may_be(self, pool: PoolId) -> None:
        """Something changed for the better in this pool; `let_in` looks at it."""
        self.pools_with_room[pool] = None

    def let_in(self, *, now: float) -> None:
        """Submits every waiting turn that fits now, in order of arrival."""
        if self.waiting_room.turns:
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
        for live in stranded:
            self.leave_waiting_room(live, now=now)
        return stranded

    def leave_waiting_room(self, live: LiveRequest, *, now: float) -> None:
        self.waiting_room.leave(live.request)
        live.waited_s += now - live.parked_s

    def leave_replica(self, live: LiveRequest, outcome: str, answer: Answer | None, *, now: float) -> None:
        """Books the end of one attempt; its place on the replica is free from now on."""
        assert live.replica is not None and live.pool is not None
        replica, live.replica = live.replica, None
        self._fleet.ended(replica)
        self._stream.left_replica(live, replica, outcome, answer, now=now)
        self.pools_with_room[live.pool] = None

    def _let_one_in(self, pool: PoolId, *, now: float) -> bool:
        for first in self.waiting_room.first_of_each_lane(pool):
            if room := self.with_room(first.lane):
                live = self._live[first.request]
                self.leave_waiting_room(live, now=now)
                self._submit(live, room, now=now)
                return True
        return False

    def _park(self, live: LiveRequest, wait: Wait, *, now: float) -> None:
        live.step(Step.WAIT)
        live.parked_s = now
        self.waiting_room.enter(
            Waiting(
                request=live.request,
                lane=live.lane,
                body_bytes=live.facts.body_bytes,
                arrived_s=live.arrived_s,
                deadline_s=now + max(0.0, self._max_wait_s - live.waited_s),
            )
        )
        self._stream.waited(live, wait, len(self.waiting_room), now=now)

    def _submit(self, live: LiveRequest, candidates: list[ReplicaLoad], *, now: float) -> None:
        placement = self._placement.place(candidates)
        if live.home is not None:
            placement = Placement(replica=placement.replica, reason=PlacementReason.STATE_LIVES_THERE)
        elif live.tried:
            placement = Placement(replica=placement.replica, reason=PlacementReason.RETRIED_ELSEWHERE)
        live.step(Step.SUBMIT)
        live.replica, live.submitted_s = placement.replica, now
        live.tried.append(placement.replica)
        self._fleet.submitted(placement.replica)
        self._stream.submitted(live, placement, now=now)
        self._out.append(
            Dispatch(
                request=live.request,
                placement=placement,
                session=live.session,
                waited_s=live.waited_s,
                attempt=len(live.tried),
            )
        )
