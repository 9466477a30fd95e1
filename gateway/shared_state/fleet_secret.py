"""One secret that all gateways of a store know: by it they hash alike, name anonymous tenants alike, and know
one another."""

import asyncio
import contextlib
import hashlib
import secrets
from collections.abc import Callable, Mapping
from typing import Final

from gateway.config.shared import SharedConfig
from gateway.shared_state.opening import open_shared
from gateway.shared_state.protocol import StoreUnavailable

_KEY: Final = b"secret"
_BYTES: Final = 32
_TTL_S: Final = 30 * 86_400.0
"""Each start renews it; a gateway that runs for longer alone shares it with nobody any more."""
_TRIES, _BETWEEN_S = 50, 0.1


async def fleet_secret(config: SharedConfig, environ: Mapping[str, str], clock: Callable[[], float]) -> bytes:
    """Raises StoreUnavailable if the store does not answer for some seconds."""
    store = await open_shared(config, environ, clock)
    try:
        for _ in range(_TRIES):
            with contextlib.suppress(StoreUnavailable):
                return await store.claim(_KEY, secrets.token_bytes(_BYTES), _TTL_S)
            await asyncio.sleep(_BETWEEN_S)
        return await store.claim(_KEY, secrets.token_bytes(_BYTES), _TTL_S)
    finally:
        await store.aclose()


def derived(secret: bytes, purpose: str) -> int:
    """64 bits for one purpose, from which the secret cannot be told."""
    return int.from_bytes(hashlib.blake2s(purpose.encode(), key=secret, digest_size=8).digest(), "big")
