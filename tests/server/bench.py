"""A bench for the server: a real gateway between raw sockets.

`Backend` is a scripted replica: it sends exactly the bytes that a test prescribes, late, cut or reset.
`Client` writes and reads exact bytes. `Bench.finish` checks that the books balance: whatever a test
did, nothing of it may be left in the gateway.
"""

import asyncio
import contextlib
import json
import logging
import socket
import struct
from collections.abc import Awaitable, Callable
from typing import Any

from gateway.config import Config
from gateway.config.load import load_config
from gateway.server.app import Gateway

PATIENCE_S = 10.0
"""For things that happen within milliseconds on an idle machine."""

CHAT = b'{"model":"m","messages":[{"role":"user","content":"hi"}]}'
CHAT_ANSWER = json.dumps(
    {
        "id": "chatcmpl-1",
        "object": "chat.completion",
        "choices": [
            {"index": 0, "message": {"role": "assistant", "content": "hello"}, "finish_reason": "stop"}
        ],
        "usage": {"prompt_tokens": 3, "completion_tokens": 1},
    }
).encode()
DELTA = b'data: {"choices":[{"index":0,"delta":{"content":"hello"}}]}\n\n'
DONE = b"data: [DONE]\n\n"
STREAM_HEAD = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n"

Headers = list[tuple[bytes, bytes]]


def chunk(data: bytes) -> bytes:
    return b"%x\r\n%s\r\n" % (len(data), data)


def answer(body: bytes = CHAT_ANSWER, status: bytes = b"200 OK", headers: bytes = b"") -> bytes:
    head = b"HTTP/1.1 %s\r\nContent-Type: application/json\r\n" % status
    return b"%s%sContent-Length: %d\r\n\r\n%s" % (head, headers, len(body), body)


def post(body: bytes = CHAT, path: bytes = b"/v1/chat/completions", headers: bytes = b"") -> bytes:
    head = b"POST %s HTTP/1.1\r\nHost: gw\r\nContent-Type: application/json\r\n" % path
    return b"%s%sContent-Length: %d\r\n\r\n%s" % (head, headers, len(body), body)


def get(path: bytes, headers: bytes = b"") -> bytes:
    return b"GET %s HTTP/1.1\r\nHost: gw\r\n%s\r\n" % (path, headers)


def bearer(key: str) -> bytes:
    return b"Authorization: Bearer %s\r\n" % key.encode()


def listing(*models: str) -> bytes:
    return json.dumps({"object": "list", "data": [{"id": m, "object": "model"} for m in models]}).encode()


def completion(message: dict[str, Any] | None = None) -> bytes:
    message = message or {"role": "assistant", "content": "Yes."}
    finish = "tool_calls" if message.get("tool_calls") else "stop"
    choice = {"index": 0, "message": message, "finish_reason": finish}
    usage = {"prompt_tokens": 90, "completion_tokens": 10}
    return answer(json.dumps({"id": "chatcmpl-1", "choices": [choice], "usage": usage}).encode())


class Message:
    """A request or response as it was read."""

    def __init__(self, head: bytes) -> None:
        self.head = head
        first, *lines = head.removesuffix(b"\r\n\r\n").split(b"\r\n")
        self.first_line = first
        self.headers: Headers = []
        for line in lines:
            name, _, value = line.partition(b":")
            self.headers.append((name, value.strip()))
        self.body = b""
        self.is_whole = True
        """For a response: its framing says that nothing is missing."""

    def all(self, name: bytes) -> list[bytes]:
        return [value for key, value in self.headers if key.lower() == name.lower()]

    def get(self, name: bytes) -> bytes | None:
        return next(iter(self.all(name)), None)

    @property
    def target(self) -> bytes:
        return self.first_line.split(b" ")[1]

    @property
    def status(self) -> int:
        return int(self.first_line.split(b" ")[1])

    def json(self) -> Any:
        return json.loads(self.body)


def reset(writer: asyncio.StreamWriter) -> None:
    if (sock := writer.transport.get_extra_info("socket")) is not None:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    writer.transport.abort()


async def eventually(is_true: Callable[[], Any], what: str = "it never came to pass") -> None:
    loop = asyncio.get_running_loop()
    deadline = loop.time() + PATIENCE_S
    while not is_true():
        assert loop.time() < deadline, what
        await asyncio.sleep(0.005)


class Exchange:
    """One request at the backend, and the means to answer it."""

    def __init__(
        self, request: Message, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, number: int
    ) -> None:
        self.request = request
        self.reader = reader
        self.writer = writer
        self.number = number
        self.is_closed = False

    async def send(self, data: bytes) -> None:
        self.writer.write(data)
        await self.writer.drain()

    def close(self) -> None:
        self.is_closed = True
        self.writer.close()

    def reset(self) -> None:
        self.is_closed = True
        reset(self.writer)

    async def until_left(self) -> None:
        self.is_closed = True
        with contextlib.suppress(OSError):
            while await self.reader.read(65536):
                pass


Script = Callable[[Exchange], Awaitable[None]]


def sends(data: bytes, *, then: str = "") -> Script:
    """A script that sends these bytes, and then closes, resets or hangs."""

    async def script(exchange: Exchange) -> None:
        await exchange.send(data)
        if then == "close":
            exchange.close()
        elif then == "reset":
            await asyncio.sleep(0.05)  # so that what was sent is read before the reset
            exchange.reset()
        elif then == "hang":
            await exchange.until_left()

    return script


def pauses(first: bytes, goes_on: asyncio.Event, rest: bytes) -> Script:
    """A script that sends the first part at once, and the rest when it may."""

    async def script(exchange: Exchange) -> None:
        await exchange.send(first)
        await goes_on.wait()
        await exchange.send(rest)

    return script


def hangs(left: asyncio.Event, first: bytes = b"") -> Script:
    """A script that sends this and tells when the gateway has left."""

    async def script(exchange: Exchange) -> None:
        await exchange.send(first)
        await exchange.until_left()
        left.set()
        exchange.close()

    return script


class Backend:
    """A replica on a real socket. Health checks are answered; every other request runs `script`."""

    def __init__(self) -> None:
        self.script: Script = sends(answer())
        self.models = json.dumps({"object": "list", "data": [{"id": "m", "object": "model"}]}).encode()
        self.version = b'{"version":"0.30.0"}'
        self.metrics = b""
        self.kv: bytes | None = None
        self.seen: list[Message] = []
        self.reads_bodies = True
        """If not, scripts run as soon as the head is there."""
        self.connections = 0
        self.host, self.port = "127.0.0.1", 0
        self._writers: set[asyncio.StreamWriter] = set()
        self._server: asyncio.Server | None = None
        self._tls: Any = None

    async def open(self, tls: Any = None) -> None:
        self._tls = tls
        self._server = await asyncio.start_server(self._serve, self.host, self.port, ssl=tls, limit=1 << 26)
        self.port = self._server.sockets[0].getsockname()[1]

    @property
    def url(self) -> str:
        return f"{'https' if self._tls else 'http'}://localhost:{self.port}"

    async def close(self) -> None:
        """From now on connections are refused; open ones are closed."""
        assert self._server is not None
        self._server.close()
        for writer in tuple(self._writers):
            writer.transport.abort()
        await eventually(lambda: not self._writers)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._writers.add(writer)
        number = 0
        try:
            while True:
                request = Message(await reader.readuntil(b"\r\n\r\n"))
                is_check = await self._answer_check(request, writer)
                if is_check:
                    continue
                if not number:
                    self.connections += 1
                    number = self.connections
                if self.reads_bodies:
                    request.body = await reader.readexactly(int(request.get(b"content-length") or 0))
                self.seen.append(request)
                exchange = Exchange(request, reader, writer, number)
                await self.script(exchange)
                if exchange.is_closed:
                    break
        except (OSError, EOFError, RuntimeError):  # the last is uvloop's, for a closed transport
            pass
        finally:
            self._writers.discard(writer)
            with contextlib.suppress(OSError, RuntimeError):
                writer.close()

    async def _answer_check(self, request: Message, writer: asyncio.StreamWriter) -> bool:
        if not (request.get(b"user-agent") or b"").startswith(b"Python/"):
            return False
        bodies = {
            b"/health": b"",
            b"/version": self.version,
            b"/v1/models": self.models,
            b"/metrics": self.metrics,
            b"/turnpike/kv": self.kv,
        }
        body = bodies.get(request.target)
        writer.write(answer(body) if body is not None else answer(b"", status=b"404 Not Found"))
        return True


class Client:
    """A client on a real socket."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader = reader
        self.writer = writer

    def send(self, data: bytes) -> None:
        self.writer.write(data)

    async def receive(self, *, is_head: bool = False) -> Message:
        """One response. `is_whole` is False if it was cut off, cleanly or not."""
        async with asyncio.timeout(PATIENCE_S):
            response = Message(await self.reader.readuntil(b"\r\n\r\n"))
            if is_head or response.status in (204, 304) or response.status < 200:
                return response
            try:
                await self._receive_body(response)
            except (OSError, EOFError):
                response.is_whole = False
            return response

    async def _receive_body(self, response: Message) -> None:
        if response.get(b"transfer-encoding") is not None:
            while True:
                size = int(await self.reader.readuntil(b"\r\n"), 16)
                data = await self.reader.readexactly(size + 2)
                if not size:
                    return
                response.body += data[:-2]
        elif (length := response.get(b"content-length")) is not None:
            response.body = await self.reader.readexactly(int(length))
        else:
            response.body = await self.reader.read()

    async def ask(self, data: bytes) -> Message:
        self.send(data)
        return await self.receive(is_head=data.startswith(b"HEAD "))

    async def rest(self) -> tuple[bytes, str]:
        """Everything up to the end of the connection, and how it ended: `eof` or `reset`."""
        data = b""
        async with asyncio.timeout(PATIENCE_S):
            try:
                while piece := await self.reader.read(1 << 16):
                    data += piece
            except ConnectionResetError:
                return data, "reset"
        return data, "eof"

    def close(self) -> None:
        self.writer.close()

    def reset(self) -> None:
        reset(self.writer)


class _LoudLogs(logging.Handler):
    def __init__(self) -> None:
        super().__init__(logging.ERROR)
        self.lines: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.lines.append(self.format(record))


class Bench:
    """Backends, a gateway in front of them, and clients."""

    is_picker = False

    def __init__(self) -> None:
        self.backends: list[Backend] = []
        self.gateway: Gateway
        self._clients: list[Client] = []
        self._tasks_before = asyncio.all_tasks()
        self._logs = _LoudLogs()
        self._complaints: list[dict[str, Any]] = []
        self.may_log_errors = False
        self.settings: dict[str, Any] = {}

    @property
    def backend(self) -> Backend:
        return self.backends[0]

    async def start(
        self,
        *,
        replicas: int = 1,
        pools: list[dict[str, Any]] | None = None,
        environ: dict[str, str] | None = None,
        backend_tls: Any = None,
        backend: Callable[[], Backend] = Backend,
        script: Script | None = None,
        fleet_secret: bytes | None = None,
        **settings: Any,
    ) -> None:
        """`settings`: sections of the configuration, as dictionaries; `limits` is `server.limits`. `backend`:
        makes one. `script`: what all backends play.

        `pools` may hold `backends`, a number, where the configuration has `replicas`, and their `roles`.
        """
        logging.getLogger().addHandler(self._logs)
        asyncio.get_running_loop().set_exception_handler(lambda _, context: self._complaints.append(context))
        shapes = pools if pools is not None else [{"backends": replicas}]
        configured = [await self._open_pool(shape, backend_tls, backend) for shape in shapes]
        if script is not None:
            for opened in self.backends:
                opened.script = script
        server = {
            "listen": "127.0.0.1:0",
            "control": "127.0.0.1:0",
            "control_hosts": ["gw", "c"],
            "limits": settings.pop("limits", {}),
            **settings.pop("server", {}),
        }
        # What is not asked for by a test comes seldom enough to stay out of its way.
        upstream = {"health_period_s": 60.0, **settings.pop("upstream", {})}
        core = {"no_replica_wait_s": 0, **settings.pop("core", {})}
        tree = {"pools": configured, "server": server, "upstream": upstream, "core": core, **settings}
        self.settings = tree
        try:
            read, is_picker = self._read, self.is_picker
            self.gateway = Gateway(
                read(None), environ or {}, read=read, fleet_secret=fleet_secret, is_picker=is_picker
            )
            await self.gateway.start()
            await eventually(
                lambda: (
                    len(states := list(self.brain.fleet)) == len(self.backends)
                    and all(s.is_up for s in states)
                ),
                "the replicas never came up",
            )
        except BaseException:  # uvloop's close never returns while a server is open and its warning an error
            await self._close()
            raise

    def _read(self, text: str | None) -> Config:
        """`settings` are this gateway's file: what they are changed to counts when they are read again."""
        return load_config(None, {}, {} if text is not None else self.settings, text=text)

    async def _open_pool(
        self, shape: dict[str, Any], tls: Any, make: Callable[[], Backend]
    ) -> dict[str, Any]:
        shape = dict(shape)
        opened = [make() for _ in range(shape.pop("backends"))]
        listing = shape.pop("listing", None)
        for backend in opened:
            backend.models = listing or backend.models
            await backend.open(tls)
        self.backends += opened
        extra = shape.pop("replica", {})
        roles = shape.pop("roles", ["both"] * len(opened))
        replicas = [
            {"url": backend.url, "role": role, **extra} for backend, role in zip(opened, roles, strict=True)
        ]
        return {**shape, "replicas": replicas}

    async def another(self) -> Backend:
        """A backend that the gateway has not been told of."""
        backend = Backend()
        await backend.open()
        self.backends.append(backend)
        return backend

    @property
    def brain(self) -> Any:
        return self.gateway.driver.coordinator

    async def connect(self, **options: Any) -> Client:
        reader, writer = await asyncio.open_connection(
            "127.0.0.1", self.gateway.listener.port, limit=1 << 24, **options
        )
        client = Client(reader, writer)
        self._clients.append(client)
        return client

    async def send(self, request: bytes) -> Client:
        """On a connection of its own, without waiting for the answer."""
        client = await self.connect()
        client.send(request)
        return client

    async def arrive(self, request: bytes) -> Client:
        before = sum(len(backend.seen) for backend in self.backends)
        client = await self.send(request)
        await eventually(lambda: sum(len(backend.seen) for backend in self.backends) > before)
        return client

    async def ask(self, data: bytes) -> Message:
        client = await self.connect()
        try:
            return await client.ask(data)
        finally:
            client.close()

    async def control(self, data: bytes) -> Message:
        reader, writer = await asyncio.open_connection("127.0.0.1", self.gateway.control_port)
        client = Client(reader, writer)
        try:
            return await client.ask(data)
        finally:
            client.close()

    def books(self) -> dict[str, int]:
        """What is going on in the gateway; all zero when nothing is."""
        gateway, brain = self.gateway, self.brain
        replicas, mcp = gateway.replica_watch.replicas, gateway.serving.mcp
        tunnels = gateway.telemetry.metrics.tunnels
        return {
            "tickets": len(gateway.driver.tickets),
            "live requests": len(brain.live),
            "waiting": len(brain.waiting_room),
            "running on replicas": sum(state.running + state.light for state in brain.fleet),
            "tunnels": tunnels["opened"] - tunnels["closed"],
            "live turns": sum(s.live_turns for s in brain.sessions.sessions.newest_first()),
            "busy upstream connections": sum(r.busy_count for r in replicas.values()),
            "MCP answers": len(mcp._passages) if mcp is not None else 0,
            "MCP calls": len(mcp.calls._running) - len(mcp.calls._suspended) if mcp is not None else 0,
            "buffered bytes": gateway.listener.budget.used,
            "streams of Envoy": gateway._picker.stream_count if gateway._picker is not None else 0,
            "client connections": gateway.listener.connection_count,
        }

    def is_quiet(self) -> bool:
        return not any(count for what, count in self.books().items() if what != "client connections")

    async def _close(self) -> None:
        if hasattr(self, "gateway"):
            await self.gateway.stop()
        for backend in self.backends:
            if backend._server is not None:
                await backend.close()
        logging.getLogger().removeHandler(self._logs)

    async def finish(self, *, is_last: bool = True) -> None:
        """Lets everybody go, and checks that nothing is left. The last of several was started first."""
        for client in self._clients:
            client.close()
        try:
            await eventually(lambda: not any(self.books().values()))
        except AssertionError:
            raise AssertionError(f"the books do not balance: {self.books()}") from None
        finally:
            await self._close()
        telemetry = getattr(self.gateway, "telemetry", None)  # a picker has none
        assert telemetry is None or telemetry.contents is None or not telemetry.contents.bytes
        if not is_last:
            return
        expected = {*self._tasks_before, asyncio.current_task()}
        try:
            await eventually(lambda: asyncio.all_tasks() <= expected)
        except AssertionError:
            raise AssertionError(f"tasks are left: {asyncio.all_tasks() - expected}") from None
        assert not self._complaints, self._complaints
        assert self.may_log_errors or not self._logs.lines, self._logs.lines
