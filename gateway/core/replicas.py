"""Membership of replicas and their state: joined, up, down, drained, gone; every other book follows.

Invariants: a replica that is unknown or down is no part of what admission counts; whoever waits or runs
nowhere because a replica went is handed back, once.
"""

from collections.abc import Sequence
from typing import assert_never

from gateway.core import events as ev
from gateway.core.brain_state import BrainState
from gateway.core.turns.gate import Gate
from gateway.core.turns.live import LiveRequest
from gateway.domain.ids import PoolId, ReplicaId
from gateway.domain.shares import Share

Event = ev.FleetEvent | ev.EngineReported


class Replicas:
    def __init__(self, shared: BrainState, gate: Gate) -> None:
        self._fleet = shared.fleet
        self._admission = shared.admission
        self._placement, self._ledger = shared.placement, shared.placement.ledger
        self._ranks = shared.ranks
        self._hints = shared.sessions.hints
        self._forecasts = shared.forecasts
        self._records = shared.records
        self._gate = gate

    def take_in(self, event: Event, *, now: float) -> list[LiveRequest]:
        match event:
            case ev.ReplicaJoined():
                self._fleet.joined(event.replica, event.pool)
                self._forecasts.replica_joined(event.replica, event.pool)
            case ev.ReplicaCameUp():
                return self._came_up(event, now=now)
            case ev.ReplicaWentDown():
                return self._went_down(event.replica, event.why, now=now)
            case ev.ReplicaDrained():
                return self._drained(event, now=now)
            case ev.ReplicaLeft():
                stranded = self._went_down(event.replica, event.why, now=now)
                self._fleet.left(event.replica)
                return stranded
            case ev.CacheResidencyReported():
                if self._fleet.get(event.replica) is not None:
                    self._ledger.residency_reported(event.replica, event.tokens)
            case ev.EngineReported():
                self._reported(event, now=now)
            case ev.SharesReceived():
                self._share_with(event.shares, now=now)
            case _:
                assert_never(event)
        return []

    def share(self) -> Share:
        replicas = {each.facts.id: self._ledger.share(each.facts.id, each.running) for each in self._fleet}
        pools = {pool: admission.share() for pool, admission in self._admission.pools.items()}
        return Share(replicas=replicas, pools=pools)

    def _share_with(self, shares: Sequence[Share], *, now: float) -> None:
        for each in self._fleet:
            of_others = [share.replicas[each.facts.id] for share in shares if each.facts.id in share.replicas]
            each.elsewhere = sum(share.running for share in of_others)
            self._ledger.others_have(each.facts.id, of_others)
        for pool, admission in self._admission.pools.items():
            others = [share.pools[pool] for share in shares if pool in share.pools]
            admission.share_with(others, now=now)

    def forget(self, *, now: float) -> None:
        for replica in self._fleet.forgotten:
            self._records.replica_changed(replica, "left", "is no member any more", now=now)
            self._placement.replica_left(replica)
            self._forecasts.replica_left(replica)
            self._hints.replica_left(replica)
        self._fleet.forgotten.clear()

    def report_health(self, *, now: float) -> None:
        for changed in self._fleet.health.changes:
            self._records.replica_changed(changed.replica, changed.state, changed.why, now=now)
            if (replica := self._fleet.get(changed.replica)) is not None:
                self._update_admission(replica.facts.pool, now=now)
        self._fleet.health.changes.clear()

    def _came_up(self, event: ev.ReplicaCameUp, *, now: float) -> list[LiveRequest]:
        pool = event.facts.pool
        before = self._fleet.get(event.facts.id)
        had = before.facts.models if before is not None else ()
        if self._fleet.came_up(event.facts, now=now):
            self._forecasts.replica_joined(event.facts.id, pool)
            self._records.replica_changed(event.facts.id, "up", "is healthy", now=now)
            self._gate.room_may_be(pool)
            self._update_admission(pool, now=now)
        if event.facts.models == had:
            return []
        self._gate.room_may_be(pool)
        return self._gate.misplaced(pool, now=now) + self._gate.evict_unplaceable(pool, now=now)

    def _went_down(self, replica: ReplicaId, why: str, *, now: float) -> list[LiveRequest]:
        gone = self._fleet.get(replica)
        was_up = gone is not None and gone.is_up
        if self._fleet.went_down(replica, why, now=now):
            self._records.replica_changed(replica, "down", why, now=now)
        if gone is None or not was_up:
            return []
        self._ledger.replica_lost(replica)
        self._ranks.replica_lost(replica)
        self._update_admission(gone.facts.pool, now=now)
        return self._gate.evict_unplaceable(gone.facts.pool, now=now)

    def _drained(self, event: ev.ReplicaDrained, *, now: float) -> list[LiveRequest]:
        if not self._fleet.drained(event.replica, is_draining=event.is_draining):
            return []
        state = self._fleet.get(event.replica)
        assert state is not None
        word = "draining" if event.is_draining else self._fleet.health.state(event.replica).value
        self._records.replica_changed(event.replica, word, event.why, now=now)
        self._gate.room_may_be(state.facts.pool)
        return self._gate.evict_unplaceable(state.facts.pool, now=now)

    def _update_admission(self, pool: PoolId, *, now: float) -> None:
        self._admission.fleet_changed(pool, self._fleet.up(pool), now=now)

    def _reported(self, event: ev.EngineReported, *, now: float) -> None:
        replica = self._fleet.get(event.replica)
        if replica is not None and replica.is_up:
            if not self._fleet.is_ejected(event.replica):
                self._admission.engine_reported(replica.facts.pool, event.replica, event.signals, now=now)
            self._hints.engine_reported(event.replica, event.signals.kv_used)
            self._ledger.engine_reported(event.replica, event.signals)
            self._fleet.adapters.engine_reported(
                event.replica, event.signals.most_adapters, event.signals.adapters
            )
            if event.signals.ranks is not None:
                self._ranks.replica_has(event.replica, event.signals.ranks)
