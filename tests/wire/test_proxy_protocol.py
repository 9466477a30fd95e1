"""The PROXY protocol: what is a header, what is none, and nothing in between."""

import ipaddress

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.wire.proxy_protocol import MAX_BYTES, ProxyHeader, ProxyProtocolError, read_proxy_header

SIGNATURE = b"\r\n\r\n\x00\r\nQUIT\n"


def v2(command: int, family: int, addresses: bytes) -> bytes:
    return SIGNATURE + bytes([command, family]) + len(addresses).to_bytes(2, "big") + addresses


def addresses(source: str, target: str = "") -> bytes:
    packed = ipaddress.ip_address(source).packed
    return packed + (ipaddress.ip_address(target).packed if target else packed) + b"\x00\x01\x00\x02"


GOOD = [
    (b"PROXY TCP4 192.0.2.7 198.51.100.1 56324 443\r\n", "192.0.2.7"),
    (b"PROXY TCP6 2001:DB8::7 ::1 1 65535\r\n", "2001:db8::7"),
    (b"PROXY UNKNOWN\r\n", None),
    (b"PROXY UNKNOWN ffff:f...f:ffff ffff 1 2\r\n", None),
    (v2(0x21, 0x11, addresses("192.0.2.7")), "192.0.2.7"),
    (v2(0x21, 0x21, addresses("2001:db8::7")), "2001:db8::7"),
    (v2(0x21, 0x11, addresses("192.0.2.7") + b"\x04\x00\x02tl"), "192.0.2.7"),
    (v2(0x20, 0x00, b""), None),
    (v2(0x20, 0x11, addresses("192.0.2.7")), None),
    (v2(0x21, 0x00, b"\x01"), None),
]


@pytest.mark.parametrize(("header", "client"), GOOD)
def test_a_header_is_read_once_it_is_whole_and_no_further(header, client):
    for end in range(len(header)):
        assert read_proxy_header(header[:end]) is None
    assert read_proxy_header(header) == ProxyHeader(client, len(header))
    assert read_proxy_header(header + b"GET / HTTP/1.1\r\n") == ProxyHeader(client, len(header))


@pytest.mark.parametrize(
    "data",
    [
        b"GET / HTTP/1.1\r\n",
        b"PROXY TCP4 192.0.2.7 198.51.100.1 56324 443\n" + b" " * 107,
        b"PROXY TCP4 192.0.2.7  198.51.100.1 1 2\r\n",
        b"PROXY TCP4 192.0.2.700 198.51.100.1 1 2\r\n",
        b"PROXY TCP4 ::1 ::1 1 2\r\n",
        b"PROXY TCP6 192.0.2.7 192.0.2.7 1 2\r\n",
        b"PROXY TCP4 192.0.2.7 198.51.100.1 1 65536\r\n",
        b"PROXY UDP4 192.0.2.7 198.51.100.1 1 2\r\n",
        b"PROXY TCP4 \xb2.0.2.7 198.51.100.1 1 2\r\n",
        b"PROXY UNKNOWNX\r\n",
        v2(0x31, 0x11, addresses("192.0.2.7")),
        v2(0x22, 0x11, addresses("192.0.2.7")),
        v2(0x21, 0x12, addresses("192.0.2.7")),
        v2(0x21, 0x31, b"x" * 216),
        v2(0x21, 0x11, addresses("192.0.2.7")[:-1]),
        v2(0x21, 0x21, addresses("192.0.2.7")),
        v2(0x21, 0x11, b"x" * (MAX_BYTES - 15)),
    ],
)
def test_what_is_no_header(data):
    with pytest.raises(ProxyProtocolError):
        read_proxy_header(data)


@given(
    st.sampled_from([b"", b"PROXY ", b"PROXY TCP4 ", SIGNATURE, SIGNATURE + b"\x21\x11"]),
    st.binary(max_size=700),
)
def test_whatever_comes_is_a_header_or_none_or_has_to_go_on(start, rest):
    data = start + rest
    try:
        found = read_proxy_header(data)
    except ProxyProtocolError:
        return
    if found is None:
        assert len(data) < MAX_BYTES
    else:
        assert found.size <= min(len(data), MAX_BYTES)
        assert found.client is None or str(ipaddress.ip_address(found.client)) == found.client
