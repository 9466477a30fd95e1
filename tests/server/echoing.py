"""A server of gRPC calls that says each message back, on the picker's connections."""

import asyncio

from gateway.server.picker.calls import RESOURCE_EXHAUSTED, UNIMPLEMENTED, Call
from gateway.server.picker.http2 import Http2Connection
from gateway.upstream.moments import Run


class Echo:
    """A server that says each message back; `left` counts clients that went before the end."""

    max_streams = 4

    def __init__(self) -> None:
        self.left = self.running = 0
        self.connections: set[Http2Connection] = set()
        self.seen: list[bytes] = []
        self.limit = 1 << 30
        self.sizes: list[tuple[int, int]] = []
        """That were told, and how many messages had been read then."""

    def connected(self, connection):
        self.connections.add(connection)
        return True

    def disconnected(self, connection):
        self.connections.discard(connection)

    def called(self, call, fields):
        if dict(fields)[b":path"] != b"/echo":
            call.end(UNIMPLEMENTED, "no such method")
            return
        run = Run(self._echo(call), lambda: None)
        call.on_left, call.on_size = run.cancel, self._allow
        run.go_on()

    def _allow(self, size):
        self.sizes.append((size, len(self.seen)))
        if size > self.limit:
            raise ValueError(size)

    async def _echo(self, call: Call):
        self.running += 1
        try:
            while (message := await call.read()) is not None:
                self.seen.append(message)
                call.write(message)
            call.end()
        except asyncio.CancelledError:
            self.left += 1
            raise
        except ValueError as error:
            call.end(RESOURCE_EXHAUSTED, str(error))
        finally:
            self.running -= 1
