"""What every record of the information stream (`records.py`) begins with."""

import msgspec


class TimedRecord(msgspec.Struct, frozen=True, kw_only=True, tag_field="type", gc=False):
    at_s: float
    """When, on the driver's clock (the server's is Unix time)."""
