"""Requests as bytes: what is let in has one reading, wherever it is cut."""

import random

from gateway.config.http_limits import HttpLimits
from gateway.domain.ids import TenantId
from gateway.server.auth.authenticator import Caller
from gateway.server.auth.client_keys import Tenant
from gateway.server.http.body_limits import BufferBudget
from gateway.server.http.request_parser import HttpRequest, RequestParser
from gateway.wire.endpoints import classify
from gateway.wire.headers import RawHeaders
from tests.fuzz.mutation import mutate, pieces

LIMITS = HttpLimits(max_header_bytes=2_000, max_body_bytes=5_000, max_buffered_bytes=1 << 20)
_FIELDS = (
    b"Host: gw",
    b"Content-Length: 3",
    b"Content-Length: 0",
    b"Content-Length: +3",
    b"Transfer-Encoding: chunked",
    b"Transfer-Encoding: gzip, chunked",
    b"transfer-encoding:\tchunked",
    b"Connection: close",
    b"Connection: Upgrade",
    b"Upgrade: h2c",
    b"Expect: 100-continue",
    b"X-A: b",
    b" folded",
    b"X :y",
    b": empty",
    b"Trailer: x",
    b"X-Session-ID: s",
)
_LINES = (
    b"POST /v1/chat/completions HTTP/1.1",
    b"GET / HTTP/1.1",
    b"GET / HTTP/1.0",
    b"POST /a?b HTTP/1.1",
    b"GET http://x/ HTTP/1.1",
    b"OPTIONS * HTTP/1.1",
    b"GET / HTTP/2.0",
    b"GET  / HTTP/1.1",
    b"get / HTTP/1.1",
    b"GET /\xff HTTP/1.1",
)
_BODIES = (
    b"",
    b"abc",
    b"3\r\nabc\r\n0\r\n\r\n",
    b"3;x=y\r\nabc\r\n0\r\nT: x\r\n\r\n",
    b"0\r\n\r\n",
    b"03\r\nabc\r\n0\r\n\r\n",
)


def _message(rng: random.Random) -> bytes:
    fields = [rng.choice(_FIELDS) for _ in range(rng.randrange(5))]
    ends = rng.choice((b"\r\n", b"\r\n", b"\r\n", b"\n"))
    return ends.join([rng.choice(_LINES), b"Host: gw", *fields, b"", b""]) + rng.choice(_BODIES)


def make(rng: random.Random) -> list[bytes]:
    data = b"".join(_message(rng) for _ in range(1 + rng.randrange(3)))
    return pieces(rng, mutate(rng, data))


def _let_in(method: str, target: bytes, headers: RawHeaders) -> Caller:
    return Caller(Tenant(TenantId("t"), False), "/", classify(method, "/"))


def _read(fed: list[bytes], *, are_taken_late: bool = False) -> tuple[list[HttpRequest], bool]:
    """The requests, and whether something was refused; `are_taken_late`: when all has come."""
    budget, found = BufferBudget(1 << 20), []
    parser = RequestParser(LIMITS, budget, _let_in)
    for number, piece in enumerate(fed, 1):
        parser.hold(piece)
        while not are_taken_late or number == len(fed):
            if (request := parser.next_request()) is not None:
                found.append(request)
            elif not (parser.unread or parser.whole):
                break
    parser.close()
    budget.give_back(TenantId("t"), sum(len(request.body) for request in found))
    assert budget.used == 0, "bytes that nobody holds count"
    return found, parser.refusal is not None


def check(fed: list[bytes]) -> None:
    """Cut anywhere and taken whenever, the bytes say the same; what is let in has one framing."""
    readings = [_read(fed), _read([b"".join(fed)]), _read(fed, are_taken_late=True)]
    seen = [
        [(r.head.method, r.head.target, r.head.headers, r.head.keep_alive, r.body) for r in requests]
        for requests, _ in readings
    ]
    assert seen[0] == seen[1] == seen[2]
    assert len({is_refused for _, is_refused in readings}) == 1
    for _, target, headers, _, body in seen[0]:
        names = [field.lower() for field, _ in headers]
        sizes = [text for field, text in headers if field.lower() == b"content-length"]
        assert not (b"transfer-encoding" in names and sizes), "two framings"
        assert len(sizes) <= 1 and all(text.isdigit() and int(text) == len(body) for text in sizes)
        assert target and not any(byte <= 0x20 or byte == 0x7F for byte in target)
        assert all(field and not set(field) & set(b" \t\r\n:") for field, _ in headers)
        assert all(not set(text) & set(b"\r\n\0") for _, text in headers)
