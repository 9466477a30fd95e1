"""Residence of stored state: to which replica must a request with this response, conversation or item id go?

A stored response is in one replica's memory, so a request that builds on it can run nowhere else.

Invariants: an id is found only under its own tenant; at most `max_state_ids` are kept, the least recently
used go first; a forgotten id is unknown, never routed wrongly.
"""

import hashlib
from collections import OrderedDict
from collections.abc import Callable, Iterable
from typing import Annotated, NewType

import msgspec
from msgspec import Meta

from gateway.domain.ids import ReplicaId, SessionId, TenantId


class StateResidenceConfig(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    max_state_ids: Annotated[int, Meta(ge=1)] = 200_000
    """Ids of stored responses, conversations and items with a known replica."""


class Residence(msgspec.Struct, frozen=True):
    replica: ReplicaId
    session: SessionId | None


# A one-way hash of a tenant and an id of its state.
StateKey = NewType("StateKey", bytes)


def state_key(tenant: TenantId, state_id: str) -> StateKey:
    return StateKey(hashlib.sha256(f"{len(tenant)}:{tenant}{state_id}".encode()).digest())


class StateResidence:
    def __init__(self, config: StateResidenceConfig) -> None:
        self._max = config.max_state_ids
        self._homes: OrderedDict[StateKey, Residence] = OrderedDict()
        # Takes new entries, to persist them.
        self.on_learned: Callable[[StateKey, ReplicaId], None] | None = None

    def __len__(self) -> int:
        return len(self._homes)

    def find(self, tenant: TenantId, state_id: str) -> Residence | None:
        key = state_key(tenant, state_id)
        home = self._homes.get(key)
        if home is not None:
            self._homes.move_to_end(key)
        return home

    def learn(self, tenant: TenantId, state_id: str, home: Residence) -> None:
        key = state_key(tenant, state_id)
        before = self._homes.get(key)
        self._put(key, home)
        if self.on_learned is not None and (before is None or before.replica != home.replica):
            self.on_learned(key, home.replica)

    def restore(self, homes: Iterable[tuple[StateKey, ReplicaId]]) -> None:
        for key, replica in homes:
            self._put(key, Residence(replica, None))

    def homes(self) -> list[tuple[StateKey, ReplicaId]]:
        return [(key, home.replica) for key, home in self._homes.items()]

    def _put(self, key: StateKey, home: Residence) -> None:
        self._homes[key] = home
        self._homes.move_to_end(key)
        if len(self._homes) > self._max:
            self._homes.popitem(last=False)
