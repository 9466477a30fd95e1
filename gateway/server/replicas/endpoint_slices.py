"""EndpointSlices of one Kubernetes service, and the state of its endpoints (pure).

Source: Kubernetes' API reference, `discovery.k8s.io/v1`. An endpoint that is `ready` gets new turns; one that
is not, or that is `terminating`, gets none, and keeps what runs there while its slice names it as `serving`
or as not yet terminating. `ready` that is not stated means true; `serving` that is not, what `ready` says.

Invariants: an endpoint that stands in several slices counts once, as its better state; with IPv4 and IPv6
slices (a service of both families names each pod twice) IPv4 alone counts; at most `MOST` addresses of one
slice, and `MOST` slices, are kept.
"""

import ipaddress
from collections.abc import Iterable
from typing import Final

import msgspec

from gateway.fleet.membership import MOST


class Conditions(msgspec.Struct, frozen=True):
    ready: bool | None = None
    serving: bool | None = None
    terminating: bool | None = None


class Endpoint(msgspec.Struct, frozen=True):
    addresses: tuple[str, ...] = ()
    """All of one pod; the first one is used, as kube-proxy does."""
    conditions: Conditions = Conditions()


class Port(msgspec.Struct, frozen=True):
    name: str | None = None
    port: int | None = None
    protocol: str = "TCP"


class Metadata(msgspec.Struct, frozen=True, rename="camel"):
    name: str = ""
    resource_version: str = ""


class EndpointSlice(msgspec.Struct, frozen=True, rename="camel"):
    metadata: Metadata
    address_type: str = "IPv4"
    endpoints: tuple[Endpoint, ...] | None = ()
    ports: tuple[Port, ...] | None = ()


class ListMetadata(msgspec.Struct, frozen=True, rename="camel"):
    resource_version: str = ""
    continues: str = msgspec.field(default="", name="continue")


class EndpointSliceList(msgspec.Struct, frozen=True):
    metadata: ListMetadata
    items: tuple[EndpointSlice, ...] | None = ()


class Status(msgspec.Struct, frozen=True):
    """The API's error, in place of an object."""

    code: int = 0
    message: str = ""


class WatchEvent(msgspec.Struct, frozen=True):
    type: str
    """`ADDED`, `MODIFIED`, `DELETED`, `BOOKMARK` or `ERROR`."""
    object: msgspec.Raw


class EndpointSnapshot(msgspec.Struct, frozen=True):
    """URLs of the endpoints, in order."""

    up: tuple[str, ...] = ()
    draining: tuple[str, ...] = ()
    """No new turns; what runs there may end."""


class SlicesError(ValueError):
    """The slices cannot be used; for a person."""


_FAMILIES: Final = {"IPv4": 4, "IPv6": 6}


class Slices:
    """Of one service, by name."""

    def __init__(self, port: str | int | None, scheme: str) -> None:
        """`port`: its number, or its name in the slices; None: the only one."""
        self._port = port
        self._scheme = scheme
        # Name → address family, and of each URL whether it is up, else draining.
        self._slices: dict[str, tuple[int, dict[str, bool]]] = {}

    def replace(self, all_of_them: Iterable[EndpointSlice]) -> None:
        """These are all. Raises SlicesError, and then what was known stays."""
        read = {each.metadata.name: self._read(each) for each in all_of_them}
        self._slices = dict(list(read.items())[:MOST])

    def put(self, changed: EndpointSlice) -> None:
        """Raises SlicesError."""
        read = self._read(changed)
        if changed.metadata.name in self._slices or len(self._slices) < MOST:
            self._slices[changed.metadata.name] = read

    def delete(self, name: str) -> None:
        self._slices.pop(name, None)

    def snapshot(self) -> EndpointSnapshot:
        first = min((family for family, states in self._slices.values() if states), default=0)
        merged: dict[str, bool] = {}
        for family, states in self._slices.values():
            if family == first:
                for url, is_up in states.items():
                    merged[url] = is_up or merged.get(url, False)
        return EndpointSnapshot(
            tuple(sorted(url for url, is_up in merged.items() if is_up)),
            tuple(sorted(url for url, is_up in merged.items() if not is_up)),
        )

    def _read(self, listed: EndpointSlice) -> tuple[int, dict[str, bool]]:
        family = _FAMILIES.get(listed.address_type, 0)
        states: dict[str, bool] = {}
        if family and listed.endpoints:
            port = self._port_of(listed)
            for each in listed.endpoints[:MOST]:
                is_up = _is_up(each.conditions)
                if is_up is not None and each.addresses:
                    states[self._url(each.addresses[0], family, port)] = is_up
        return family, states

    def _port_of(self, listed: EndpointSlice) -> int:
        if isinstance(self._port, int):
            return self._port
        ports = {each.name or "": each.port for each in listed.ports or () if each.protocol == "TCP"}
        if self._port is None and len(ports) == 1:
            (number,) = ports.values()
        else:
            number = ports.get(self._port or "")
        if number is None or not 0 < number < 1 << 16:
            needed = "one port alone" if self._port is None else f"a port {self._port!r}"
            raise SlicesError(f"slice {listed.metadata.name} does not have {needed}")
        return number

    def _url(self, address: str, family: int, port: int) -> str:
        try:
            read = ipaddress.ip_address(address)
        except ValueError:
            raise SlicesError("a slice names what is no address") from None
        if read.version != family:
            raise SlicesError("a slice names an address of another family")
        return f"{self._scheme}://[{read}]:{port}" if family == 6 else f"{self._scheme}://{read}:{port}"


def _is_up(conditions: Conditions) -> bool | None:
    is_ready = conditions.ready is not False
    is_serving = conditions.serving if conditions.serving is not None else is_ready
    if conditions.terminating:
        return False if is_serving else None
    return is_ready
