"""What is written behind, and the answer to a batch of it."""

import msgspec

from gateway.shared_state.protocol import Entry


class Settlement(msgspec.Struct, frozen=True, array_like=True, tag="b"):
    """For a bucket."""

    key: bytes
    amount: float
    limit: float
    per_s: float


class Addition(msgspec.Struct, frozen=True, array_like=True, tag="s"):
    """To a stream."""

    stream: str
    payload: bytes


Write = Entry | Settlement | Addition


def size(write: Write) -> int:
    """Bytes of keys and values."""
    match write:
        case Entry():
            return len(write.key) + len(write.value or b"")
        case Settlement():
            return len(write.key)
        case Addition():
            return len(write.stream) + len(write.payload)
