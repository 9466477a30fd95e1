"""The gRPC server that Envoy asks: `envoy.service.ext_proc.v3.ExternalProcessor`, and gRPC's health check."""

import asyncio
import contextlib
import logging
from collections.abc import Coroutine
from typing import Any, Final

from google.protobuf.message import DecodeError

from gateway.config.server import split_listen
from gateway.server.listening import BACKLOG, listening_sockets
from gateway.server.picker.calls import INTERNAL, OK, RESOURCE_EXHAUSTED, UNIMPLEMENTED, Call, CallError
from gateway.server.picker.hpack import Fields
from gateway.server.picker.http2 import Http2Connection
from gateway.server.picker.stream import Picking, Stream
from gateway.upstream.keepalive import keep_alive
from gateway.upstream.moments import Run

_log = logging.getLogger(__name__)
_PROCESS: Final = b"/envoy.service.ext_proc.v3.ExternalProcessor/Process"
_CHECK: Final = b"/grpc.health.v1.Health/Check"
_SERVING: Final = b"\x08\x01"
"""`HealthCheckResponse` with the status SERVING."""
_NOT_SERVING: Final = b"\x08\x02"


class PickerServer:
    def __init__(self, picking: Picking) -> None:
        self._picking = picking
        self._is_serving = True
        self.max_streams = picking.config.max_streams
        self.stream_count = 0
        self._server: list[asyncio.Server] = []
        self._connections: set[Http2Connection] = set()
        self._is_empty = asyncio.Event()
        self._is_empty.set()

    async def start(self) -> int:
        """The port. Raises OSError if the address cannot be bound."""
        loop = asyncio.get_running_loop()
        sockets = await listening_sockets(*split_listen(self._picking.config.listen))
        for each in sockets:
            self._server.append(
                await loop.create_server(lambda: Http2Connection(self), sock=each, backlog=BACKLOG)
            )
        port: int = sockets[0].getsockname()[1]
        return port

    def retire(self) -> None:
        """Health checks fail from now on; whoever asks is served."""
        self._is_serving = False

    async def stop(self, grace_s: float) -> None:
        """No more streams; those that run may end within the time."""
        for server in self._server:
            server.close()
        for connection in list(self._connections):
            connection.leave()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(grace_s):
                await self._is_empty.wait()
        for connection in list(self._connections):
            connection.transport.abort()
        await self._is_empty.wait()

    # --- for connections -------------------------------------------------------------------------

    def connected(self, connection: Http2Connection) -> bool:
        limits = self._picking.limits
        self._connections.add(connection)
        self._is_empty.clear()
        keep_alive(connection.transport, idle_s=limits.tcp_keepalive_s)
        return len(self._connections) <= limits.max_connections

    def disconnected(self, connection: Http2Connection) -> None:
        self._connections.discard(connection)
        if not self._connections:
            self._is_empty.set()

    def called(self, call: Call, fields: Fields) -> None:
        path = next((value for name, value in fields if name == b":path"), b"")
        if path == _PROCESS and self.stream_count < self.max_streams:
            self._answer(call, self._process(call))
        elif path == _CHECK:
            self._answer(call, self._check(call))
        elif path == _PROCESS:
            call.end(RESOURCE_EXHAUSTED, "picker.max_streams are open")
        else:
            call.end(UNIMPLEMENTED, "no such method")

    def _answer(self, call: Call, work: Coroutine[Any, Any, None]) -> None:
        async def answer() -> None:
            code, why = OK, ""
            try:
                await work
            except CallError as error:
                code, why = error.code, str(error)
            except DecodeError:
                code, why = INTERNAL, "a message that cannot be read"
            except Exception:  # noqa: BLE001 - a bug of ours costs one call, never the process
                _log.exception("a call failed inside the picker")
                code = INTERNAL
            call.on_left = _nothing
            call.end(code, why)

        run = Run(answer(), _nothing)
        call.on_left = run.cancel
        run.go_on()

    async def _process(self, call: Call) -> None:
        self.stream_count += 1
        try:
            stream = Stream(self._picking, call.peer, call.write)
            call.on_size = stream.is_to_come
            await stream.run(call.read)
        finally:
            self.stream_count -= 1

    async def _check(self, call: Call) -> None:
        await call.read()
        call.write(_SERVING if self._is_serving else _NOT_SERVING)


def _nothing() -> None:
    pass
