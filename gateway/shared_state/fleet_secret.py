"""The secret of a fleet: only its gateways have it, not the store.

Gateways authenticate one another by keys derived from it. What a gateway writes to the store, or sends to
another one, is sealed: values of a writer without the secret are ignored. Keys of the store are hashed with
it.
"""

import hmac
from collections.abc import Mapping, Sequence
from hashlib import blake2s
from pathlib import Path
from typing import Final

from gateway.config.load import ConfigError
from gateway.config.shared import SharedConfig
from gateway.shared_state.protocol import Entry, OnReplaced, Store

# The variable in which workers get the secret that their parent drew, where the settings name none.
WORKERS_SECRET: Final = "TURNPIKE_WORKERS_SECRET"  # noqa: S105 - of a variable, the name
_LEAST_CHARS: Final = 32
SEAL_BYTES: Final = 16


def fleet_secret(config: SharedConfig, environ: Mapping[str, str]) -> bytes:
    """Blocks. Raises ConfigError if there is none, or none that is hard to guess."""
    if config.secret_file is not None:
        setting = f"shared.secret_file {config.secret_file}"
        try:
            secret = Path(config.secret_file).read_bytes().strip()
        except OSError as error:
            raise ConfigError(f"{setting}: {error.strerror}") from None
    else:
        setting = f"environment variable {config.secret_env or WORKERS_SECRET}"
        secret = environ.get(config.secret_env or WORKERS_SECRET, "").strip().encode()
        if not secret and config.secret_env is None:
            raise ConfigError(
                "shared.url: gateways that share a store need shared.secret_file or shared.secret_env"
            )
    if len(secret) < _LEAST_CHARS:
        raise ConfigError(f"{setting}: the fleet's secret needs {_LEAST_CHARS} characters or more")
    return secret


def derived(secret: bytes, purpose: str) -> bytes:
    """32 bytes for one purpose, which do not reveal the secret."""
    return hmac.digest(secret, purpose.encode(), "sha256")


class Seal:
    """Proves that who wrote a value has the secret, and under which name it was written."""

    def __init__(self, secret: bytes, purpose: str) -> None:
        self._key = derived(secret, purpose)

    def put(self, name: bytes, value: bytes) -> bytes:
        return self.of(name, value) + value

    def take(self, name: bytes, sealed: bytes) -> bytes | None:
        """The value; None if nobody of the fleet wrote it there."""
        seal, value = sealed[:SEAL_BYTES], sealed[SEAL_BYTES:]
        return value if hmac.compare_digest(seal, self.of(name, value)) else None

    def of(self, name: bytes, value: bytes) -> bytes:
        return blake2s(b"%d:%s%s" % (len(name), name, value), key=self._key, digest_size=SEAL_BYTES).digest()


class _Sealed(Entry, frozen=True, kw_only=True):
    plain: Entry


class SealedStore:
    """A store of whose values those count that a gateway of the fleet wrote, and whose keys say nothing. Rows
    of numbers are added up in the store, so they are as its writers leave them; gauges are sealed by who says
    them."""

    def __init__(self, store: Store, secret: bytes) -> None:
        self.on_replaced: list[OnReplaced] = []
        self._store = store
        self._seal = Seal(secret, "entries")
        self._key = derived(secret, "keys")
        store.on_replaced.append(self._replaced)
        self.exchange, self.flush, self.aclose = store.exchange, store.flush, store.aclose
        self.counters = store.counters

    @property
    def is_up(self) -> bool:
        return self._store.is_up

    async def find(self, keys: Sequence[bytes]) -> list[bytes | None]:
        found = await self._store.find([self.name(key) for key in keys])
        return [
            self._seal.take(key, sealed) if sealed is not None else None
            for key, sealed in zip(keys, found, strict=True)
        ]

    async def claim(self, key: bytes, value: bytes, ttl_s: float) -> bytes:
        ours = self._sealed(Entry(key, value, ttl_s))
        assert ours.value is not None
        there = self._seal.take(key, await self._store.claim(ours.key, ours.value, ttl_s))
        if there is None:  # nobody's of the fleet
            self._store.publish([ours])
            return value
        return there

    def publish(self, entries: Sequence[Entry]) -> None:
        self._store.publish([self._sealed(entry) for entry in entries])

    async def add(
        self, key: bytes, more: Sequence[float], least: Sequence[float], ttl_s: float
    ) -> list[float]:
        return await self._store.add(self.name(key), more, least, ttl_s)

    def name(self, key: bytes) -> bytes:
        return blake2s(key, key=self._key, digest_size=SEAL_BYTES).digest()

    def _sealed(self, entry: Entry) -> _Sealed:
        value = self._seal.put(entry.key, entry.value) if entry.value is not None else None
        return _Sealed(self.name(entry.key), value, entry.ttl_s, entry.is_watched, plain=entry)

    def _replaced(self, entry: Entry, there: bytes) -> None:
        assert isinstance(entry, _Sealed)
        value = self._seal.take(entry.plain.key, there)
        if value is not None and value != entry.plain.value:
            for notify in self.on_replaced:
                notify(entry.plain, value)
