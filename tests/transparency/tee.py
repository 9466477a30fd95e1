"""A TCP hop between the gateway and a backend that copies bytes and keeps them.

What the backend really sent and what the client really got can then be compared for the same
exchange, byte for byte: no two answers need to be alike.
"""

import socket
import threading
from types import TracebackType
from typing import Self

_READ_BYTES = 1 << 16


class Tee:
    """Listens on `port`; forwards to the backend. One exchange at a time is kept apart by `take`."""

    def __init__(self, backend_port: int) -> None:
        self._backend_port = backend_port
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._listener.getsockname()[1]
        self._lock = threading.Lock()
        self._to_backend = bytearray()
        self._from_backend = bytearray()
        self._sockets: list[socket.socket] = []

    def __enter__(self) -> Self:
        threading.Thread(target=self._accept, daemon=True).start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._listener.close()
        for each in self._sockets:
            each.close()

    def take(self) -> tuple[bytes, bytes]:
        """What went to the backend and what came from it since the last call."""
        with self._lock:
            taken = bytes(self._to_backend), bytes(self._from_backend)
            self._to_backend.clear()
            self._from_backend.clear()
        return taken

    def _accept(self) -> None:
        while True:
            try:
                client, _ = self._listener.accept()
            except OSError:  # closed
                return
            backend = socket.create_connection(("127.0.0.1", self._backend_port))
            self._sockets += (client, backend)
            for source, target, kept in (
                (client, backend, self._to_backend),
                (backend, client, self._from_backend),
            ):
                threading.Thread(target=self._copy, args=(source, target, kept), daemon=True).start()

    def _copy(self, source: socket.socket, target: socket.socket, kept: bytearray) -> None:
        try:
            while data := source.recv(_READ_BYTES):
                with self._lock:
                    kept += data
                target.sendall(data)
            target.shutdown(socket.SHUT_WR)
        except OSError:  # either side is gone; the other learns it
            source.close()
            target.close()
