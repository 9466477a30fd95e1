"""What to do. Commands are imperatives; the driver carries them out in order."""

from typing import final

import msgspec

from gateway.domain.decision import Placement, Refusal, SessionRef
from gateway.domain.ids import RequestId
from gateway.domain.records import Record


@final
class Dispatch(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """Send the request to this replica now."""

    request: RequestId
    placement: Placement
    session: SessionRef | None
    waited_s: float
    attempt: int
    """1 for the first replica tried."""


@final
class Refuse(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """Answer the request with this refusal; nothing more will come for it."""

    request: RequestId
    refusal: Refusal
    session: SessionRef | None
    waited_s: float


Command = Dispatch | Refuse | Record
"""A record is to be appended to the information stream."""
