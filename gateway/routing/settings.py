"""What can be set about placement."""

from typing import Annotated, Literal

import msgspec
from msgspec import Meta

from gateway.routing.stealing import StealingConfig


class RoutingConfig(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    policy: Literal["predicted", "affinity"] = "predicted"
    """Where a turn goes: where it is predicted to be done soonest, counting what that costs others; or where
    its session is, unless that is busy."""
    spill_factor: Annotated[float, Meta(ge=1, le=100)] = 1.5
    """With `affinity`, a turn leaves its home when that runs more than so many times what a replica runs on
    average, …"""
    spill_floor: Annotated[int, Meta(ge=1, le=100_000)] = 8
    """… and more than so many turns."""
    stealing: StealingConfig = StealingConfig()
    """With `predicted`."""
    max_conversations: Annotated[int, Meta(ge=1)] = 200_000
    """Conversations of which it is remembered where they are."""
