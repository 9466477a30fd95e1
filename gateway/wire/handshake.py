"""The opening handshake of a WebSocket (RFC 6455 §4)."""

import base64
import hashlib
from typing import Final

from gateway.wire.headers import RawHeaders

_GUID: Final = b"258EAFA5-E914-47DA-95CA-C5AB0DC85B11"
# Of a `Sec-WebSocket-Key`: 16 in base64.
_KEY_BYTES: Final = 24


def is_handshake(method: bytes, headers: RawHeaders, version: str) -> bool:
    versions = [value for name, value in headers if name.lower() == b"sec-websocket-version"]
    is_v13 = version == "1.1" and versions == [b"13"]
    return method == b"GET" and is_v13 and key_of(headers) is not None


def key_of(headers: RawHeaders) -> bytes | None:
    keys = [value for name, value in headers if name.lower() == b"sec-websocket-key"]
    return keys[0] if len(keys) == 1 and len(keys[0]) == _KEY_BYTES else None


def accept_of(key: bytes) -> str:
    return base64.b64encode(hashlib.sha1(key + _GUID, usedforsecurity=False).digest()).decode()
