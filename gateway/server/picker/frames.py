"""Frames of HTTP/2: their names, and how one is written (pure).

Source: RFC 9113, sections 4 to 7.
"""

import struct
from typing import Final

PREFACE: Final = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
MAX_FRAME_BYTES: Final = 1 << 14
"""Of a frame's payload, either way: what everybody takes (§4.2)."""
WINDOW_BYTES: Final = 1 << 20
"""That a stream may be ahead of what is read of it: most bodies need no further word."""
FIRST_WINDOW_BYTES: Final = (1 << 16) - 1
MAX_WINDOW: Final = (1 << 31) - 1

DATA, HEADERS, PRIORITY, RST_STREAM, SETTINGS, PUSH_PROMISE, PING, GOAWAY, WINDOW_UPDATE, CONTINUATION = (
    range(10)
)
END_STREAM: Final = 0x1
ACK: Final = 0x1
END_HEADERS: Final = 0x4
PADDED: Final = 0x8
WITH_PRIORITY: Final = 0x20

NO_ERROR, PROTOCOL_ERROR, FLOW_CONTROL_ERROR, FRAME_SIZE_ERROR = 0x0, 0x1, 0x3, 0x6
REFUSED_STREAM, COMPRESSION_ERROR, ENHANCE_YOUR_CALM = 0x7, 0x9, 0xB
TABLE_SIZE, MAX_STREAMS, INITIAL_WINDOW = 0x1, 0x3, 0x4

HEAD: Final = struct.Struct(">HBBBI")
"""Length in two parts, kind, flags, stream."""
SETTING: Final = struct.Struct(">HI")
NUMBER: Final = struct.Struct(">I")


def frame(kind: int, flags: int, stream: int, payload: bytes = b"") -> bytes:
    size = len(payload)
    return HEAD.pack(size >> 8, size & 0xFF, kind, flags, stream) + payload
