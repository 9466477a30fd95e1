"""The store that several gateway processes share."""

from typing import Annotated

import msgspec
from msgspec import Meta

from gateway.config.privacy import PRIVATE


class SharedConfig(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The store that several gateways share (docs/several-gateways.md)."""

    url: Annotated[str, Meta(pattern=r"^(rediss?(\+cluster)?|unix|memory)://"), PRIVATE] | None = None
    """`redis://`, `rediss://` (TLS), `redis+cluster://`, `rediss+cluster://`, `unix:///PATH` or `memory://`;
    none if not set. An ACL user, and a password, may stand in it: `rediss://USER:PASSWORD@HOST:PORT`."""
    password_env: Annotated[str, PRIVATE] | None = None
    """The environment variable that holds the password of Redis; it goes before one in the URL."""
    deadline_ms: Annotated[int, Meta(ge=1, le=1000)] = 20
    """No call to the store takes longer; one that would has failed."""
