"""What can be set about placement."""

from typing import Annotated

import msgspec
from msgspec import Meta

from gateway.routing.stealing import StealingConfig


class RoutingConfig(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    stealing: StealingConfig = StealingConfig()
    max_conversations: Annotated[int, Meta(ge=1)] = 200_000
    """Conversations of which it is remembered where they are."""
