"""Where to look for what memory has lost."""

from typing import Annotated

import msgspec
from msgspec import Meta

from gateway.config.privacy import PRIVATE


class HistoryConfig(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The `turnpike history` that follows this gateway (docs/reference/history.md)."""

    url: Annotated[str, Meta(pattern=r"^https?://[^/?#]+/?$"), PRIVATE] | None = None
    """Its address, such as `http://127.0.0.1:8070`. The control plane passes questions about sessions and
    turns on to it; without one it answers from memory alone."""
    key_env: Annotated[str, PRIVATE] | None = None
    """The environment variable that holds its key."""
    timeout_s: Annotated[float, Meta(gt=0, le=60)] = 10.0
    """For one question; then memory answers."""
