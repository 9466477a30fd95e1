"""The one hash that recognises content of clients and engines, seeded for each process.

Invariants: equal bytes have equal hashes within a process; with a secret seed no client can make two texts,
or two conversations, of the same hash. A seed does not keep a guesser away who reads hashes: xxh3 of one
short text that he knows gives it away. So where hashes leave the process (a recording, a store that gateways
share) they are keyed as well: what is read there confirms no guess without the key. `seed_hashes` or
`key_hashes` is called before anything is hashed, or not at all (simulations, evaluations and tests run with
seed 0, and so are repeatable). Names that must outlive a process (`agent_type.py`) are not made with this
hash.
"""

import hashlib
from collections.abc import Iterable
from itertools import repeat
from typing import Any, Final

from msgspec import Raw
from xxhash import xxh3_64_intdigest

_seed = [0]
# BLAKE2b with its key, to be copied: half the time of making one.
_key: list[Any] = [None]
_secret: list[bytes | None] = [None]
_BLANKS: Final = b"\t\n\v\f\r\x1c\x1d\x1e\x1f "


def seed_hashes(seed: int) -> None:
    _seed[0], _key[0], _secret[0] = seed, None, None


def key_hashes(secret: bytes) -> None:
    """Keys all later hashes: without the secret, no text can be matched to its hash."""
    _seed[0] = int.from_bytes(hashlib.blake2b(b"seed", key=secret, digest_size=8).digest(), "big")
    _key[0], _secret[0] = hashlib.blake2b(key=secret, digest_size=8), secret


def hash_seed() -> int:
    return _seed[0]


def hash_secret() -> bytes | None:
    return _secret[0]


def keyed(number: int) -> int:
    """A hash of 64 bits, as it may leave the process; itself while hashes are not keyed."""
    if _key[0] is None:
        return number
    hashed = _key[0].copy()
    hashed.update((number & 0xFFFF_FFFF_FFFF_FFFF).to_bytes(8, "big"))
    return int.from_bytes(hashed.digest(), "big")


def digest(data: bytes | memoryview | Raw) -> int:
    number = xxh3_64_intdigest(data, _seed[0])
    return number if _key[0] is None else keyed(number)  # twenty times a turn, mostly without a key


def hash_text(text: str) -> int:
    number = xxh3_64_intdigest(text.encode("utf-8", "replace"), _seed[0])
    return number if _key[0] is None else keyed(number)


def text_hash(text: str) -> int:
    """Equal for texts that differ in white space alone; 0 for a text without any other."""
    plain = text.encode("utf-8", "replace").translate(None, _BLANKS)
    number = xxh3_64_intdigest(plain, _seed[0]) if plain else 0
    return number if _key[0] is None or not plain else keyed(number)


def digest_all(pieces: Iterable[bytes | Raw]) -> list[int]:
    hashes = list(map(xxh3_64_intdigest, pieces, repeat(_seed[0])))
    return hashes if _key[0] is None else list(map(keyed, hashes))
