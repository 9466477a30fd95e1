"""The two listeners: where clients come in, and where operators do."""

import ipaddress
from typing import Annotated, Literal

import msgspec
from msgspec import Meta

from gateway.config.addresses import meant_listen
from gateway.config.http_limits import HttpLimits, KeepAliveConfig
from gateway.config.privacy import PRIVATE
from gateway.config.tenants import KeyHash

Listen = Annotated[str, Meta(pattern=r"^(\[[0-9a-fA-F:.]+\]|[^:\s]+):\d{1,5}\Z"), PRIVATE]


# In lower case, without a port.
HostName = Annotated[str, Meta(pattern=r"^[a-z0-9_]([a-z0-9_.-]{0,252})\Z"), PRIVATE]


# Such as `10.0.0.0/8`.
Network = Annotated[str, Meta(max_length=64), PRIVATE]


class ServerConfig(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    listen: Listen = "127.0.0.1:8080"
    """Address for clients, HOST:PORT; port 0 takes a free one."""
    mode: Literal["sessions", "relay"] = "sessions"
    """`relay`: no sessions. A request goes to the replica with the fewest running requests
    (docs/guide/run.md#relay-mode)."""
    control: Listen = "127.0.0.1:8081"
    """The control plane: `/turnpike/*` and `/metrics`."""
    workers: Annotated[int, Meta(ge=1, le=256)] | Literal["auto"] = 1
    """Gateway processes of `turnpike serve` on this machine, all on `listen`; `auto`: one for each core. More
    than one need `shared.url`, a Redis. The first has its control plane at `control`, the next at the port
    above it, and so on. Limits hold for each one."""
    reuse_port: bool = False
    """Other gateways of the same user may use `listen`, too (SO_REUSEPORT); the system distributes new
    connections. `workers` implies it."""
    control_hosts: tuple[HostName, ...] = ()
    """Host names of the control plane, such as `turnpike.monitoring`, beside `localhost`, the name in
    `control` and all addresses. Requests for others get 421; with keys, only browsers' requests."""
    control_key_hashes: tuple[KeyHash, ...] = ()
    """Keys with all rights on the control plane. Without any key, everybody who reaches it has all rights."""
    control_read_key_hashes: tuple[KeyHash, ...] = ()
    """Keys with read access there."""
    allow_public_without_keys: bool = False
    """Allow addresses other than loopback without keys."""
    tls_certificate: Annotated[str, PRIVATE] | None = None
    """PEM file with the certificate chain; clients then use https."""
    tls_key: Annotated[str, PRIVATE] | None = None
    """PEM file with the certificate's private key."""
    trusted_proxies: tuple[Network, ...] = ()
    """Networks of trusted load balancers. The client is the right-most address in `X-Forwarded-For`, or
    `Forwarded`, outside these networks. If both disagree, the proxy's address counts. Without keys each
    address is a tenant."""
    proxy_protocol: bool = False
    """Every connection starts with a PROXY header, version 1 or 2, from a trusted proxy."""
    debug_headers: bool = True
    """Add `x-turnpike-*` headers to responses: session, source, replica, time in the queue, reason."""
    shutdown_delay_s: Annotated[float, Meta(ge=0)] = 5.0
    """After SIGTERM: time with `/turnpike/readyz` at 503 while requests are still accepted, so that load
    balancers notice. Let it exceed their probe period times their failure threshold."""
    drain_s: Annotated[float, Meta(ge=0)] = 30.0
    """After that: time for running requests to end."""
    state_path: Annotated[str, PRIVATE] | None = None
    """File with the replicas of stored responses, as hashes, for restarts. With tenants an unknown id is
    refused. Workers have `<path>.worker-N` each."""
    keys_path: Annotated[str, PRIVATE] | None = None
    """File of further keys, as hashes, for `turnpike keys`; changes apply within a second. Clients then need
    a key. Without `[[tenants]]` there is one, `default`."""
    first_words: bool = False
    """The dashboard shows the first words of each session's user to all its readers, except for tenants with
    `content = false`."""
    log_level: Literal["debug", "info", "warning", "error"] = "info"
    """Least level of lines on standard error."""
    log_format: Literal["text", "json"] = "text"
    """Lines for people, or JSON objects with `time`, `level`, `event` and fields."""
    access_log: Annotated[str, Meta(min_length=1), PRIVATE] | None = None
    """File with a JSON line for each request, without content; `-`: standard output. A moved file is
    reopened. Workers have `<path>.worker-N` each."""
    holding: KeepAliveConfig = KeepAliveConfig()
    limits: HttpLimits = HttpLimits()

    @property
    def is_relay(self) -> bool:
        return self.mode == "relay"

    @property
    def has_receipts(self) -> bool:
        return self.debug_headers and not self.is_relay

    def __post_init__(self) -> None:
        if (self.tls_certificate is None) != (self.tls_key is None):
            raise ValueError("tls_certificate and tls_key go together")
        if self.proxy_protocol and not self.trusted_proxies:
            raise ValueError("proxy_protocol needs trusted_proxies: who may say whom it connects for")
        if self.proxy_protocol and self.tls_certificate is not None:
            raise ValueError("proxy_protocol and tls_certificate exclude each other: let the proxy end TLS")
        for name in ("listen", "control"):
            if int(getattr(self, name).rpartition(":")[2]) > 65535:
                raise ValueError(f"{name} names a port above 65535")


def split_listen(listen: str) -> tuple[str, int]:
    host, _, port = listen.rpartition(":")
    return host.strip("[]"), int(port)


def listen_of(option: str, text: str) -> tuple[str, int]:
    """Of an option of a command. Raises ValueError."""
    try:
        address = split_listen(msgspec.convert(text, Listen))
    except msgspec.ValidationError:
        address = "", 1 << 16
    if address[1] >= 1 << 16:
        instead = meant_listen(text) or ", such as 127.0.0.1:8080"
        raise ValueError(f"{option}: {text!r} is not HOST:PORT{instead}")
    return address


def worker_count(workers: int | Literal["auto"], *, cores: int) -> int:
    return cores if workers == "auto" else workers


def is_loopback(listen: str) -> bool:
    host, _ = split_listen(listen)
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False
