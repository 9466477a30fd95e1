"""Who may: from the key a request carries to the tenant it belongs to, and what that tenant may do.

Keys are stored as SHA-256 hashes: an API key has enough entropy of its own to need no salt or slow hash,
and the lookup of a hash gives nothing away by its timing.
"""

import hashlib
import secrets
from ipaddress import AddressValueError, IPv6Address
from typing import Final

import msgspec
from msgspec.structs import replace

from gateway.config.tenants import StoredKey, TenantConfig
from gateway.domain.ids import TenantId
from gateway.server.auth.jwt_tokens import JwtTokens, looks_like_jwt
from gateway.server.runtime.clock import wall_clock
from gateway.wire.headers import RawHeaders

_HASH_PREFIX: Final = "sha256:"
_SHOWN: Final = len(_HASH_PREFIX) + 8


class Tenant(msgspec.Struct, frozen=True):
    id: TenantId
    may_control_engines: bool
    trusts_scheduling_claims: bool = False
    """Its claims about the order of its requests count."""
    may_move_kv: bool = False
    """Its requests may name for engines where KV caches are."""
    has_content: bool = True
    """Its contents may be in traces, where anybody's may."""
    key: str = ""
    """The name of the key by which it is known; of one in the settings the beginning of its hash, which finds
    it there. Empty where there is none."""
    may_expire: bool = False
    """It is known by a token, or by a key of the file of keys: each connection proves that anew."""


def hash_key(key: str) -> str:
    return _HASH_PREFIX + hashlib.sha256(key.encode(errors="surrogateescape")).hexdigest()


class ClientKeys:
    def __init__(
        self,
        configs: tuple[TenantConfig, ...],
        *,
        salt: bytes | None = None,
        tokens: JwtTokens | None = None,
    ) -> None:
        """Without any tenant configured, everybody may, each client address as a tenant of its own;
        of IPv6 each /64. `salt`: gateways that share it give them the same names. `tokens`: verifies them;
        None where keys alone count."""
        self.tokens = tokens
        self._stored: dict[str, StoredKey] = {}
        # Of the file of keys.
        self.keys_fault = ""
        self.apply_config(configs)
        self._anonymous: dict[str, Tenant] = {}
        self._salt = salt or secrets.token_bytes(16)

    def apply_config(self, configs: tuple[TenantConfig, ...]) -> None:
        by_hash, by_name = dict[str, Tenant](), dict[str, Tenant]()
        for config in configs:
            controls, moves_kv = "engine-control" in config.permissions, "kv-transfer" in config.permissions
            tenant = Tenant(
                TenantId(config.name), controls, config.trusts_scheduling_claims, moves_kv, config.content
            )
            by_name[config.name] = tenant
            by_hash.update({key: replace(tenant, key=key[:_SHOWN]) for key in config.key_hashes})
        self._by_hash, self._by_name = by_hash, by_name

    def set_keys(self, keys: tuple[StoredKey, ...]) -> None:
        """In place of those before. A key of a tenant that there is not is nobody's."""
        self._stored = {each.hash: each for each in keys}

    def why_refused(self, headers: RawHeaders) -> str:
        keys = _keys_of(headers)
        found = [self._stored.get(hash_key(key)) for key in keys] if self._stored else []
        if any(each is not None and each.has_expired(wall_clock()) for each in found):
            return "This API key has expired; ask whoever gave it to you for a new one."
        sent = ("none was sent", "the one that was sent is not known here", "several that differ were sent")
        which = sent[min(2, len({key for key in keys if key}))]
        return f"A valid API key is required (Authorization: Bearer KEY, or x-api-key): {which}."

    @property
    def are_keys_required(self) -> bool:
        return bool(self._by_name)

    @property
    def has_no_key(self) -> bool:
        counts = any(not each.has_expired(wall_clock()) for each in self._stored.values())
        return self.are_keys_required and not (self._by_hash or self.tokens or counts)

    def authenticate(self, headers: RawHeaders, peer: str) -> Tenant | None:
        """The tenant of a request; None if it carries no valid key where one is required.

        All keys that a request carries must be the same tenant's, so that nobody can be billed for another.
        """
        if not self._by_name:
            return self._anonymous_tenant(peer)
        found = [self._whose(key) for key in _keys_of(headers)]
        ids = {tenant.id if tenant is not None else None for tenant in found}
        return found[0] if len(ids) == 1 else None

    def _whose(self, key: str) -> Tenant | None:
        key_hash = hash_key(key)
        if (tenant := self._by_hash.get(key_hash)) is not None:
            return tenant
        stored = self._stored.get(key_hash)
        if stored is not None and stored.tenant in self._by_name and not stored.has_expired(wall_clock()):
            return replace(self._by_name[stored.tenant], key=stored.name, may_expire=True)
        if self.tokens is not None and looks_like_jwt(key):
            name = self.tokens.tenant_of(key, self._by_name)
            return replace(self._by_name[name], may_expire=True) if name is not None else None
        return None

    def _anonymous_tenant(self, peer: str) -> Tenant:
        tenant = self._anonymous.get(peer)
        if tenant is None:
            if len(self._anonymous) >= _MAX_ANONYMOUS:
                self._anonymous.clear()  # names are a function of the address, so nothing is lost
            digest = hashlib.blake2s(_network_of(peer).encode(), key=self._salt, digest_size=6).hexdigest()
            tenant = self._anonymous[peer] = Tenant(TenantId(f"anonymous-{digest}"), False, True)
        return tenant


def _network_of(peer: str) -> str:
    """One tenant for an IPv6 /64: whoever has one address of it has them all."""
    if ":" not in peer:
        return peer
    try:
        address = IPv6Address(peer)
    except AddressValueError:
        return peer
    if address.ipv4_mapped is not None:
        return str(address.ipv4_mapped)
    return str(IPv6Address(int(address) >> 64 << 64))


_MAX_ANONYMOUS: Final = 10_000
CREDENTIAL_HEADERS: Final = frozenset((b"authorization", b"x-api-key", b"api-key"))


def _keys_of(headers: RawHeaders) -> list[str]:
    keys = []
    for name, value in headers:
        lower = name.lower()
        if lower == b"authorization":
            scheme, _, key = value.decode(errors="surrogateescape").partition(" ")
            keys.append(key.strip() if scheme.lower() == "bearer" else "")
        elif lower in CREDENTIAL_HEADERS:
            keys.append(value.decode(errors="surrogateescape").strip())
    return keys
