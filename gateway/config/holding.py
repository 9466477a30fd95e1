"""How clients are held whose streamed answer has to wait."""

from typing import Annotated

import msgspec
from msgspec import Meta


class HoldingConfig(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    quiet_s: Annotated[float, Meta(gt=0, le=3600)] = 45.0
    """Seconds before the first keep-alive; until then an HTTP error status is still possible."""
    period_s: Annotated[float, Meta(gt=0, le=3600)] = 15.0
    """Seconds between keep-alives."""
