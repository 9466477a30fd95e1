"""Where the information stream is written."""

from typing import Annotated

import msgspec
from msgspec import Meta


class StreamFileConfig(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    path: str | None = None
    """Where the stream is written; nowhere if not set."""
    max_bytes: Annotated[int, Meta(ge=4096)] = 256 << 20
    """At this size the file is moved to `<path>.1`, over an older one, and begun anew."""
    max_pending: Annotated[int, Meta(ge=1)] = 100_000
    """Records waiting to be written; more are dropped."""
