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


HostName = Annotated[str, Meta(pattern=r"^[a-z0-9_]([a-z0-9_.-]{0,252})\Z"), PRIVATE]
"""In lower case, without a port."""


Network = Annotated[str, Meta(max_length=64), PRIVATE]
"""Such as `10.0.0.0/8`."""


class ServerConfig(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    listen: Listen = "127.0.0.1:8080"
    """Where clients connect, HOST:PORT; port 0 takes a free one."""
    mode: Literal["sessions", "relay"] = "sessions"
    """`relay`: sessions are not looked for. A request goes to the replica that runs the fewest, and nothing
    of it is kept (docs/guide/run.md#relay-mode)."""
    control: Listen = "127.0.0.1:8081"
    """The control plane: `/turnpike/*` and `/metrics`."""
    workers: Annotated[int, Meta(ge=1, le=256)] | Literal["auto"] = 1
    """Gateways of this machine that `turnpike serve` starts on `listen`, each a process; `auto`: one for each
    core. More than one need `shared.url`, a Redis. The first has its control plane at `control`, the next at
    the port above it, and so on; limits are each one's."""
    reuse_port: bool = False
    """Other gateways of the same user may listen on `listen`, too (SO_REUSEPORT); the system deals new
    connections out among them. `workers` sets it by itself."""
    control_hosts: tuple[HostName, ...] = ()
    """Host names of the control plane, such as `turnpike.monitoring`, beside `localhost`, the name in
    `control` and all addresses; requests for others get 421, those of browsers alone if there are keys."""
    control_key_hashes: tuple[KeyHash, ...] = ()
    """Keys that may do everything on the control plane; without any key, everybody who reaches it may."""
    control_read_key_hashes: tuple[KeyHash, ...] = ()
    """Keys that may look there, and change nothing."""
    allow_public_without_keys: bool = False
    """Listen on other addresses than loopback without keys."""
    tls_certificate: Annotated[str, PRIVATE] | None = None
    """PEM file with the certificate chain; clients then speak https."""
    tls_key: Annotated[str, PRIVATE] | None = None
    """PEM file with the certificate's private key."""
    trusted_proxies: tuple[Network, ...] = ()
    """Networks of load balancers whose word counts on who the client is: the right-most address in
    `X-Forwarded-For`, or `Forwarded`, that is in none of them. Where both are there and disagree, the client
    wrote one, and the proxy's address counts. Without keys each address is a tenant."""
    proxy_protocol: bool = False
    """Every connection begins with a header of the PROXY protocol, version 1 or 2, from a trusted proxy."""
    debug_headers: bool = True
    """Add `x-turnpike-*` headers to responses: session, source, replica, time in the queue, reason."""
    shutdown_delay_s: Annotated[float, Meta(ge=0)] = 5.0
    """After SIGTERM: how long requests are still taken while `/turnpike/readyz` already answers 503, so that
    load balancers send no more. Let it be longer than their probes' period times the failures that they wait
    for. 0: no time."""
    drain_s: Annotated[float, Meta(ge=0)] = 30.0
    """After that: how long running requests may take to end."""
    state_path: Annotated[str, PRIVATE] | None = None
    """A file that remembers, as hashes, where stored responses live, so that a restart does not lose them.
    With tenants an id that is not remembered is refused. Workers have `<path>.worker-N` each."""
    keys_path: Annotated[str, PRIVATE] | None = None
    """A file of more keys, as hashes: what `turnpike keys` adds and revokes there counts within a second.
    Clients then need a key. Without `[[tenants]]` there is one, `default`."""
    first_words: bool = False
    """Sessions in the dashboard have the first words of their user's, for whoever may look at the control
    plane. Not of tenants whose `content` is false."""
    log_level: Literal["debug", "info", "warning", "error"] = "info"
    """What the gateway says on its standard error: this, and what is graver."""
    log_format: Literal["text", "json"] = "text"
    """Its lines: for people, or each a JSON object with `time`, `level`, `event` and fields."""
    access_log: Annotated[str, Meta(min_length=1), PRIVATE] | None = None
    """A file that gets a line of JSON for each request, with nothing of what it says; `-`: standard output.
    By default there is none. A file that was moved is begun anew. Workers have `<path>.worker-N` each."""
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
