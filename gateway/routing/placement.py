"""Placement by load: the replica that runs the fewest turns.

Source: none; the floor, for work that belongs to no session. `predicted.py` places turns.

Invariants: the chosen replica is one of the candidates; among equally loaded ones the least recently
chosen wins, so equal replicas take turns.
"""

from collections.abc import Callable, Collection, Mapping, Sequence

import msgspec

from gateway.domain.by_agent import UNKNOWN_AGENT, AgentKey
from gateway.domain.decision import Placement, PlacementReason, SessionRef
from gateway.domain.engine import EngineSignals
from gateway.domain.fleet import ReplicaLoad
from gateway.domain.ids import ReplicaId, SessionId
from gateway.domain.request import Usage
from gateway.domain.shares import ReplicaShare
from gateway.routing.kv_ledger import Conversation


class Asked(msgspec.Struct, frozen=True):
    """What is known of a turn before it is placed."""

    now: float = 0.0
    agent: AgentKey = UNKNOWN_AGENT
    """Its type is the hash of what its conversation begins with."""
    text_bytes: int = 0
    tokens: Callable[[], float] = float
    """Of its prompt, as expected. Asking takes some µs."""
    waits_at: Collection[ReplicaId] = ()
    """Where it would wait for a place for its adapter."""
    handed_over: float = 0.0
    """Tokens of its prompt that were computed for wherever it goes."""


NOTHING_KNOWN = Asked()


class PlacementPolicy:
    """Which of these replicas should run the turn?"""

    def place(
        self, candidates: Sequence[ReplicaLoad], session: SessionRef | None, asked: Asked = NOTHING_KNOWN
    ) -> Placement:
        """`candidates` is not empty; all of them have room. `session`: None for what is no turn."""
        raise NotImplementedError

    def likely(
        self, candidates: Sequence[ReplicaLoad], session: SessionRef, tokens: float
    ) -> tuple[ReplicaLoad, float]:
        return min(candidates, key=lambda load: load.running), 0.0

    def held(self, session: SessionRef, replica: ReplicaId) -> float:
        return 0.0

    def left(self, session: SessionRef, replica: ReplicaId) -> float | None:
        """Tokens that its conversation left there, and that are lost if its next turn does not find them;
        None if that is not known."""
        return None

    @property
    def sessions_at(self) -> Mapping[ReplicaId, int]:
        return {}

    def is_adrift(self, candidates: Sequence[ReplicaLoad], session: SessionRef) -> bool:
        return False

    def turn_over(
        self,
        session: SessionRef,
        replica: ReplicaId,
        usage: Usage,
        *,
        pauses: bool,
        now: float,
    ) -> None:
        """A turn was answered, to its end. `pauses`: the session's tools run now."""

    def adopt(self, session: SessionRef, replica: ReplicaId, usage: Usage, *, now: float) -> None:
        """A turn of it ran there, by another gateway's decision."""

    def prefilled(self, conversation: Conversation, replica: ReplicaId, usage: Usage) -> None:
        """What is known of its next prompt, or this one's for another replica, was computed there."""

    def spare(self, replica: ReplicaId) -> float:
        return 0.0

    def session_ended(self, session: SessionId) -> None:
        """No further turn will come."""

    def share(self, replica: ReplicaId, running: int) -> ReplicaShare:
        """What other gateways must know of our sessions there; `running`: turns of ours."""
        return ReplicaShare(running=running, sessions=0, held=0.0, wanted=0.0)

    def share_with(self, replica: ReplicaId, others: Sequence[ReplicaShare]) -> None:
        """What the other gateways said last of theirs."""

    def replica_lost(self, replica: ReplicaId) -> None:
        """It is down: what it held is gone."""

    def replica_left(self, replica: ReplicaId) -> None:
        """It is no member any more, and nothing runs there."""

    def told(self, replica: ReplicaId, tokens: Mapping[SessionId, float]) -> None:
        """What its engine says that it holds of each session."""

    def engine_reported(self, replica: ReplicaId, signals: EngineSignals) -> None:
        """As engines do about once a second."""


class LeastLoaded:
    def __init__(self) -> None:
        self._last_chosen: dict[ReplicaId, int] = {}
        self._choices = 0

    def place(self, candidates: Sequence[ReplicaLoad]) -> Placement:
        chosen = candidates[0]
        if len(candidates) > 1:
            chosen = min(candidates, key=lambda c: (c.running, self._last_chosen.get(c.replica, 0)))
        self._choices += 1
        self._last_chosen[chosen.replica] = self._choices
        return Placement(replica=chosen.replica, reason=PlacementReason.LEAST_LOADED)

    def replica_left(self, replica: ReplicaId) -> None:
        self._last_chosen.pop(replica, None)
