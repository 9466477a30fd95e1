"""Names for new sessions.

A session's name is enough to end it (`POST /turnpike/sessions/{id}/finish`), and clients see the names of
their own sessions. So a name must not reveal the next one.
"""

from base64 import b32encode
from collections.abc import Iterator
from hashlib import blake2s
from itertools import count
from typing import Final

from gateway.domain.ids import SessionId

# 80 bits: no guess hits one of a million sessions, and no two processes mint the same. Fills 16 letters.
_ID_BYTES: Final = 10


def keyed_ids(key: bytes) -> Iterator[SessionId]:
    """`key`: 16 to 32 bytes, secret, and new for each process."""
    for number in count(1):
        digest = blake2s(number.to_bytes(8, "big"), key=key, digest_size=_ID_BYTES).digest()
        yield SessionId(f"s-{b32encode(digest).decode('ascii').lower()}")


def numbered_ids(prefix: str = "") -> Iterator[SessionId]:
    for number in count(1):
        yield SessionId(f"s-{prefix}{number:x}")
