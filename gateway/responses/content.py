"""The content of a response, in the form in which its client sends it back.

Protocol readers add every piece to a `ResponseContent`, if there is one: for speculative prefills, which
predict the next request, and for exported contents. Audio, the server's own calls and custom calls make the
content unknown, as clients return them in other forms.

Invariants: holds at most `max_bytes`, beside names and signatures; longer or unknown content is not whole.
"""

from enum import Enum
from typing import Final

import msgspec

MAX_BYTES: Final = 2**18
_MAX_PARTS: Final = 1024


class Kind(Enum):
    TEXT = 1
    THOUGHT = 2
    CALL = 3


class Part(msgspec.Struct, eq=False):
    """A text, a thought or a call. `data`: its text; a call's arguments, as JSON."""

    kind: Kind
    data: bytearray = msgspec.field(default_factory=bytearray)
    id: str = ""
    name: str = ""
    field: str = ""
    """The name under which a thought came."""
    signature: str = ""

    @property
    def text(self) -> str:
        return self.data.decode("utf-8", "surrogatepass")


class ResponseContent:
    def __init__(self, max_bytes: int = MAX_BYTES) -> None:
        self.max_bytes = max_bytes
        self.begin()

    def begin(self) -> None:
        self._parts: dict[object, Part] = {}
        # Bytes.
        self.size = 0
        self.is_known = True
        self.is_full = False

    def add(
        self,
        place: object,
        kind: Kind,
        piece: str | None = None,
        *,
        id: str | None = None,  # noqa: A002 - as it is called there
        name: str | None = None,
        field: str = "",
        signature: str | None = None,
    ) -> None:
        if self.is_full:
            return
        part = self._parts.get(place)
        if part is None:
            if len(self._parts) > _MAX_PARTS:
                self.is_full = True
                return
            part = self._parts[place] = Part(kind)
        part.id, part.name, part.field = id or part.id, name or part.name, part.field or field
        part.signature += signature or ""
        if piece:
            encoded = piece.encode("utf-8", "surrogatepass")
            part.data += encoded if len(encoded) <= self.max_bytes - self.size else self._beginning(encoded)
            self.size += len(encoded)
        self.is_full = self.size + len(part.signature) > self.max_bytes

    def _beginning(self, encoded: bytes) -> bytes:
        end = self.max_bytes - self.size
        while end and encoded[end] & 0xC0 == 0x80:
            end -= 1
        return encoded[:end]

    @property
    def parts(self) -> list[Part]:
        return [part for part in self._parts.values() if part.kind is Kind.CALL or part.data]

    @property
    def is_whole(self) -> bool:
        parts = self.parts if self.is_known and not self.is_full else []
        return bool(parts) and all(part.id and part.name for part in parts if part.kind is Kind.CALL)
