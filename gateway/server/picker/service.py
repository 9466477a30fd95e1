"""The gRPC server that Envoy calls: `envoy.service.ext_proc.v3.ExternalProcessor`, and gRPC's health check.

gRPC's own library reads HTTP/2 and bounds what a peer may do to it; here is what it is given as bounds.

Invariants: a call that fails costs that call alone; streams of other pickers come in at a port of their own,
which requires the secret of the fleet.
"""

import asyncio
import contextlib
from functools import partial
from pathlib import Path
from typing import Any, Final
from urllib.parse import unquote

import grpc
import grpc.aio

from gateway.config.server import split_listen
from gateway.server.auth.authenticator import Authenticator
from gateway.server.cluster.peers import Peers
from gateway.server.picker.links import PROCESS, PickerLinks, StreamError
from gateway.server.picker.stream import Picking, Stream
from gateway.upstream.replica import Address

_CHECK: Final = "/grpc.health.v1.Health/Check"
# `HealthCheckResponse` with the status SERVING.
_SERVING: Final = b"\x08\x01"
_NOT_SERVING: Final = b"\x08\x02"
# A peer that pings more often is cut off.
_LEAST_PING_MS: Final = 5_000
# A message holds a body, and what is around it.
_MORE_BYTES: Final = 1 << 20
# Envoy's has about 200.
_MAX_METADATA_BYTES: Final = 16 << 10


class PickerServer:
    def __init__(self, picking: Picking, authenticator: Authenticator, peers: Peers | None) -> None:
        self._picking = picking
        self._authenticator = authenticator
        self._peers = peers
        self._is_serving = True
        self.stream_count = 0
        self._is_empty = asyncio.Event()
        self._is_empty.set()
        self._links = PickerLinks(peers, picking.config.shared) if peers is not None else None
        self._servers: list[grpc.aio.Server] = []

    def bind(self) -> int:
        """Takes its ports: nobody is served before `start`. The port for Envoy. Raises OSError if an address
        cannot be bound, or a certificate not be read."""
        config = self._picking.config
        picker, shared = config.picker, config.shared
        credentials = _credentials(picker.tls_certificate, picker.tls_key, picker.tls_client_ca)
        port = self._bind(self._authenticator, picker.listen, credentials)
        if self._peers is not None:
            host, _ = split_listen(shared.peer_listen)
            listen = _address(host, picker.peer_port)
            credentials = _credentials(shared.peer_tls_certificate, shared.peer_tls_key, shared.peer_tls_ca)
            bound = self._bind(self._peers.authenticator(self._authenticator), listen, credentials)
            if shared.peer_url is not None:
                host = Address.parse(shared.peer_url).host
            self._peers.picks_at = _address(host, bound)
        return port

    def _bind(
        self, authenticator: Authenticator, listen: str, credentials: grpc.ServerCredentials | None
    ) -> int:
        limits = self._picking.config.server.limits
        alive_ms = 1000 * limits.tcp_keepalive_s
        server = grpc.aio.server(
            options=[
                ("grpc.so_reuseport", 0),  # else another picker's port would be shared silently
                ("grpc.max_receive_message_length", limits.max_body_bytes + _MORE_BYTES),
                ("grpc.max_send_message_length", limits.max_body_bytes + _MORE_BYTES),
                ("grpc.max_metadata_size", _MAX_METADATA_BYTES),
                ("grpc.max_concurrent_streams", self._picking.config.picker.max_streams),
                ("grpc.max_allowed_incoming_connections", limits.max_connections),
                ("grpc.keepalive_time_ms", alive_ms),
                ("grpc.keepalive_timeout_ms", alive_ms),
                ("grpc.http2.min_recv_ping_interval_without_data_ms", _LEAST_PING_MS),
            ]
        )
        methods = {  # messages are bytes: a stream reads them itself
            PROCESS: grpc.stream_stream_rpc_method_handler(partial(self._process, authenticator)),
            _CHECK: grpc.unary_unary_rpc_method_handler(self._check),
        }
        for path, method in methods.items():
            _, service, name = path.split("/")
            server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(service, {name: method}),))
        try:
            if credentials is None:
                port: int = server.add_insecure_port(listen)
            else:
                port = server.add_secure_port(listen, credentials)
        except RuntimeError as error:
            raise OSError(f"cannot listen on {listen}: it is taken, or not of this machine") from error
        self._servers.append(server)
        return port

    async def start(self) -> None:
        for server in self._servers:
            await server.start()

    def retire(self) -> None:
        self._is_serving = False

    async def stop(self, grace_s: float) -> None:
        await asyncio.gather(*(server.stop(grace_s) for server in self._servers))
        await self._is_empty.wait()
        if self._links is not None:
            await self._links.close()

    async def _process(self, authenticator: Authenticator, _: Any, context: Any) -> None:
        if self.stream_count >= self._picking.config.picker.max_streams:
            await context.abort(grpc.StatusCode.RESOURCE_EXHAUSTED, "picker.max_streams are open")
        self.stream_count += 1
        self._is_empty.clear()
        try:
            with contextlib.suppress(grpc.aio.BaseError):  # Envoy left while it was answered
                await Stream(self._picking, authenticator, _host(context.peer()), context, self._links).run()
        except StreamError as error:
            await context.abort(error.code, str(error))
        finally:
            self.stream_count -= 1
            if not self.stream_count:
                self._is_empty.set()

    async def _check(self, _: bytes, __: Any) -> bytes:
        return _SERVING if self._is_serving else _NOT_SERVING


def _credentials(
    certificate: str | None, key: str | None, client_ca: str | None
) -> grpc.ServerCredentials | None:
    if certificate is None or key is None:
        return None
    pair = (Path(key).read_bytes(), Path(certificate).read_bytes())
    authority = Path(client_ca).read_bytes() if client_ca is not None else None
    return grpc.ssl_server_credentials([pair], authority, require_client_auth=authority is not None)


def _address(host: str, port: int) -> str:
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def _host(peer: str) -> str:
    """Of gRPC's name for who is connected: `ipv4:10.0.0.1:40000`, `ipv6:%5B::1%5D:40000`."""
    return unquote(peer).partition(":")[2].rpartition(":")[0].strip("[]")
