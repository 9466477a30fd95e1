"""What the gateway adds to requests, for backends known to understand it."""

from typing import Annotated

import msgspec
from msgspec import Meta

from gateway.config.privacy import PRIVATE


class HintsConfig(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    session: bool = True
    """Tell a backend that reads it which session a turn belongs to (`X-Session-ID`)."""
    turnpike: bool = True
    """Tell an engine with the plugin `turnpike-vllm` what is expected of a session
    (docs/design/engine.md)."""
    kv_hints: bool = False
    """Send vLLM 0.31 and newer, with that plugin or without, the same in vLLM's own envelope, too. No release
    follows it yet (docs/operate/engine-plugin.md)."""
    cache_salt_secret: Annotated[str, Meta(min_length=16), PRIVATE] | None = None
    """If set, tenants do not share cached prefixes: each gets a `cache_salt` made from this secret and its
    name (CVE-2025-46570: cache hits of other tenants can be timed). Prefix reuse within a tenant stays. Each
    backend gets it, and no body passes to which it cannot be added."""
