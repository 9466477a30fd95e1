"""The one hash by which what clients and engines say is recognised, seeded for each process.

Invariants: equal bytes have equal hashes within a process; with a seed that nobody outside knows, nobody can
make two texts, or two conversations, of the same hash. `seed_hashes` is called before anything is hashed, or
not at all (simulations, evaluations and tests run with seed 0, and so are repeatable); once more where a
gateway that started alone joins others, which makes strangers of all that it hashed before. A recording
carries its seeds, so that its replay hashes alike. Names that must outlive a process (`agent_skeleton.py`)
are not made with this hash.
"""

from collections.abc import Iterable
from itertools import repeat
from typing import Final

from msgspec import Raw
from xxhash import xxh3_64_intdigest

_seed = [0]
_BLANKS: Final = b"\t\n\v\f\r\x1c\x1d\x1e\x1f "


def seed_hashes(seed: int) -> None:
    """Hash with this seed of 64 bits from now on."""
    _seed[0] = seed


def hash_seed() -> int:
    return _seed[0]


def digest(data: bytes | memoryview | Raw) -> int:
    """64 bits."""
    return xxh3_64_intdigest(data, _seed[0])


def hash_text(text: str) -> int:
    return xxh3_64_intdigest(text.encode("utf-8", "replace"), _seed[0])


def text_hash(text: str) -> int:
    """Equal for texts that differ in white space alone; 0 for a text without any other."""
    plain = text.encode("utf-8", "replace").translate(None, _BLANKS)
    return xxh3_64_intdigest(plain, _seed[0]) if plain else 0


def digest_all(pieces: Iterable[bytes | Raw]) -> list[int]:
    """Of each piece."""
    return list(map(xxh3_64_intdigest, pieces, repeat(_seed[0])))
