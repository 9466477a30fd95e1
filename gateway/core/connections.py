"""Where a connection goes by which turns will come later, and then run nowhere else: a WebSocket.

It has said nothing but its headers. Nothing is settled by asking: its turns are decided when they come.
"""

from collections.abc import Collection, Mapping
from typing import TYPE_CHECKING

from gateway.domain.decision import SessionRef, SessionSource
from gateway.domain.ids import PoolId, ReplicaId, TenantId
from gateway.domain.request import ExplicitId

if TYPE_CHECKING:
    from gateway.core.coordinator import Coordinator


def pool_of_connection(brain: "Coordinator", model: str | None) -> PoolId | None:
    """The pool that its turns run in; None if that cannot be known before they come. `model`: if it says
    so."""
    return brain.fleet.pool_for(model) if model is not None else brain.fleet.only_pool


def place_connection(
    brain: "Coordinator",
    pool: PoolId,
    tenant: TenantId,
    stated: ExplicitId | None,
    *,
    without: Collection[ReplicaId],
    connections: Mapping[ReplicaId, int],
) -> ReplicaId | None:
    """Where its session lives, if that is known; else where least runs, or will: each connection counts as
    one turn. `connections`: that are open; `without`: where it may not go."""
    candidates = brain.fleet.candidates(pool, only=None, without=without)
    if not candidates:
        return None
    least = min(candidates, key=lambda load: load.running + connections.get(load.replica, 0))
    if stated is None:
        return least.replica
    session = brain.sessions.sessions.find_explicit((tenant, stated.schema, stated.session))
    if session is None:
        return least.replica
    ref = SessionRef(session=session.id, source=SessionSource.CLIENT_ID, confidence=session.confidence)
    home = brain.placement.likely(candidates, ref, 0.0)[0] if len(candidates) > 1 else least
    return home.replica
