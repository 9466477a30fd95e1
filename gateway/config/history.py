"""What is remembered of sessions, turns and decisions behind what memory holds."""

from typing import Annotated

import msgspec
from msgspec import Meta

from gateway.config.privacy import PRIVATE


class HistoryConfig(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """An embedded store of sessions, turns and decisions (docs/reference/history.md)."""

    path: Annotated[str, PRIVATE] | None = None
    """A directory of this gateway's own, made if it is not there; nothing is remembered if not set. Workers
    have `<path>.worker-N` each."""
    max_mb: Annotated[int, Meta(ge=32, le=10_000_000)] = 1024
    """Of the disk that it may take; a million turns take about 600. The oldest eighth goes first."""
    max_age_h: Annotated[float, Meta(gt=0, le=24 * 3660)] = 7 * 24
    """In hours; what is older goes, an eighth of that at a time."""
    max_pending: Annotated[int, Meta(ge=256, le=10_000_000)] = 50_000
    """Records, and turns, that wait to be written while the disk is slow or full; more are dropped."""
