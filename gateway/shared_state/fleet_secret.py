"""One secret that all gateways of a store know: by it they hash alike, name anonymous tenants alike, and know
one another.

A store that comes back empty gets it again from those that run. So who starts and finds none waits until they
had the time to.
"""

import asyncio
import hashlib
import math
import secrets
from collections.abc import Callable, Mapping
from typing import Final

from gateway.config.shared import SharedConfig
from gateway.shared_state.breaker import LONGEST_WAIT_S
from gateway.shared_state.opening import open_shared
from gateway.shared_state.protocol import VERSION, Store, StoreUnavailable

_KEY: Final = b"secret" + VERSION
"""Of each version its own: what another one wrote counts as absent, and two that put theirs in one place
would take it from one another for ever."""
_BYTES: Final = 32
_TTL_S: Final = 30 * 86_400.0
_PATIENCE_S, _BETWEEN_S = 5.0, 0.1
SETTLES_S: Final = LONGEST_WAIT_S + 1.0
"""So long after a store came back all gateways that run have reached it."""


async def fleet_secret(config: SharedConfig, environ: Mapping[str, str], clock: Callable[[], float]) -> bytes:
    """Raises StoreUnavailable if the store does not answer for some seconds."""
    store = await open_shared(config, environ)
    gives_up_s, empty_s = clock() + _PATIENCE_S, math.inf
    try:
        while True:
            try:
                if (there := await standing(store)) is not None:
                    return there
                empty_s = min(empty_s, clock())
                if clock() >= empty_s + SETTLES_S:
                    return await keep(store, draw())
            except StoreUnavailable:
                if clock() >= gives_up_s:
                    raise
            await asyncio.sleep(_BETWEEN_S)
    finally:
        await store.aclose()


def draw() -> bytes:
    return secrets.token_bytes(_BYTES)


async def standing(store: Store) -> bytes | None:
    (there,) = await store.find([_KEY])
    return there


async def keep(store: Store, secret: bytes) -> bytes:
    """Puts the secret there where it is missing, and renews it; returns the one that is there."""
    return await store.claim(_KEY, secret, _TTL_S)


def derived(secret: bytes, purpose: str) -> int:
    """64 bits for one purpose, from which the secret cannot be told."""
    return int.from_bytes(hashlib.blake2s(purpose.encode(), key=secret, digest_size=8).digest(), "big")
