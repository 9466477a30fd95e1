"""What several gateways share, and how they reach one another."""

from typing import Annotated

import msgspec
from msgspec import Meta

from gateway.config.privacy import PRIVATE
from gateway.config.server import Listen


class SharedConfig(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The store that several gateways share (docs/design/several-gateways.md)."""

    url: Annotated[str, Meta(pattern=r"^rediss?(\+cluster)?://"), PRIVATE] | None = None
    """`redis://`, `rediss://` (TLS), `redis+cluster://` or `rediss+cluster://`; none if not set. An ACL user,
    and a password, may stand in it: `rediss://USER:PASSWORD@HOST:PORT`."""
    password_env: Annotated[str, PRIVATE] | None = None
    """The environment variable that holds the password of Redis; it goes before one in the URL."""
    deadline_ms: Annotated[int, Meta(ge=1, le=1000)] = 20
    """No call to the store takes longer; one that would has failed."""
    max_tenant_mb: Annotated[int, Meta(ge=1, le=10_000_000)] = 1024
    """What the store may hold of one tenant, from each gateway; for a while up to twice as much. Turns of one
    that has more are not shared: they are recognised only by the gateway that had them."""
    peer_listen: Listen = "127.0.0.1:0"
    """Where the other gateways pass requests on to this one, HOST:PORT; port 0 takes a free one. Only
    gateways of the same store are let in, but nothing is encrypted there. Of `server.workers`, the first has
    this port, the next the one above it, and so on, in `peer_url` too."""
    peer_url: Annotated[str, Meta(pattern=r"^http://[^/]+:\d{1,5}\Z"), PRIVATE] | None = None
    """How the others reach that; by default its address."""
