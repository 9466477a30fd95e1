"""The base of all records of the information stream (`records.py`)."""

import msgspec


class TimedRecord(msgspec.Struct, frozen=True, kw_only=True, tag_field="type", gc=False):
    at_s: float
    """On the driver's clock (the server's is Unix time)."""
