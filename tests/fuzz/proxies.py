"""What stands in front of clients says who they are: the PROXY protocol, `X-Forwarded-For`, `Forwarded`."""

import ipaddress
import itertools
import random

from gateway.server.auth.client_address import TrustedProxies
from gateway.wire.headers import RawHeaders
from gateway.wire.proxy_protocol import MAX_BYTES, ProxyHeader, ProxyProtocolError, read_proxy_header
from tests.fuzz.mutation import mutate, pieces

_ADDRESSES = b"10.0.0.1 192.0.2.7 ::1 2001:db8::1 [2001:db8::1]:80 192.0.2.7:9 unknown".split()
_SIGNATURE = b"\r\n\r\n\x00\r\nQUIT\n"
_PREFACES = (
    b"PROXY TCP4 192.0.2.7 10.0.0.1 5 80\r\n",
    b"PROXY TCP6 2001:db8::1 ::1 5 80\r\n",
    b"PROXY UNKNOWN\r\n",
    _SIGNATURE + b"\x21\x11\x00\x0c" + bytes((192, 0, 2, 7, 10, 0, 0, 1, 0, 5, 0, 80)),
    _SIGNATURE + b"\x21\x21\x00\x24" + bytes(36),
    _SIGNATURE + b"\x20\x00\x00\x00",
)
_TRUSTED = "10.0.0.0/8"
_PROXIES = TrustedProxies((_TRUSTED,))

Given = tuple[list[bytes], RawHeaders]


def make(rng: random.Random) -> Given:
    fed = pieces(rng, mutate(rng, rng.choice(_PREFACES)) + b"GET / HTTP/1.1\r\n")
    return fed, [_header(rng) for _ in range(rng.randrange(4))]


def _header(rng: random.Random) -> tuple[bytes, bytes]:
    hops = [rng.choice(_ADDRESSES) for _ in range(rng.randrange(5))]
    if rng.randrange(2):
        return b"X-Forwarded-For", mutate(rng, b", ".join(hops))
    return b"Forwarded", mutate(rng, b",".join(b'proto=http;for="%s"' % hop for hop in hops))


def check(given: Given) -> None:
    """A header is read once it is whole, wherever it is cut; a client is an address; strangers name
    nobody."""
    fed, headers = given
    whole = _read(b"".join(fed))
    read = next((found for part in itertools.accumulate(fed) if (found := _read(part)) is not None), None)
    assert read == whole
    if isinstance(whole, ProxyHeader):
        assert 0 < whole.size <= MAX_BYTES
        ipaddress.ip_address(whole.client or "::")  # or it raises
    ipaddress.ip_address(_PROXIES.client_of(headers, "10.1.2.3"))
    assert _PROXIES.client_of(headers, "192.0.2.1") == "192.0.2.1"


def _read(data: bytes) -> ProxyHeader | str | None:
    try:
        return read_proxy_header(data)
    except ProxyProtocolError:
        return "refused"
