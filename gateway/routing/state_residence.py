"""Where stored state lives: which replica minted a response, conversation or item id, and for whom.

Answers one question: to which replica must a request go that names this id? State such as a stored
response lives in one replica's memory, so a request that builds on it can run nowhere else.

Invariants: an id is found only under the tenant whose request minted it; at most `max_state_ids` are
remembered, the least recently used go first; forgetting an id never routes it wrongly, it only makes
it unknown.
"""

from collections import OrderedDict
from typing import Annotated

import msgspec
from msgspec import Meta

from gateway.domain.ids import ReplicaId, SessionId, TenantId


class StateResidenceConfig(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    max_state_ids: Annotated[int, Meta(ge=1)] = 200_000
    """Ids of stored responses, conversations and items whose replica is remembered."""


class Residence(msgspec.Struct, frozen=True):
    replica: ReplicaId
    session: SessionId | None


class StateResidence:
    def __init__(self, config: StateResidenceConfig) -> None:
        self._max = config.max_state_ids
        self._homes: OrderedDict[tuple[TenantId, str], Residence] = OrderedDict()

    def __len__(self) -> int:
        return len(self._homes)

    def find(self, tenant: TenantId, state_id: str) -> Residence | None:
        key = (tenant, state_id)
        home = self._homes.get(key)
        if home is not None:
            self._homes.move_to_end(key)
        return home

    def learn(self, tenant: TenantId, state_id: str, home: Residence) -> None:
        self._homes[(tenant, state_id)] = home
        self._homes.move_to_end((tenant, state_id))
        if len(self._homes) > self._max:
            self._homes.popitem(last=False)
