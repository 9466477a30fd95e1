"""The fleet's state in the brain: which replicas are up, what each runs, which pool serves a model.

Invariants: `running` of a replica is the number of requests submitted to it that have not ended, also
while it is down; a replica is a candidate only while it is up; one that is ejected only where all are; one
that is drained only for what can run nowhere else; one that is for prompts only where no other is left.
"""

from collections.abc import Collection, Iterator, Mapping, Sequence
from math import inf
from typing import Final

import msgspec

from gateway.domain.fleet import Abilities, ReplicaFacts, ReplicaLoad, Role
from gateway.domain.ids import PoolId, ReplicaId
from gateway.fleet.adapters import AdapterSlots
from gateway.fleet.breaker_states import BreakerState, HealthConfig
from gateway.fleet.circuit_breakers import FleetHealth

# Prompts that a replica computes for others at once, as far as one goes that comes back.
_USUAL_LEGS: Final = 1.0


class PoolFacts(msgspec.Struct, frozen=True):
    """A pool as configured."""

    id: PoolId
    models: tuple[str, ...] = ()
    """Model names to route here; empty means whatever its replicas say that they serve."""


class ReplicaState(msgspec.Struct, kw_only=True):
    facts: ReplicaFacts
    is_up: bool
    cause: str = ""
    """Why it is not up; empty while nobody has looked."""
    up_s: float = 0.0
    down_s: float = -inf
    checked_s: float = 0.0
    """When a check last found it so, as far as that was reported."""
    running: int = 0
    """Turns, and other work that takes a place."""
    elsewhere: int = 0
    """Turns that other gateways sent it, by their last report."""
    light: int = 0
    """Requests that cost it next to nothing."""
    is_draining: bool = False
    is_leaving: bool = False
    """It is forgotten with the last request that runs there."""


class Fleet:
    def __init__(
        self,
        pools: Collection[PoolFacts],
        health: FleetHealth | None = None,
        roles: Mapping[ReplicaId, Role] | None = None,
        prices: Mapping[ReplicaId, float] | None = None,
    ) -> None:
        """`roles`: of those replicas that are not for both; `prices`: of those that have one, as in
        `ReplicaLoad.price`."""
        self.set_pools(pools, roles or {}, prices or {})
        self.health = health or FleetHealth(HealthConfig())
        self._replicas: dict[ReplicaId, ReplicaState] = {}
        self._served_by_some: dict[PoolId, frozenset[str]] = {}
        # An operator drained them before they were known: members that have not come up.
        self._to_be_drained: set[ReplicaId] = set()
        self.adapters = AdapterSlots()
        # Lately; whoever tells others of them clears it.
        self.forgotten: list[ReplicaId] = []

    def set_pools(
        self,
        pools: Collection[PoolFacts],
        roles: Mapping[ReplicaId, Role],
        prices: Mapping[ReplicaId, float],
    ) -> None:
        if not pools:
            raise ValueError("a fleet needs a pool")
        of_role = {role: frozenset(r for r, has in roles.items() if has is role) for role in Role}
        self._for_prompts, self._for_decoding = of_role[Role.PREFILL], of_role[Role.DECODE]
        self._prices = prices
        self._pools = {pool.id: pool for pool in pools}
        self._first = next(iter(self._pools))

    def __iter__(self) -> Iterator[ReplicaState]:
        return iter(self._replicas.values())

    def __len__(self) -> int:
        return len(self._replicas)

    def down(self) -> dict[ReplicaId, str]:
        """Why, of each replica that no new session goes to."""
        down = {each.facts.id: each.cause or "was not checked yet" for each in self if not each.is_up}
        return down | {each.facts.id: "drained by an operator" for each in self if each.is_draining}

    def ejected(self, *, now: float) -> dict[ReplicaId, str]:
        """Why, of each replica that is up and has no turns, and when it is tried again."""
        found = {}
        for name in [each.facts.id for each in self if each.is_up]:
            if (ejected := self.health.ejected(name)) is not None:
                why, until_s = ejected
                when = "now" if until_s is None else f"in {max(0.0, until_s - now):.0f} s"
                found[name] = f"{why}; tried again {when}"
        return found

    def get(self, replica: ReplicaId) -> ReplicaState | None:
        return self._replicas.get(replica)

    def came_up(self, facts: ReplicaFacts, *, now: float) -> bool:
        """Whether this is news: the replica was unknown or down. Its pool never changes."""
        state = self._replicas.get(facts.id)
        if facts.pool not in self._pools or (state is not None and state.facts.pool != facts.pool):
            raise ValueError(f"replica {facts.id} cannot be in pool {facts.pool}")
        self.health.came_up(facts.id, facts.pool, now=now)
        self.adapters.listed(facts.id, facts.adapters)
        if state is None:
            self._add(facts, is_up=True, now=now)
            self._look_at_models(facts.pool)
            return True
        state.checked_s, state.up_s = now, state.up_s if state.is_up else now
        was_up, state.is_up, had, state.facts = state.is_up, True, state.facts.models, facts
        state.is_leaving, state.cause = False, ""
        if facts.models != had:
            self._look_at_models(facts.pool)
        return not was_up

    def joined(self, replica: ReplicaId, pool: PoolId) -> None:
        state = self._replicas.get(replica)
        if state is None:
            self._add(ReplicaFacts(id=replica, pool=pool), is_up=False)
        else:
            state.is_leaving = False

    def _add(self, facts: ReplicaFacts, *, is_up: bool, now: float = 0.0) -> None:
        is_draining = facts.id in self._to_be_drained
        self._to_be_drained.discard(facts.id)
        self._replicas[facts.id] = ReplicaState(
            facts=facts, is_up=is_up, up_s=now, checked_s=now, is_draining=is_draining
        )

    def went_down(self, replica: ReplicaId, cause: str, *, now: float) -> bool:
        state = self._replicas.get(replica)
        if state is None:
            return False
        is_news = state.is_up or not state.cause
        if state.is_up:
            state.down_s = now
        state.is_up, state.cause = False, cause
        self.health.went_down(replica, now=now)
        return is_news

    def drained(self, replica: ReplicaId, *, is_draining: bool) -> bool:
        state = self._replicas.get(replica)
        if state is None:  # it has not come up yet
            (self._to_be_drained.add if is_draining else self._to_be_drained.discard)(replica)
            return False
        if state.is_draining == is_draining:
            return False
        state.is_draining = is_draining
        return True

    def left(self, replica: ReplicaId) -> None:
        self._to_be_drained.discard(replica)
        state = self._replicas.get(replica)
        if state is not None and not state.is_up:
            state.is_leaving, state.is_draining = True, False
            self._forget_if_gone(state)

    def _forget_if_gone(self, state: ReplicaState) -> None:
        if state.is_leaving and not state.running and not state.light:
            del self._replicas[state.facts.id]
            self.health.forget(state.facts.id)
            self.adapters.left(state.facts.id)
            self.forgotten.append(state.facts.id)
            self._look_at_models(state.facts.pool)

    def abilities(self, replica: ReplicaId) -> Abilities:
        return self._replicas[replica].facts.abilities

    def submitted(self, replica: ReplicaId, *, is_light: bool = False) -> None:
        state = self._replicas[replica]
        if is_light:
            state.light += 1
        else:
            state.running += 1

    def ended(self, replica: ReplicaId, *, is_light: bool = False) -> None:
        state = self._replicas[replica]
        if is_light:
            state.light -= 1
        else:
            state.running -= 1
        if state.is_leaving:
            self._forget_if_gone(state)

    def candidates(
        self,
        pool: PoolId,
        *,
        only: ReplicaId | None,
        without: Collection[ReplicaId],
        model: str | None = None,
    ) -> list[ReplicaLoad]:
        """Replicas of the pool that are up, as far as these limits allow. `model`: which they have to serve,
        as far as they say."""
        if only is not None:
            home = self._replicas.get(only)
            is_there = home is not None and home.is_up and home.facts.pool == pool and only not in without
            return [ReplicaLoad(only, home.running)] if home is not None and is_there else []
        found = []
        for state in self._replicas.values():
            facts = state.facts
            is_there = state.is_up and not state.is_draining and facts.pool == pool
            if is_there and facts.id not in without:
                if model is None or not facts.models or model in facts.models:
                    found.append(ReplicaLoad(facts.id, state.running + state.elsewhere))
        if not self.health.all_up:
            found = [load for load in found if not self.is_ejected(load.replica)] or found
        if self._for_prompts:
            found = [load for load in found if load.replica not in self._for_prompts] or found
        if self._prices:
            found = self._priced(found)
        outliers = self.health.outliers
        if not outliers.late:
            return found
        return [
            msgspec.structs.replace(
                load,
                slower=outliers.slower(load.replica),
                seems_slower=outliers.slower(load.replica, at_least=0.0),
            )
            for load in found
        ]

    def may_prefill(
        self, pool: PoolId, *, without: ReplicaId, model: str | None, now: float
    ) -> list[ReplicaLoad]:
        """Replicas that may compute a prompt for another one, `without`; as `candidates`."""
        may_take, is_sound = self.health.may_take, self.health.all_up
        found = [
            ReplicaLoad(state.facts.id, state.running + state.elsewhere)
            for state in self._replicas.values()
            if state.is_up
            and not state.is_draining
            and state.facts.pool == pool
            and state.facts.id != without
            and state.facts.id not in self._for_decoding
            and (model is None or not state.facts.models or model in state.facts.models)
            and (is_sound or may_take(state.facts.id, state.running, _USUAL_LEGS, now=now))
        ]
        return self._priced(found) if self._prices else found

    def _priced(self, loads: Sequence[ReplicaLoad]) -> list[ReplicaLoad]:
        return [
            msgspec.structs.replace(load, price=self._prices[load.replica])
            if load.replica in self._prices
            else load
            for load in loads
        ]

    def is_ejected(self, replica: ReplicaId) -> bool:
        return self.health.state(replica) is BreakerState.EJECTED

    def up(self, pool: PoolId) -> list[ReplicaId]:
        """Without ejected ones, unless all are."""
        up = [state.facts.id for state in self if state.is_up and state.facts.pool == pool]
        if not self.health.all_up:
            up = [each for each in up if not self.is_ejected(each)] or up
        return [each for each in up if each not in self._for_prompts] or up

    def without_slot(self, model: str | None, candidates: Sequence[ReplicaLoad]) -> frozenset[ReplicaId]:
        return frozenset(
            load.replica
            for load in candidates
            if self.adapters.is_full(
                load.replica, model, have_others=self._replicas[load.replica].elsewhere > 0
            )
        )

    def served_by_some(self, pool: PoolId | None, model: str | None) -> str | None:
        """The model, if some replicas of the pool say that they serve it, and others that they serve others
        alone: a LoRA adapter that is not loaded everywhere. What nobody lists may have many names."""
        if model is None or pool is None:
            return None
        return model if model in self._served_by_some.get(pool, ()) else None

    def _look_at_models(self, pool: PoolId) -> None:
        lists = [s.facts.models for s in self._replicas.values() if s.facts.pool == pool and s.facts.models]
        listed = {model for each in lists for model in each}
        self._served_by_some[pool] = frozenset(m for m in listed if not all(m in each for each in lists))

    def absent(self, pool: PoolId, *, only: ReplicaId | None) -> list[ReplicaLoad]:
        return [
            ReplicaLoad(state.facts.id, state.running)
            for state in self._replicas.values()
            if state.facts.pool == pool and (only is None or state.facts.id == only)
        ]

    def open_to_more(self, candidates: Sequence[ReplicaLoad], *, now: float) -> Sequence[ReplicaLoad]:
        if self.health.all_up or len(candidates) < 2:
            return candidates
        sound = [c for c in candidates if self.health.state(c.replica) is BreakerState.UP]
        if not sound:
            return candidates
        usual = sum(load.running for load in sound) / len(sound)
        return [
            load for load in candidates if self.health.may_take(load.replica, load.running, usual, now=now)
        ]

    def pool_for(self, model: str | None, home: ReplicaId | None = None) -> PoolId | None:
        """The pool of this replica, if it is named and known; else that serves the model; None if none does.

        With one pool everything goes there, and its backends judge the model's name themselves. A
        request that names no model goes to the first pool. While nobody knows what a pool serves,
        because none of its replicas has listed models yet, it may be any model that no other pool serves.
        """
        if home is not None and home in self._replicas:
            return self._replicas[home].facts.pool
        if model is None or len(self._pools) == 1:
            return self._first
        for pool in self._pools.values():
            if model in pool.models:
                return pool.id
        unread = {pool.id: None for pool in self._pools.values() if not pool.models}
        for state in self._replicas.values():
            pool_facts = self._pools.get(state.facts.pool)
            if pool_facts is None or pool_facts.models or not state.facts.models:
                continue
            if model in state.facts.models:
                return state.facts.pool
            unread.pop(state.facts.pool, None)
        return next(iter(unread), None)
