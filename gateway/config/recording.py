"""Where what happens is recorded, to be replayed."""

from typing import Annotated

import msgspec
from msgspec import Meta

from gateway.config.privacy import PRIVATE


class RecordingConfig(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    path: Annotated[str, PRIVATE] | None = None
    """Where events and commands are recorded, texts as keyed hashes, in a file for its owner alone; nowhere
    if not set. Workers have `<path>.worker-N` each."""
    max_bytes: Annotated[int, Meta(ge=4096)] = 1 << 30
    """At this size the recording ends."""
    max_pending: Annotated[int, Meta(ge=1)] = 20_000
    """Entries waiting to be written; with more, the recording ends: one with a hole cannot be replayed."""
