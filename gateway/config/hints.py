"""What the gateway adds to requests, for backends known to understand it."""

from typing import Annotated

import msgspec
from msgspec import Meta

from gateway.config.privacy import PRIVATE


class HintsConfig(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    session: bool = True
    """Send the session of a turn to backends that read it (`X-Session-ID`)."""
    turnpike: bool = True
    """Send hints to engines with the plugin `turnpike-vllm` (docs/design/engine.md)."""
    kv_hints: bool = False
    """Send the same to vLLM 0.31 and newer in vLLM's own envelope, too. No release follows it yet
    (docs/operate/engine-plugin.md)."""
    cache_salt_secret: Annotated[str, Meta(min_length=16), PRIVATE] | None = None
    """If set, tenants do not share cached prefixes: each has a `cache_salt` from this secret and its name
    (CVE-2025-46570: tenants can time each other's cache hits). A body that cannot carry it is
    refused."""
