"""The PROXY protocol, versions 1 and 2: the client of a proxied connection (pure).

Source: https://www.haproxy.org/download/3.0/doc/proxy-protocol.txt

Invariants: nothing is understood that the document does not have; a header is read once it is whole, and at
most `MAX_BYTES` are looked at, whatever comes.
"""

import ipaddress
import re
from typing import Final, NamedTuple

# The least that the document requires of receivers; headers of version 1 have at most 107 bytes.
MAX_BYTES: Final = 536
_MAX_V1_BYTES: Final = 107
_SIGNATURE: Final = b"\r\n\r\n\x00\r\nQUIT\n"
_HEAD_BYTES: Final = 16
_V1: Final = re.compile(rb"PROXY (TCP4|TCP6) (\S{2,39}) (\S{2,39}) (\d{1,5}) (\d{1,5})")
_V1_UNKNOWN: Final = re.compile(rb"PROXY UNKNOWN(?: .*)?")
_LOCAL, _PROXIED = 0x20, 0x21
_UNSPECIFIED, _TCP4, _TCP6 = 0x00, 0x11, 0x21
_ADDRESS_BYTES: Final = {_TCP4: 4, _TCP6: 16}


class ProxyProtocolError(ValueError):
    """The connection does not begin with a header of the PROXY protocol."""


class ProxyHeader(NamedTuple):
    client: str | None
    """The client's address; None for the proxy's own connections, or if unknown."""
    size: int
    """Bytes of the header; what follows is the client's."""


def read_proxy_header(data: bytes) -> ProxyHeader | None:
    """From the beginning of a connection; None if more has to come. Raises ProxyProtocolError."""
    if data.startswith(b"PROXY"[: len(data)]):
        return _read_v1(data)
    if data.startswith(_SIGNATURE[: len(data)]):
        return _read_v2(data)
    raise ProxyProtocolError("no header of the PROXY protocol")


def _read_v1(data: bytes) -> ProxyHeader | None:
    line, found, _ = data[:_MAX_V1_BYTES].partition(b"\r\n")
    if not found:
        if len(data) >= _MAX_V1_BYTES:
            raise ProxyProtocolError("the line does not end")
        return None
    size = len(line) + 2
    if _V1_UNKNOWN.fullmatch(line):
        return ProxyHeader(None, size)
    parts = _V1.fullmatch(line)
    if parts is None or int(parts[4]) > 65535 or int(parts[5]) > 65535:
        raise ProxyProtocolError("the line is malformed")
    parse = ipaddress.IPv4Address if parts[1] == b"TCP4" else ipaddress.IPv6Address
    try:
        source, _ = (str(parse(address.decode("ascii"))) for address in parts.groups()[1:3])
    except ValueError:
        raise ProxyProtocolError("the line holds what is no address") from None
    return ProxyHeader(source, size)


def _read_v2(data: bytes) -> ProxyHeader | None:
    if len(data) < _HEAD_BYTES:
        return None
    command, family = data[12], data[13]
    size = _HEAD_BYTES + int.from_bytes(data[14:16], "big")
    if size > MAX_BYTES:
        raise ProxyProtocolError("the header is too long")
    if command not in (_LOCAL, _PROXIED):
        raise ProxyProtocolError("the version or command is unknown")
    if len(data) < size:
        return None
    if command == _LOCAL or family == _UNSPECIFIED:
        return ProxyHeader(None, size)
    length = _ADDRESS_BYTES.get(family)
    if length is None or size < _HEAD_BYTES + 2 * length + 4:
        raise ProxyProtocolError("the address family is unknown, or the addresses are cut short")
    return ProxyHeader(str(ipaddress.ip_address(data[_HEAD_BYTES : _HEAD_BYTES + length])), size)
