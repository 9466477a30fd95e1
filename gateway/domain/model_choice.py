"""Which model runs what clients ask for by a name of the operator's."""

import msgspec

from gateway.domain.ids import PoolId
from gateway.domain.string_enums import Word


class Fallback(Word):
    """Why a turn runs on a model that its name does not lead to by itself."""

    OUTAGE = "outage"
    """No replica of its own model was there."""
    OVERLOAD = "overload"
    """They were busy for too long, or nobody more may wait."""
    EARLIER = "earlier"
    """An earlier turn of its session fell back, or one that waited beside it."""


class Target(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """A model as its replicas know it, and where it is asked for."""

    model: str
    pool: PoolId | None = None
    """None: whichever serves it."""


class Choice(msgspec.Struct, eq=False):
    """What one name means for one session."""

    target: Target
    is_fallback: bool = False
    begun: int = 0
    """Turns that were sent there, and not lost before an answer began."""
