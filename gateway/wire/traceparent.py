"""Which span of which trace a request belongs to, by its `traceparent`.

Source: W3C Trace Context, level 1.
"""

import re
from typing import Final, NamedTuple

_TRACEPARENT: Final = re.compile(r"([0-9a-f]{2})-([0-9a-f]{32})-([0-9a-f]{16})-([0-9a-f]{2})(-.*)?\Z")


class Context(NamedTuple):
    """A span somewhere else."""

    trace_id: bytes
    span_id: bytes
    is_sampled: bool


def read_traceparent(value: str) -> Context | None:
    """None for what is not valid, which is as good as none."""
    found = _TRACEPARENT.match(value)
    if found is None:
        return None
    version, trace, span, flags, rest = found.groups()
    if version == "ff" or (version == "00" and rest) or not int(trace, 16) or not int(span, 16):
        return None
    return Context(bytes.fromhex(trace), bytes.fromhex(span), bool(int(flags, 16) & 1))
