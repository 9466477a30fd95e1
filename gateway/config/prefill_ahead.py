"""What is kept in memory to compute prompts ahead of their requests."""

from typing import Annotated

import msgspec
from msgspec import Meta


class PrefillAheadConfig(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    enabled: bool = False
    """While tools run, compute what is known of the next prompt where the next turn will run
    (docs/overlap.md). Answers are kept for that, beside requests."""
    kept_bytes: Annotated[int, Meta(ge=0)] = 256 << 20
    """Of requests whose conversations may go on, and of their answers; also of those kept for work stealing
    (`routing.stealing`). The oldest go first."""
