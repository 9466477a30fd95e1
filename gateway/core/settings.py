"""The settings of the brain's own: how long, and how often."""

from typing import Annotated

import msgspec
from msgspec import Meta


class CoordinatorConfig(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    max_attempts: Annotated[int, Meta(ge=1, le=10)] = 3
    """Most attempts of a request before an answer begins. A resend on a fresh connection counts; the first
    one is always allowed."""
    max_wait_s: Annotated[float, Meta(gt=0, le=3600)] = 50.0
    """Longest wait of a turn; beyond it 503. Every tested client accepts 50 s of silence, not all accept
    60."""
    max_stream_wait_s: Annotated[float, Meta(gt=0, le=86400)] = 600.0
    """The same for streams, which have keep-alives."""
    no_replica_wait_s: Annotated[float, Meta(ge=0, le=3600)] = 10.0
    """Longest wait of a turn without any replica."""
    reject_unknown_ids: bool = False
    """Refuse ids of stored state from elsewhere: they may be another tenant's."""
