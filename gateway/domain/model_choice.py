"""The models of the operator's names."""

import msgspec

from gateway.domain.ids import PoolId
from gateway.domain.string_enums import Word


class Fallback(Word):
    """Why a turn runs on another model than its name's target."""

    OUTAGE = "outage"
    """The target had no replica."""
    OVERLOAD = "overload"
    """The target's replicas were busy for too long, or the waiting room was full."""
    EARLIER = "earlier"
    """An earlier or concurrent turn of its session fell back."""


class Target(msgspec.Struct, frozen=True, array_like=True, gc=False):
    model: str
    """As its replicas know it."""
    pool: PoolId | None = None
    """None: any that serves it."""


class Choice(msgspec.Struct, eq=False):
    """Of one name, for one session."""

    target: Target
    is_fallback: bool = False
    begun: int = 0
    """Turns sent there, without those lost before an answer began."""
