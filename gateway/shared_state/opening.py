"""Opens the store that a URL names."""

from collections.abc import Mapping
from typing import Final
from urllib.parse import urlsplit

from gateway.config.shared import SharedConfig
from gateway.shared_state.fleet_secret import SealedStore
from gateway.shared_state.protocol import Store
from gateway.shared_state.remote import DEADLINE_S

REDIS_SCHEMES: Final = ("redis", "rediss", "redis+cluster", "rediss+cluster")


async def open_shared(config: SharedConfig, environ: Mapping[str, str], secret: bytes) -> Store:
    """The store that the settings name, as `open_store` opens it, for gateways that have the secret."""
    assert config.url is not None
    password = environ.get(config.password_env, "") if config.password_env is not None else None
    store = await open_store(config.url, password=password, deadline_s=config.deadline_ms / 1e3)
    return SealedStore(store, secret)


async def open_store(url: str, *, password: str | None = None, deadline_s: float = DEADLINE_S) -> Store:
    """The store at `redis://`, `rediss://` (TLS), `redis+cluster://` or `rediss+cluster://`. Raises
    ValueError for any other URL.

    It returns within about a second; a store that is not there then is probed until it is.
    """
    parts = urlsplit(url)
    if parts.scheme not in REDIS_SCHEMES or not parts.hostname:
        raise ValueError("no store's URL: redis, rediss, redis+cluster or rediss+cluster")
    from gateway.shared_state.redis_store import RedisStore  # noqa: PLC0415 - its library takes 0.1 s

    store = RedisStore(url, password=password, deadline_s=deadline_s)
    await store.open()
    return store
