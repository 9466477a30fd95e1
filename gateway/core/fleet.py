"""The fleet's state in the brain: which replicas are up, what each runs, which pool serves a model.

Invariants: `running` of a replica is the number of requests submitted to it that have not ended, also
while it is down; a replica is a candidate only while it is up.
"""

from collections.abc import Collection, Iterator

import msgspec

from gateway.domain.fleet import Abilities, ReplicaFacts, ReplicaLoad
from gateway.domain.ids import PoolId, ReplicaId


class PoolFacts(msgspec.Struct, frozen=True):
    """A pool as configured."""

    id: PoolId
    models: tuple[str, ...] = ()
    """Model names to route here; empty means whatever its replicas say that they serve."""


class ReplicaState(msgspec.Struct, kw_only=True):
    facts: ReplicaFacts
    is_up: bool
    running: int = 0


class Fleet:
    def __init__(self, pools: Collection[PoolFacts]) -> None:
        if not pools:
            raise ValueError("a fleet needs a pool")
        self._pools = {pool.id: pool for pool in pools}
        self._replicas: dict[ReplicaId, ReplicaState] = {}

    def __iter__(self) -> Iterator[ReplicaState]:
        return iter(self._replicas.values())

    def get(self, replica: ReplicaId) -> ReplicaState | None:
        return self._replicas.get(replica)

    def came_up(self, facts: ReplicaFacts) -> bool:
        """Whether this is news: the replica was unknown or down. Its pool never changes."""
        state = self._replicas.get(facts.id)
        if facts.pool not in self._pools or (state is not None and state.facts.pool != facts.pool):
            raise ValueError(f"replica {facts.id} cannot be in pool {facts.pool}")
        if state is None:
            self._replicas[facts.id] = ReplicaState(facts=facts, is_up=True)
            return True
        was_up, state.is_up, state.facts = state.is_up, True, facts
        return not was_up

    def went_down(self, replica: ReplicaId) -> bool:
        """Whether this is news: the replica was up."""
        state = self._replicas.get(replica)
        if state is None or not state.is_up:
            return False
        state.is_up = False
        return True

    def abilities(self, replica: ReplicaId) -> Abilities:
        return self._replicas[replica].facts.abilities

    def submitted(self, replica: ReplicaId) -> None:
        self._replicas[replica].running += 1

    def ended(self, replica: ReplicaId) -> None:
        self._replicas[replica].running -= 1

    def candidates(
        self, pool: PoolId, *, only: ReplicaId | None, without: Collection[ReplicaId]
    ) -> list[ReplicaLoad]:
        """Replicas of the pool that are up, as far as these limits allow."""
        states = self._replicas.values() if only is None else [self._replicas[only]]
        return [
            ReplicaLoad(state.facts.id, state.running)
            for state in states
            if state.is_up and state.facts.pool == pool and state.facts.id not in without
        ]

    def pool_for(self, model: str | None, home: ReplicaId | None = None) -> PoolId | None:
        """The pool of this replica, if it is named and known; else that serves the model; None if none does.

        With one pool everything goes there, and its backends judge the model's name themselves. A
        request that names no model goes to the first pool. While nobody knows what a pool serves,
        because none of its replicas has said it yet, it may be any model that no other pool serves.
        """
        if home is not None and home in self._replicas:
            return self._replicas[home].facts.pool
        if model is None or len(self._pools) == 1:
            return next(iter(self._pools))
        for pool in self._pools.values():
            if model in pool.models:
                return pool.id
        unread = {pool.id: None for pool in self._pools.values() if not pool.models}
        for state in self._replicas.values():
            if self._pools[state.facts.pool].models or not state.facts.models:
                continue
            if model in state.facts.models:
                return state.facts.pool
            unread.pop(state.facts.pool, None)
        return next(iter(unread), None)
