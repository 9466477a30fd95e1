"""Tenants: whose keys are accepted, and what each may do."""

from datetime import datetime
from typing import Annotated, Literal

import msgspec
from msgspec import Meta

from gateway.admission.tenants.quotas import Quota
from gateway.config.privacy import PRIVATE, RECORDED

# What `turnpike hash-key` prints.
KeyHash = Annotated[str, Meta(pattern=r"^sha256:[0-9a-f]{64}\Z"), PRIVATE]

# `engine-control`: may call the engine's own control paths (sleep, reset caches, load adapters, …).
# `scheduling`: what it says of its sessions' class, deadline and future counts.
# `kv-transfer`: may tell engines where KV caches are, and so which hosts to connect to.
Trust = Literal["engine-control", "scheduling", "kv-transfer"]


class TenantConfig(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    name: Annotated[str, Meta(pattern=r"^[a-z0-9][a-z0-9_.-]{0,63}\Z"), RECORDED]
    """Appears in records and metrics; lower-case letters, digits, dots, dashes, underscores."""
    key_hashes: tuple[KeyHash, ...] = ()
    """Several hashes allow key rotation. None for a tenant with tokens (`[jwt]`) or keys of
    `server.keys_path` alone."""
    permissions: tuple[Trust, ...] = ()
    """Rights beyond inference. `engine-control`: the engine's control paths. `scheduling`: its claims on
    class and retention count. `kv-transfer`: fields such as `kv_transfer_params`, which name hosts and blocks
    to engines."""
    content: bool = True
    """Spans (`otel.content`) and the dashboard (`server.first_words`) may contain its texts."""
    quota: Quota = Quota()
    """What it may have at most, and how much of what is scarce is its share."""

    @property
    def trusts_scheduling_claims(self) -> bool:
        return "scheduling" in self.permissions


class StoredKey(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, forbid_unknown_fields=True):
    """A key of `server.keys_path`."""

    name: str
    tenant: str
    hash: KeyHash
    created: Annotated[datetime, Meta(tz=True)]
    expires: Annotated[datetime, Meta(tz=True)] | None = None

    def has_expired(self, now: float) -> bool:
        return self.expires is not None and self.expires.timestamp() <= now
