"""What a shared store does, whatever it is made of. Keys and values are bytes that mean nothing here.

Invariants: a call never waits longer than the store's deadline; whatever is stored lapses by itself, so that
a store stays bounded without any gateway; each step is atomic and touches one key; times are those of the
store's own clock.
"""

import math
import re
from collections.abc import Sequence
from typing import Final, Protocol

import msgspec

MAX_VALUE_BYTES: Final = 1 << 18
"""Of one value, gauges or payload; also of one key."""
STREAM_LENGTH: Final = 10_000
"""Payloads that a stream holds; the oldest go first."""
STREAM_TTL_S: Final = 300.0
"""After its last payload a stream lapses."""
READ_LENGTH: Final = 1_000
"""Payloads that one `read` returns at most."""


class StoreUnavailable(Exception):  # noqa: N818 - what the store is
    """The store did not answer in time, refused, or is not asked while its breaker is open.

    A step that failed may have been done all the same.
    """


class Entry(msgspec.Struct, frozen=True, array_like=True, tag="e"):
    """What `publish` puts under a key. The value None deletes."""

    key: bytes
    value: bytes | None
    ttl_s: float


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
    bytes_sent: int = 0
    """Of keys and values, without what the connection adds."""
    bytes_received: int = 0
    """Of values."""


class Store(Protocol):
    """Every method that is awaited raises `StoreUnavailable` within the deadline, and nothing else, but
    for arguments that make no sense (`ValueError`)."""

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

    async def reserve(self, key: bytes, amount: float, limit: float, per_s: float) -> float:
        """Takes `amount` from a bucket that holds at most `limit` and is refilled by `per_s` a second, and
        returns 0.0; or takes nothing and returns how many seconds until it would.

        A bucket begins full. An amount above `limit` is taken from a full bucket, and paid back over time.
        """

    def settle(self, key: bytes, amount: float, limit: float, per_s: float) -> None:
        """Gives back to the bucket, or with a negative amount takes more, below zero too. Written behind."""

    async def exchange(self, origin: str, gauges: bytes, ttl_s: float) -> dict[str, bytes]:
        """Puts this origin's gauges, and returns those of all others that have not lapsed."""

    async def lease(self, name: str, holder: str, ttl_s: float) -> int | None:
        """The fencing number of the holder; None if another one holds it.

        It is the same for a holder that renews, and greater than any before for a new one, also where the
        store lost everything, provided that its clock did not go back.
        """

    async def release(self, name: str, holder: str) -> None:
        """Ends the holder's lease; nothing happens if it is another's."""

    def append(self, stream: str, payload: bytes) -> None:
        """Adds to the end of a stream, which holds `STREAM_LENGTH` and lapses `STREAM_TTL_S` after its last.
        Written behind."""

    async def read(self, stream: str, after: str) -> list[tuple[str, bytes]]:
        """At most `READ_LENGTH` payloads with their ids, in order, from the one that follows `after`;
        from the first one if that is empty. What was pushed out before it was read is missing,
        without notice."""

    async def flush(self) -> None:
        """Returns once nothing waits to be written behind; at once while the store is down."""

    async def aclose(self) -> None:
        """Flushes and closes. What is called afterwards fails, or is dropped."""


def check_value(key: bytes, value: bytes | None, ttl_s: float) -> None:
    check_size(key)
    if value is not None:
        check_size(value)
    check_ttl(ttl_s)


def check_size(text: bytes) -> None:
    if len(text) > MAX_VALUE_BYTES:
        raise ValueError(f"{len(text)} bytes are more than a store takes ({MAX_VALUE_BYTES})")


def check_ttl(ttl_s: float) -> None:
    if not 0.001 <= ttl_s <= 366 * 86400:
        raise ValueError(f"a TTL of {ttl_s} s: it is from a millisecond to a year")


def check_position(after: str) -> None:
    """In a stream."""
    if after and not re.fullmatch(r"\d{1,19}-\d{1,19}", after, re.ASCII):
        raise ValueError(f"no id of a payload: {after[:64]!r}")


def check_bucket(amount: float, limit: float, per_s: float) -> None:
    if not (math.isfinite(amount) and 0 < limit < math.inf and 0 < per_s < math.inf):
        raise ValueError(f"no bucket: {amount} of {limit}, refilled by {per_s} a second")
