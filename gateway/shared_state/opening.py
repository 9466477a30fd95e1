"""Opens the store that a URL names."""

from collections.abc import Callable, Mapping
from typing import Final
from urllib.parse import urlsplit

from gateway.config.shared import SharedConfig
from gateway.shared_state.local_store import LocalStore
from gateway.shared_state.memory import MemoryStore
from gateway.shared_state.protocol import Store
from gateway.shared_state.remote import DEADLINE_S, RemoteStore

REDIS_SCHEMES: Final = ("redis", "rediss", "redis+cluster", "rediss+cluster")


async def open_shared(config: SharedConfig, environ: Mapping[str, str], clock: Callable[[], float]) -> Store:
    """The store that the settings name, as `open_store` opens it."""
    assert config.url is not None
    password = environ.get(config.password_env, "") if config.password_env is not None else None
    return await open_store(config.url, clock, password=password, deadline_s=config.deadline_ms / 1e3)


async def open_store(
    url: str, clock: Callable[[], float], *, password: str | None = None, deadline_s: float = DEADLINE_S
) -> Store:
    """The store at `redis://`, `rediss://` (TLS), `redis+cluster://`, `rediss+cluster://`, `unix:///PATH` or
    `memory://`. Raises ValueError for any other URL.

    It returns within about a second; a store that is not there then is probed until it is. `clock`, seconds
    that never go back, is that of a store in memory. `password` is that of Redis.
    """
    parts = urlsplit(url)
    store: RemoteStore
    if parts.scheme == "memory":
        return MemoryStore(clock)
    if parts.scheme == "unix" and parts.path and not parts.netloc:
        store = LocalStore(parts.path, deadline_s=deadline_s)
    elif parts.scheme in REDIS_SCHEMES and parts.hostname:
        from gateway.shared_state.redis_store import RedisStore  # noqa: PLC0415 - its library takes 0.1 s

        store = RedisStore(url, password=password, deadline_s=deadline_s)
    else:
        raise ValueError("no store's URL: redis, rediss, redis+cluster, rediss+cluster, unix or memory")
    await store.open()
    return store
