"""The settings of the brain's own: how long, and how often."""

from typing import Annotated

import msgspec
from msgspec import Meta


class CoordinatorConfig(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    max_attempts: Annotated[int, Meta(ge=1, le=10)] = 3
    """Times that one request is sent, as long as no replica has begun to answer; also when a replica closed a
    kept connection and gets it on a fresh one, which the first attempt may do in any case."""
    max_wait_s: Annotated[float, Meta(gt=0, le=3600)] = 50.0
    """A turn that waited this long is refused. Every client tried bears 50 s of silence, not all bear 60."""
    max_stream_wait_s: Annotated[float, Meta(gt=0, le=86400)] = 600.0
    """The same for streams, whose clients get keep-alives meanwhile."""
    no_replica_wait_s: Annotated[float, Meta(ge=0, le=3600)] = 10.0
    """How long a turn is kept for which no replica is there any more, in case one comes back."""
    reject_unknown_ids: bool = False
    """Refuse ids of stored state that we did not see being minted: they may be another tenant's."""
