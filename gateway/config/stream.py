"""Where the information stream goes."""

from typing import Annotated

import msgspec
from msgspec import Meta

from gateway.config.privacy import PRIVATE


class StreamFileConfig(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    path: Annotated[str, PRIVATE] | None = None
    """Where the stream is written; nowhere if not set. Workers have `<path>.worker-N` each."""
    max_bytes: Annotated[int, Meta(ge=4096)] = 256 << 20
    """At this size the file is moved to `<path>.1`, over an older one, and begun anew."""
    max_pending: Annotated[int, Meta(ge=1)] = 100_000
    """Records waiting to be written; more are dropped."""
    keep_files: Annotated[int, Meta(ge=1, le=1000)] = 1
    """Older files that are kept: `<path>.1` is the newest of them."""
    ring_records: Annotated[int, Meta(ge=0, le=10_000_000)] = 16_384
    """The newest records, kept in memory for `/turnpike/events`, the dashboard and `turnpike explain`; about
    300 bytes each. 0: none, and these have nothing to show."""
    ring_bytes: Annotated[int, Meta(ge=1 << 16)] = 32 << 20
    """Of memory that they may take; the oldest go first."""
