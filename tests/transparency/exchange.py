"""Raw HTTP exchanges, and the parts of a raw message."""

import re
import socket
from dataclasses import dataclass

_READ_BYTES = 1 << 16
HOP_BY_HOP = {b"connection", b"keep-alive", b"transfer-encoding", b"te", b"trailer", b"upgrade"}


@dataclass(frozen=True)
class Message:
    """A request or response as it was on the wire, taken apart but not interpreted."""

    start_line: bytes
    headers: list[tuple[bytes, bytes]]
    body: bytes

    def end_to_end(self) -> list[tuple[bytes, bytes]]:
        return [
            (name, value)
            for name, value in self.headers
            if name.lower() not in HOP_BY_HOP and not name.lower().startswith(b"x-turnpike-")
        ]


def parse(raw: bytes) -> Message:
    head, _, body = raw.partition(b"\r\n\r\n")
    start_line, *lines = head.split(b"\r\n")
    headers = [(name, value.lstrip(b" ")) for name, _, value in (line.partition(b":") for line in lines)]
    is_chunked = any(name.lower() == b"transfer-encoding" for name, _ in headers)
    return Message(start_line, headers, _dechunk(body) if is_chunked else body)


def request(
    method: str, path: str, headers: list[tuple[str, str]], body: bytes = b"", *, is_chunked: bool = False
) -> bytes:
    """A raw request with `Connection: close`, so that its answer ends with the connection."""
    lines = [f"{method} {path} HTTP/1.1", "Host: client.test", *(f"{n}: {v}" for n, v in headers)]
    if is_chunked:
        lines.append("Transfer-Encoding: chunked")
        size = 7
        pieces = [body[at : at + size] for at in range(0, len(body), size)]
        body = b"".join(b"%x\r\n%s\r\n" % (len(piece), piece) for piece in pieces) + b"0\r\n\r\n"
    elif body or method == "POST":
        lines.append(f"Content-Length: {len(body)}")
    return "\r\n".join([*lines, "Connection: close", "", ""]).encode() + body


def send(port: int, raw: bytes, timeout_s: float = 120.0) -> bytes:
    received = bytearray()
    with socket.create_connection(("127.0.0.1", port), timeout=timeout_s) as connection:
        connection.sendall(raw)
        while data := connection.recv(_READ_BYTES):
            received += data
    return bytes(received)


def _dechunk(body: bytes) -> bytes:
    plain = bytearray()
    while body:
        size_line, _, rest = body.partition(b"\r\n")
        size = int(size_line.partition(b";")[0], 16)
        plain += rest[:size]
        body = rest[size + 2 :]
        if not size:
            assert body == b"", "bytes after the last chunk"
            return bytes(plain)
    raise AssertionError("the last chunk is missing")


_IDS = re.compile(
    rb"\b(chatcmpl-tool|chatcmpl|cmpl|resp|msg|call|fc|rs|embd|pooling|modelperm|score|rerank|toolu|tokn|item)[-_][0-9a-zA-Z-]{6,}"
)
_TIMES = re.compile(rb'"(created|created_at|completed_at)": ?[0-9.]+')


def without_ids_and_times(body: bytes) -> bytes:
    return _TIMES.sub(rb'"\1":0', _IDS.sub(rb"\1-ID", body))
