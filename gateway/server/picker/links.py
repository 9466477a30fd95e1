"""Streams whose session another picker has: they pass through to it, and its answers back.

A session has one picker (`gateway/shared_state/directory.py`), and Envoy's streams come to any. Whose it is
is known with the request's body, when Envoy has one answer at most, that to the headers. So the other picker
gets the whole request at once, its answer to the headers is dropped, and from its next one on all passes.

Invariants: without that answer nothing has passed, and the request may be decided elsewhere; a stream is
passed on at most once; when Envoy leaves, the other picker's stream is cancelled.
"""

import asyncio
import socket
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final, NamedTuple

import grpc
import grpc.aio

from gateway.config.shared import SharedConfig
from gateway.server.cluster.peers import Peers

PROCESS: Final = "/envoy.service.ext_proc.v3.ExternalProcessor/Process"
_OPTIONS: Final[tuple[tuple[str, int | str], ...]] = (
    ("grpc.max_receive_message_length", -1),
    ("grpc.max_send_message_length", -1),
    ("grpc.min_reconnect_backoff_ms", 500),  # for a connection to be there
    ("grpc.initial_reconnect_backoff_ms", 100),
    ("grpc.max_reconnect_backoff_ms", 1000),
    ("grpc.keepalive_time_ms", 10_000),
    ("grpc.keepalive_timeout_ms", 5_000),
)


class StreamError(Exception):
    """The stream ends with this status of gRPC's, in place of an answer."""

    def __init__(self, code: grpc.StatusCode, message: str) -> None:
        super().__init__(message)
        self.code = code


class Passed(NamedTuple):
    """A stream that another picker answers."""

    channel: grpc.aio.Channel
    """Open as long as anything refers to it: a picker that seems gone may only be late."""
    call: Any
    first: bytes
    """Its first answer that Envoy does not have."""

    async def relay(self, context: Any) -> None:
        """Until either side ends it. Raises StreamError if the other picker fails."""

        async def pass_messages() -> None:
            while (message := await context.read()) is not grpc.aio.EOF:
                await self.call.write(message)
            await self.call.done_writing()

        passing = asyncio.get_running_loop().create_task(pass_messages())
        try:
            answer = self.first
            while answer is not grpc.aio.EOF:
                await context.write(answer)
                answer = await self.call.read()
        except grpc.aio.AioRpcError:
            raise StreamError(grpc.StatusCode.UNAVAILABLE, "the picker of the session left") from None
        finally:
            passing.cancel()
            self.call.cancel()
            await asyncio.gather(passing, return_exceptions=True)


class PickerLinks:
    def __init__(self, peers: Peers, config: SharedConfig) -> None:
        self._peers = peers
        self._credentials, self._options = None, _OPTIONS
        if config.has_tls:
            pems = (config.peer_tls_ca, config.peer_tls_key, config.peer_tls_certificate)
            self._credentials = grpc.ssl_channel_credentials(*(Path(str(pem)).read_bytes() for pem in pems))
            if config.peer_tls_server_name is not None:
                self._options += (("grpc.ssl_target_name_override", config.peer_tls_server_name),)
        self._channels: dict[str, grpc.aio.Channel] = {}

    async def open(self, origin: str, messages: Sequence[bytes], answered: int) -> Passed | None:
        """None if it does not answer. `answered`: how many answers Envoy has already."""
        addresses = self._peers.pickers()
        address = addresses.get(origin)
        if not address:  # it is a gateway, or has just gone
            return None
        channel = self._channels.get(address)
        if channel is None:
            if self._credentials is None and not await self._is_allowed(address):
                return None
            known = addresses.values()
            self._channels = {each: channel for each, channel in self._channels.items() if each in known}
            if self._credentials is not None:
                channel = grpc.aio.secure_channel(address, self._credentials, options=self._options)
            else:
                channel = grpc.aio.insecure_channel(address, options=self._options)
            self._channels[address] = channel
        call = channel.stream_stream(PROCESS)()
        answer = b""
        try:
            for message in messages:
                await call.write(message)
            for _ in range(answered + 1):
                answer = await call.read()
        except (grpc.aio.AioRpcError, asyncio.InvalidStateError):
            return None
        return Passed(channel, call, answer) if answer is not grpc.aio.EOF else None

    async def _is_allowed(self, address: str) -> bool:
        """Whether streams may go there in clear: gRPC takes any address of a name, so all must be allowed."""
        host, _, port = address.rpartition(":")
        loop = asyncio.get_running_loop()
        try:
            found = await loop.getaddrinfo(host.strip("[]"), int(port), type=socket.SOCK_STREAM)
        except OSError:
            return False
        return all(self._peers.links.is_allowed(str(each[4][0])) for each in found)

    async def close(self) -> None:
        for channel in self._channels.values():
            await channel.close()
        self._channels.clear()
