"""What settings point to outside themselves: keys, certificates, profiles, addresses. Read before anything is
made or changed with them, so that what is wrong changes nothing."""

import hashlib
import ssl
from collections.abc import Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

from gateway.assembly import live_settings
from gateway.config import Config
from gateway.config.changes import files_read_again
from gateway.config.load import ConfigError, named, read_api_key
from gateway.config.server import worker_count
from gateway.core.live_settings import LiveSettings
from gateway.domain.ids import PoolId, ReplicaId
from gateway.server.admin.certificate_expiry import read_expiry
from gateway.server.auth.client_address import TrustedProxies
from gateway.server.auth.jwt_tokens import Keys, read_jwks_file
from gateway.server.mcp.servers import open_servers
from gateway.shared_state.fleet_secret import fleet_secret
from gateway.upstream.local_faults import LocalFaults
from gateway.upstream.replica import Address
from gateway.upstream.tls import PeerTls, upstream_tls


class LoadedReferences(NamedTuple):
    replica_keys: dict[ReplicaId, str | None]
    """Of the replicas that the settings name."""
    pool_keys: dict[PoolId, str | None]
    """For those that are found, or register."""
    upstream_tls: ssl.SSLContext | None
    """None if nobody speaks https."""
    server_tls: ssl.SSLContext | None
    brain: LiveSettings
    jwt_keys: Keys | None
    certificate_ends: dict[str, float]
    files: dict[str, bytes]
    """Digests of what is read again, by the settings that name it."""


def read_references(config: Config, environ: Mapping[str, str]) -> LoadedReferences:
    """Blocks. Raises ConfigError, OSError or ValueError."""
    replica_keys, pool_keys = {}, {}
    for pool in config.pools:
        if (found := pool.discovery) is not None:
            pool_keys[PoolId(pool.name)] = read_api_key(found.api_key_env, found.api_key_file, environ)
        for name, each in zip(pool.names(), pool.replicas, strict=True):
            Address.of_backend(each.url)
            where = f"{name}: api_key_env"
            key = read_api_key(each.api_key_env, each.api_key_file, environ, named=where)
            replica_keys[ReplicaId(name)] = key
            if each.kv_events is not None:
                _check_feeds()
    server, picker = config.server, config.picker
    tls = _server_tls("picker", picker.tls_certificate, picker.tls_key)
    if tls is not None and picker.tls_client_ca:
        tls.load_verify_locations(picker.tls_client_ca)  # gRPC does not say what is wrong with them
    return LoadedReferences(
        replica_keys,
        pool_keys,
        upstream_tls(config),
        _server_tls("server", server.tls_certificate, server.tls_key),
        live_settings(config),
        read_jwks_file(config.jwt) if config.jwt is not None else None,
        read_expiry(config),
        dict(_digests(config)),
    )


def _digests(config: Config) -> Iterator[tuple[str, bytes]]:
    for key, file in files_read_again(config):
        with suppress(OSError, ValueError):  # an address, or the name of a profile
            yield key, hashlib.sha256(Path(file).read_bytes()).digest()


def check_references(config: Config, environ: Mapping[str, str]) -> None:
    """Raises what `Gateway` would for files, variables and addresses that the settings name in vain."""
    tls = read_references(config, environ).upstream_tls
    PeerTls.of(config.shared)
    draws_secret = not config.shared.has_secret and worker_count(config.server.workers, cores=2) > 1
    if config.shared.url is not None and not draws_secret:
        fleet_secret(config.shared, environ)
    open_servers(config, environ, tls=tls, local_faults=LocalFaults())
    TrustedProxies(config.server.trusted_proxies)


def _check_feeds() -> None:
    try:
        import zmq  # noqa: F401, PLC0415 - only who asks needs ZeroMQ
    except ImportError:
        raise ConfigError(
            "pools.replicas.kv_events: needs ZeroMQ: pip install turnpike-gateway[kv-events]"
        ) from None


def _server_tls(section: str, certificate: str | None, key: str | None) -> ssl.SSLContext | None:
    if certificate is None:
        return None
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    with named(f"{section}.tls_certificate, {section}.tls_key", certificate, key):
        context.load_cert_chain(certificate, key)
    context.set_alpn_protocols(["http/1.1"])
    return context
