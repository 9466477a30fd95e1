"""What a host on which tools run says about itself, in the words of decisions."""

from typing import Annotated

import msgspec
from msgspec import Meta


class HostSignals(msgspec.Struct, frozen=True, kw_only=True):
    """One report of one host: means since the one before."""

    cores: Annotated[float, Meta(gt=0, le=1_000_000)]
    """That its processes may use."""
    runnable: Annotated[float, Meta(ge=0, le=1_000_000)]
    """Processes that ran, or would have if there had been a core."""
