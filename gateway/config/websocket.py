"""Responses over WebSocket. Whether a backend speaks it is found out."""

from typing import Annotated

import msgspec
from msgspec import Meta


class WebSocketConfig(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    max_per_tenant: Annotated[int, Meta(ge=0)] = 1024
    """Open at once; beyond it, as with 0, a client is told to ask by HTTP (426)."""
    idle_s: Annotated[float, Meta(gt=0)] = 3600.0
    """One on which no response runs, and nothing was asked for so long, is closed. Its backend may do so
    sooner: OpenAI's end after an hour."""
