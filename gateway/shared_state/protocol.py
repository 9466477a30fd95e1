"""What a shared store does, whatever it is made of. Keys and values are bytes that mean nothing here.

Invariants: a call never waits longer than the store's deadline; whatever is stored lapses by itself, so that
a store stays bounded without any gateway; each step is atomic and touches one key; times are those of the
store's own clock.
"""

from collections.abc import Callable, Sequence
from typing import Final, Protocol

import msgspec

# Of how values are written, where they outlive those who wrote them.
VERSION: Final = b"\x01"
# Of one value, or gauges; also of one key.
MAX_VALUE_BYTES: Final = 1 << 18


class StoreUnavailable(Exception):  # noqa: N818 - what the store is
    """The store did not answer in time, refused, or its breaker is open.

    A step that failed may have been done all the same.
    """


class Entry(msgspec.Struct, frozen=True):
    """What `publish` puts under a key. The value None deletes."""

    key: bytes
    value: bytes | None
    ttl_s: float
    is_watched: bool = False
    """If it replaces another value, `Store.on_replaced` is called."""


# Called with a watched entry and the value that it replaced, which the same step read. So of two publishers
# under one key, the later one learns of the earlier.
OnReplaced = Callable[[Entry, bytes], None]


class Counters(msgspec.Struct):
    """Since the store was opened."""

    calls: int = 0
    """Awaited calls and batches of writes, those that failed at once included."""
    failures: int = 0
    """Calls that broke or were refused by the store."""
    timeouts: int = 0
    """Calls that met their deadline."""
    not_tried: int = 0
    """Calls that failed at once because the breaker was open."""
    writes: int = 0
    """Writes that were taken over to be written behind."""
    dropped_writes: int = 0
    """Of those, the ones that did not fit, lapsed while they waited, or failed."""


class Store(Protocol):
    """Every method that is awaited raises `StoreUnavailable` within the deadline, and nothing else, but
    for arguments that make no sense (`ValueError`)."""

    on_replaced: "list[OnReplaced]"

    @property
    def counters(self) -> Counters: ...

    @property
    def is_up(self) -> bool:
        """False: the breaker is open, calls fail at once, and the store is probed until it answers."""

    async def find(self, keys: Sequence[bytes]) -> list[bytes | None]:
        """The values under the keys, in their order; None where there is none. One round trip (to each node
        of a cluster)."""

    async def claim(self, key: bytes, value: bytes, ttl_s: float) -> bytes:
        """The value that stands there afterwards: ours if there was none. The TTL of ours is renewed."""

    def publish(self, entries: Sequence[Entry]) -> None:
        """Writes behind: soon, in order, in batches. What does not fit is dropped and counted."""

    async def exchange(self, origin: str, gauges: bytes, ttl_s: float) -> dict[str, bytes]:
        """Puts this origin's gauges, and returns those of all others that have not lapsed."""

    async def add(
        self, key: bytes, more: Sequence[float], least: Sequence[float], ttl_s: float
    ) -> list[float]:
        """Adds to a row of numbers, and returns what stands there afterwards. Where there is none, it begins
        with `least`. A call that failed may have added."""

    async def flush(self) -> None:
        """Returns once nothing waits to be written behind; at once while the store is down."""

    async def aclose(self) -> None:
        """Flushes and closes. What is called afterwards fails, or is dropped."""


def checked_size(key: bytes, value: bytes | None, ttl_s: float) -> int:
    """Bytes of key and value. Raises ValueError for what no store takes."""
    size, of_value = len(key), len(value) if value is not None else 0
    if size > MAX_VALUE_BYTES or of_value > MAX_VALUE_BYTES:
        raise ValueError(f"{max(size, of_value)} bytes are more than a store takes ({MAX_VALUE_BYTES})")
    if not 0.001 <= ttl_s <= 366 * 86400:
        raise ValueError(f"a TTL of {ttl_s} s: it is from a millisecond to a year")
    return size + of_value
