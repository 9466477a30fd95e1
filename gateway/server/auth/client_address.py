"""Which client is behind a proxy? (pure)

Load balancers and ingresses connect in their clients' place, and name them in `X-Forwarded-For` or
`Forwarded` (RFC 7239). Everybody can send these, so they count only from proxies that the settings trust, and
of what they say only what those proxies themselves added: read from the right, the first address that is no
trusted proxy's. A proxy that writes one of the two passes the other on as the client wrote it. So where both
are there and name different addresses, neither counts, and the request is the proxy's own.
"""

import ipaddress
import re
from collections.abc import Iterable, Iterator
from functools import lru_cache
from typing import Final

from gateway.wire.headers import RawHeaders

# Of the headers together, their end; beyond it nobody is looked for.
_MAX_BYTES: Final = 4096
_MAX_HOPS: Final = 32
_FOR: Final = re.compile(r'(?:^|[;,\s])for="?(\[[0-9a-f:.]{2,64}\]|[0-9a-f:.]{2,64})', re.IGNORECASE)
_Network = ipaddress.IPv4Network | ipaddress.IPv6Network


class TrustedProxies:
    def __init__(self, networks: Iterable[str]) -> None:
        self._networks: tuple[_Network, ...] = tuple(map(ipaddress.ip_network, networks))
        self.is_trusted = lru_cache(4096)(self._looks_trusted)

    def client_of(self, headers: RawHeaders, peer: str) -> str:
        if not self._networks or not self.is_trusted(peer):
            return peer
        named = {self._first(hops, peer) for hops in _hops(headers)}
        return named.pop() if len(named) == 1 else peer

    def _first(self, hops: list[str], peer: str) -> str:
        client = peer
        for hop in hops:
            address = _address(hop)
            if address is None:
                break
            client = address
            if not self.is_trusted(client):
                break
        return client

    def _looks_trusted(self, address: str) -> bool:
        try:
            parsed = ipaddress.ip_address(address)
        except ValueError:
            return False
        if isinstance(parsed, ipaddress.IPv6Address) and parsed.ipv4_mapped is not None:
            parsed = parsed.ipv4_mapped
        return any(parsed in network for network in self._networks)


def _hops(headers: RawHeaders) -> Iterator[list[str]]:
    for wanted in (b"x-forwarded-for", b"forwarded"):
        listed = b",".join(value for name, value in headers if name.lower() == wanted)
        if listed:
            hops = listed[-_MAX_BYTES:].decode("latin-1").split(",")
            if wanted == b"forwarded":
                hops = [found[1] if (found := _FOR.search(each)) else "" for each in hops]
            yield [hop.strip() for hop in hops[::-1][:_MAX_HOPS]]


def _address(hop: str) -> str | None:
    if hop.startswith("["):
        hop = hop[1:].partition("]")[0]
    elif hop.count(":") == 1:
        hop = hop.partition(":")[0]
    try:
        return str(ipaddress.ip_address(hop))
    except ValueError:
        return None
