"""Answering Envoy: which replica a request goes to, in place of sending it there."""

from typing import Annotated

import msgspec
from msgspec import Meta

from gateway.config.privacy import PRIVATE
from gateway.config.server import Listen


class PickerConfig(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """For `turnpike picker`, in place of `turnpike serve` (docs/operate/picker.md)."""

    listen: Listen = "127.0.0.1:9002"
    """Address for Envoy's gRPC, HOST:PORT; port 0 takes a free one."""
    tls_certificate: Annotated[str, PRIVATE] | None = None
    """PEM file with the certificate chain; Envoy then connects by TLS. Read at the start."""
    tls_key: Annotated[str, PRIVATE] | None = None
    """PEM file with the certificate's private key."""
    tls_client_ca: Annotated[str, PRIVATE] | None = None
    """PEM file with the authorities of client certificates, which are then required."""
    peer_port: Annotated[int, Meta(ge=0, le=65535)] = 0
    """With `shared.url`: gRPC port for streams from other pickers of the same fleet, on the host of
    `shared.peer_listen`; 0 takes a free one. With TLS if `shared.peer_tls_certificate` is set."""
    max_wait_s: Annotated[float, Meta(gt=0)] = 60.0
    """Longest wait of a request; beyond it 503. Let Envoy's `message_timeout` be longer."""
    max_streams: Annotated[int, Meta(ge=1)] = 16384
    """Most waiting and running requests in Envoy; beyond it `RESOURCE_EXHAUSTED`."""

    def __post_init__(self) -> None:
        if (self.tls_certificate is None) != (self.tls_key is None):
            raise ValueError("tls_certificate and tls_key go together")
        if self.tls_client_ca is not None and self.tls_certificate is None:
            raise ValueError("tls_client_ca needs tls_certificate and tls_key")
