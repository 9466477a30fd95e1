"""What in time means."""

from typing import Annotated

import msgspec
from msgspec import Meta


class ObjectiveConfig(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    alpha: Annotated[float, Meta(ge=1, le=1000)] = 2.0
    """A turn or a session is in time if it takes at most so many times what it would take alone."""
