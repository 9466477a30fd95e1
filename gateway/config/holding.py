"""How clients are held whose streamed answer has to wait."""

from typing import Annotated

import msgspec
from msgspec import Meta


class HoldingConfig(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    quiet_s: Annotated[float, Meta(gt=0, le=3600)] = 45.0
    """So long it hears nothing, in case a status is to come; then it gets status 200, and keep-alives."""
    period_s: Annotated[float, Meta(gt=0, le=3600)] = 15.0
    """How often."""
