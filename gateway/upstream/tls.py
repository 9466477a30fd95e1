"""TLS towards backends, and between gateways."""

import ssl
from typing import NamedTuple

from gateway.config import Config
from gateway.config.load import named
from gateway.config.shared import SharedConfig


def upstream_tls(config: Config) -> ssl.SSLContext | None:
    """None if nobody is reached by https. Blocks; raises ConfigError."""
    urls = [each.url for pool in config.pools for each in pool.replicas] + [each.url for each in config.mcp]
    finds_more = any(pool.discovery is not None for pool in config.pools)
    if not finds_more and not any(url.startswith("https://") for url in urls):
        return None
    ours = config.upstream
    with named("upstream.ca_file", ours.ca_file):
        context = ssl.create_default_context(cafile=ours.ca_file)
    if ours.tls_certificate is not None:
        with named("upstream.tls_certificate, upstream.tls_key", ours.tls_certificate, ours.tls_key):
            context.load_cert_chain(ours.tls_certificate, ours.tls_key)
    return context


class PeerTls(NamedTuple):
    """Both sides show a certificate of `peer_tls_ca`; None for gateways that speak in clear."""

    server: ssl.SSLContext | None = None
    client: ssl.SSLContext | None = None

    @classmethod
    def of(cls, config: SharedConfig) -> "PeerTls":
        if config.peer_tls_certificate is None:
            return cls()
        server = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH, cafile=config.peer_tls_ca)
        server.verify_mode = ssl.CERT_REQUIRED
        client = ssl.create_default_context(cafile=config.peer_tls_ca)
        for context in (server, client):
            context.load_cert_chain(config.peer_tls_certificate, config.peer_tls_key)
            context.set_alpn_protocols(["http/1.1"])
        return cls(server, client)
