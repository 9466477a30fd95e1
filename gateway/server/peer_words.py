"""What a gateway says of itself to the others, and what it makes of what they say."""

import contextlib
from collections.abc import Mapping
from typing import Final

import msgspec

from gateway.core.fleet import Fleet
from gateway.domain.ids import ReplicaId
from gateway.domain.shares import Share
from gateway.fleet.circuit_breaker import BreakerState
from gateway.server.drains import Drain

DRAIN: Final = "drain "
"""With the name of a replica: under which name the store has what operators said of it."""


class Told(msgspec.Struct, frozen=True, array_like=True):
    """What a gateway says of itself."""

    url: str
    is_busy: bool
    is_leaving: bool
    share: Share
    fleet: int
    """The same at all that know the same secret."""
    dead: tuple[ReplicaId, ...] = ()
    """Replicas that do not answer it, or fail or delay what it sends."""
    number: int = 0
    """Of what it said; so what is new differs from what only stands there still."""
    twins: tuple[int, ...] = ()
    """Names of what it and another gateway gave, of the last second."""
    picks_at: str = ""
    """HOST:PORT where a picker takes streams that are passed on."""


def dead_of(fleet: Fleet) -> tuple[ReplicaId, ...]:
    ejected = BreakerState.EJECTED
    return tuple(
        each.facts.id for each in fleet if not each.is_up or fleet.health.state(each.facts.id) is ejected
    )


def decoded(values: Mapping[str, bytes]) -> tuple[dict[str, Told], dict[ReplicaId, Drain]]:
    others, drains = {}, {}
    for origin, value in values.items():
        with contextlib.suppress(msgspec.MsgspecError):  # another version of us
            if origin.startswith(DRAIN):
                drains[ReplicaId(origin.removeprefix(DRAIN))] = _SAID.decode(value)
            else:
                others[origin] = _TOLD.decode(value)
    return others, drains


encode: Final = msgspec.msgpack.Encoder().encode
_TOLD: Final = msgspec.msgpack.Decoder(Told)
_SAID: Final = msgspec.msgpack.Decoder(Drain)
