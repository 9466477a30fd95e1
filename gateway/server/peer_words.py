"""What a gateway says of itself to the others."""

import msgspec

from gateway.core.fleet import Fleet
from gateway.domain.ids import ReplicaId
from gateway.domain.shares import Share
from gateway.fleet.circuit_breaker import BreakerState


class Told(msgspec.Struct, frozen=True, array_like=True):
    """What a gateway says of itself."""

    url: str
    is_busy: bool
    is_leaving: bool
    share: Share
    dead: tuple[ReplicaId, ...] = ()
    """Replicas that do not answer it, or fail or delay what it sends."""
    number: int = 0
    """Of what it said, and growing: what is older, or only stands there still, is no news."""
    twins: tuple[int, ...] = ()
    """Names of what it and another gateway gave, of the last second."""
    picks_at: str = ""
    """HOST:PORT where a picker takes streams that are passed on."""


def dead_of(fleet: Fleet) -> tuple[ReplicaId, ...]:
    ejected = BreakerState.EJECTED
    return tuple(
        each.facts.id for each in fleet if not each.is_up or fleet.health.state(each.facts.id) is ejected
    )
