"""Session affinity, bounded by load (S6): a turn goes where its session's KV cache is, unless that is busy.

Source: SAGA (§5.1, Eq. 7): stay while the load is below θ, else take the least loaded.

Symbols: θ → `spill_factor` and `spill_floor`, together.

Deviations: SAGA's θ is a share of a capacity that a gateway in front of stock servers does not know; ours is
a multiple of what the replicas run on average. Whether the state is still cached is not asked yet: nobody
tells. A new session goes where the fewest sessions live, not the fewest turns: sessions whose tools run hold
KV blocks, too. Affinity is per conversation, so a burst of sub-agents that spills over leaves its parent's
home alone.

Invariants: the chosen replica is one of the candidates; a conversation has at most one home; at most
`max_conversations` are remembered, the least recently used go first, and forgetting one only costs a prefill;
`sessions_at` counts the sessions whose first conversation is remembered to live there.
"""

from collections import OrderedDict
from collections.abc import Sequence
from typing import Annotated

import msgspec
from msgspec import Meta

from gateway.domain.decision import Placement, PlacementReason, SessionRef
from gateway.domain.fleet import ReplicaLoad
from gateway.domain.ids import ReplicaId, SessionId, ThreadId
from gateway.routing.placement import LeastLoaded


class AffinityConfig(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    spill_factor: Annotated[float, Meta(ge=1, le=100)] = 1.5
    """A turn leaves its home when that runs more than so many times what a replica runs on average, …"""
    spill_floor: Annotated[int, Meta(ge=1, le=100_000)] = 8
    """… and more than so many turns."""
    max_conversations: Annotated[int, Meta(ge=1)] = 200_000
    """Conversations whose replica is remembered."""


_Conversation = tuple[SessionId, ThreadId]


class SessionAffinity:
    def __init__(self, config: AffinityConfig) -> None:
        self._config = config
        self._by_load = LeastLoaded()
        self._homes: OrderedDict[_Conversation, ReplicaId] = OrderedDict()
        self._firsts: dict[SessionId, _Conversation] = {}
        """The conversation that a session is counted by."""
        self.sessions_at: dict[ReplicaId, int] = {}

    def place(self, candidates: Sequence[ReplicaLoad], session: SessionRef | None) -> Placement:
        if session is None:
            return self._by_load.place(candidates)
        chosen, reason = self._choose(candidates, session)
        self._settle((session.session, session.thread), chosen.replica)
        return Placement(replica=chosen.replica, reason=reason)

    def is_adrift(self, candidates: Sequence[ReplicaLoad], session: SessionRef) -> bool:
        home = self._home(session)
        return home is not None and all(load.replica != home for load in candidates)

    def replica_lost(self, replica: ReplicaId) -> None:
        """Homes stay: whose replica comes back at once need not move, and who moves is adrift."""

    def session_ended(self, session: SessionId) -> None:
        """Its state is of no use any more. (What its other conversations left is forgotten in time.)"""
        if (first := self._firsts.get(session)) is not None:
            self._leave(first)

    def _choose(
        self, candidates: Sequence[ReplicaLoad], session: SessionRef
    ) -> tuple[ReplicaLoad, PlacementReason]:
        home = self._home(session)
        if home is None:
            return self._emptiest(candidates), PlacementReason.LEAST_LOADED
        load = next((c for c in candidates if c.replica == home), None)
        if load is None:
            return self._emptiest(candidates), PlacementReason.HOME_IS_GONE
        most = self._config.spill_factor * sum(c.running for c in candidates) / len(candidates)
        if load.running > self._config.spill_floor and load.running > most:
            return min(candidates, key=lambda c: c.running), PlacementReason.HOME_IS_BUSY
        return load, PlacementReason.SESSION_LIVES_THERE

    def _home(self, session: SessionRef) -> ReplicaId | None:
        """A conversation that is new shares its beginning with the session's first, more often than not."""
        home = self._homes.get((session.session, session.thread))
        if home is None and (first := self._firsts.get(session.session)) is not None:
            home = self._homes[first]
        return home

    def _emptiest(self, candidates: Sequence[ReplicaLoad]) -> ReplicaLoad:
        return min(candidates, key=lambda c: (self.sessions_at.get(c.replica, 0), c.running))

    def _settle(self, conversation: _Conversation, replica: ReplicaId) -> None:
        session = conversation[0]
        before = self._homes.get(conversation)
        self._homes[conversation] = replica
        self._homes.move_to_end(conversation)
        if session not in self._firsts:
            self._firsts[session] = conversation
            self._count(replica, 1)
        elif before is not None and before != replica and self._firsts[session] == conversation:
            self._count(before, -1)
            self._count(replica, 1)
        if len(self._homes) > self._config.max_conversations:
            self._leave(next(iter(self._homes)))

    def _leave(self, conversation: _Conversation) -> None:
        replica = self._homes.pop(conversation)
        if self._firsts.get(conversation[0]) == conversation:
            del self._firsts[conversation[0]]
            self._count(replica, -1)

    def _count(self, replica: ReplicaId, change: int) -> None:
        count = self.sessions_at.get(replica, 0) + change
        if count:
            self.sessions_at[replica] = count
        else:
            del self.sessions_at[replica]
