"""What several gateways share, and how they reach one another."""

from typing import Annotated

import msgspec
from msgspec import Meta

from gateway.config.privacy import PRIVATE
from gateway.config.server import Listen, Network, is_loopback


class SharedConfig(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The store that several gateways share (docs/design/several-gateways.md)."""

    url: Annotated[str, Meta(pattern=r"^rediss?(\+cluster)?://"), PRIVATE] | None = None
    """`redis://`, `rediss://` (TLS), `redis+cluster://` or `rediss+cluster://`, optionally with an ACL user
    and a password: `rediss://USER:PASSWORD@HOST:PORT`."""
    password_env: Annotated[str, PRIVATE] | None = None
    """Environment variable with the password of Redis; it overrides the URL's."""
    deadline_ms: Annotated[int, Meta(ge=1, le=1000)] = 20
    """Timeout of a call to the store."""
    max_tenant_mb: Annotated[int, Meta(ge=1, le=10_000_000)] = 1024
    """Limit of a tenant in the store, from each gateway; for a while up to twice as much. Further turns are
    not shared: only their own gateway recognises them."""
    secret_file: Annotated[str, PRIVATE] | None = None
    """File with the secret of the fleet: 32 characters or more, the same at all gateways, readable by them
    alone. Workers of one machine need none: their parent draws one."""
    secret_env: Annotated[str, PRIVATE] | None = None
    """Environment variable with the same, instead."""
    peer_listen: Listen = "127.0.0.1:0"
    """Address for requests from other gateways, HOST:PORT; port 0 takes a free one. The first of
    `server.workers` has this port, the next the one above it, and so on, in `peer_url` too."""
    peer_url: Annotated[str, Meta(pattern=r"^https?://[^/]+:\d{1,5}\Z"), PRIVATE] | None = None
    """URL of that for the others; by default its address."""
    peer_tls_certificate: Annotated[str, PRIVATE] | None = None
    """PEM file with this gateway's certificate chain for other gateways and pickers, as server and as client;
    they then use TLS. Read at the start."""
    peer_tls_key: Annotated[str, PRIVATE] | None = None
    """PEM file with its private key."""
    peer_tls_ca: Annotated[str, PRIVATE] | None = None
    """PEM file with the authorities of the gateways' certificates alone."""
    peer_tls_server_name: Annotated[str, PRIVATE] | None = None
    """Name in the others' certificates, if it differs from the host in their URL."""
    peer_plaintext_networks: tuple[Network, ...] = ()
    """Networks, such as `["10.1.0.0/16"]`, for requests between gateways without TLS: API keys and prompts
    are readable there. Otherwise only loopback works without TLS."""

    def __post_init__(self) -> None:
        if self.secret_file is not None and self.secret_env is not None:
            raise ValueError("of secret_file and secret_env only one can be meant")
        tls = (self.peer_tls_certificate, self.peer_tls_key, self.peer_tls_ca)
        if None in tls and tls != (None, None, None):
            raise ValueError("peer_tls_certificate, peer_tls_key and peer_tls_ca go together")
        if (self.peer_url or "").startswith("http://" if self.has_tls else "https://"):
            raise ValueError(
                "peer_url begins with https:// where peer_tls_certificate is set, else with http://"
            )
        if not (self.has_tls or self.peer_plaintext_networks or is_loopback(self.peer_listen)):
            raise ValueError(
                "peer_listen on other addresses than loopback needs peer_tls_certificate, peer_tls_key and "
                "peer_tls_ca, or peer_plaintext_networks"
            )

    @property
    def has_secret(self) -> bool:
        return self.secret_file is not None or self.secret_env is not None

    @property
    def has_tls(self) -> bool:
        return self.peer_tls_certificate is not None

    @property
    def peer_scheme(self) -> str:
        return "https" if self.has_tls else "http"
