"""What a client may send, how slowly, and the keep-alives while its response waits."""

from typing import Annotated

import msgspec
from msgspec import Meta

_Bytes = Annotated[int, Meta(ge=1)]
_Seconds = Annotated[float, Meta(gt=0)]


class HttpLimits(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    max_header_bytes: _Bytes = 64 << 10
    """Request line and header fields together, plus 32 bytes a field; beyond it 431."""
    max_body_bytes: _Bytes = 64 << 20
    """One body; beyond it 413."""
    max_buffered_bytes: _Bytes | None = None
    """Bodies of all requests before their response; beyond it 503. Kept parts of responses without streaming
    count, too. A tenant gets at most half, and less beside others. By default a quarter of the container's
    memory limit, shared by `workers`, at most 2 GiB."""
    max_connections: Annotated[int, Meta(ge=1)] = 16384
    """Open client connections; beyond it a new one gets 503 or is closed."""
    head_timeout_s: _Seconds = 30.0
    """From a request's first byte to the end of its headers; beyond it 408."""
    body_stall_s: _Seconds = 60.0
    """Silence in the middle of a body; beyond it 408."""
    request_timeout_s: _Seconds = 600.0
    """From a request's first byte to its last; beyond it 408."""
    keep_alive_s: _Seconds = 300.0
    """An idle connection is closed after this long."""
    tcp_keepalive_s: Annotated[int, Meta(ge=4, le=7200)] = 60
    """Silence before TCP keep-alive probes, on connections of clients and to replicas. A lost peer is
    detected after twice this time."""
    client_stall_s: _Seconds = 120.0
    """A client that does not read its response for this time is cut off."""
    drain_rejected_body_s: _Seconds = 5.0
    """After a refusal during an upload: time to read and discard the rest, so that the client sees the answer
    instead of a reset."""


class KeepAliveConfig(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    first_keepalive_s: Annotated[float, Meta(gt=0, le=3600)] = 45.0
    """Seconds before the first keep-alive; until then an HTTP error status is still possible."""
    period_s: Annotated[float, Meta(gt=0, le=3600)] = 15.0
    """Seconds between keep-alives."""
