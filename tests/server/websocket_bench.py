"""A backend that speaks Responses over WebSocket, by aiohttp, and clients of it."""

import asyncio
import json
from collections.abc import Awaitable, Callable
from typing import Any, cast

import aiohttp
from aiohttp import WSMsgType, web

from gateway.domain import records as rec
from gateway.wire.websocket_frames import Opcode, accepted, frame
from tests.server.bench import Backend, Bench, Exchange

CALL = {"type": "function_call", "id": "fc_1", "call_id": "call_5b1f09d2c3a84e77", "name": "price"}
RESULT = {"type": "function_call_output", "call_id": CALL["call_id"], "output": "12"}
NOT_FOUND = {
    "type": "error",
    "status": 400,
    "error": {
        "type": "invalid_request_error",
        "code": "previous_response_not_found",
        "message": "Previous response not found.",
        "param": "previous_response_id",
    },
}

Socket = web.WebSocketResponse
Script = Callable[["Speaker", Socket, Any], Awaitable[None]]


def create(text: str = "hi", **more: Any) -> dict[str, Any]:
    said = {"type": "message", "role": "user", "content": [{"type": "input_text", "text": text}]}
    return {"type": "response.create", "model": "m", "store": False, "input": [said], **more}


def events(response_id: str, *items: Any, text: str = "", stream: str | None = None) -> list[dict[str, Any]]:
    """Of one response that says this and makes these calls."""
    output: list[Any] = [*items]
    if text:
        part = {"type": "output_text", "text": text, "annotations": []}
        output.append({"type": "message", "id": f"m{response_id}", "role": "assistant", "content": [part]})
    base = {"id": response_id, "object": "response", "model": "m"}
    usage = {
        "input_tokens": 7,
        "output_tokens": 3,
        "total_tokens": 10,
        "input_tokens_details": {"cached_tokens": 2},
    }
    told: list[dict[str, Any]] = [
        {"type": "response.created", "response": {**base, "status": "in_progress", "output": []}}
    ]
    for at, item in enumerate(output):
        told.append({"type": "response.output_item.added", "output_index": at, "item": item})
        if item["type"] == "message":
            told.append({"type": "response.output_text.delta", "output_index": at, "delta": text})
        told.append({"type": "response.output_item.done", "output_index": at, "item": item})
    whole = {**base, "status": "completed", "output": output, "usage": usage}
    told.append({"type": "response.completed", "response": whole})
    return [{**each, "stream_id": stream} if stream else each for each in told]


async def converses(speaker: "Speaker", socket: Socket, asked: Any) -> None:
    """The first of a conversation makes a call; who brings its result gets an answer."""
    before = asked.get("previous_response_id")
    if before is not None and before not in speaker.said:
        await socket.send_str(json.dumps(NOT_FOUND))
        return
    name = f"resp_{len(speaker.asked)}"
    speaker.said.add(name)
    stream = asked.get("stream_id")
    call = {**CALL, "arguments": '{"item":"pear"}'}
    told = events(name, text="Twelve.", stream=stream) if before else events(name, call, stream=stream)
    for event in told:
        await socket.send_str(json.dumps(event))


class Speaker(Backend):
    """A replica. `asked` holds its clients' messages, as they came."""

    def __init__(self) -> None:
        super().__init__()
        self.turn: Script = converses
        self.handshakes: list[web.Request] = []
        self.asked: list[Any] = []
        self.raw: list[aiohttp.WSMessage] = []
        self.said: set[str] = set()
        """Responses that may be gone on from."""
        self.sockets: list[Socket] = []
        self.status = 101
        """What it answers to a handshake."""
        self.headers: dict[str, str] = {}
        self._runner: web.AppRunner | None = None

    def speaks_at(self, sign: asyncio.Event) -> None:
        """From now on nothing is said of a turn before `sign`."""

        async def waits(speaker: Speaker, socket: Socket, asked: Any) -> None:
            await sign.wait()
            for event in events(f"resp_{len(speaker.asked)}", text="x", stream=asked.get("stream_id")):
                await socket.send_json(event)

        self.turn = waits

    async def open(self, tls: Any = None) -> None:
        self._tls = tls
        app = web.Application()
        for path, body in {"/health": b"", "/version": self.version, "/v1/models": self.models}.items():
            app.router.add_get(path, _answers(body))
        app.router.add_get("/v1/responses", self._handshake)
        self._runner = web.AppRunner(app, access_log=None, shutdown_timeout=0.1)
        await self._runner.setup()
        await web.TCPSite(self._runner, "127.0.0.1", self.port, ssl_context=tls).start()
        self.port = self._runner.addresses[0][1]
        self._server = cast(Any, self._runner.server)  # that there is one says that it is open

    async def close(self) -> None:
        assert self._runner is not None
        await self._runner.cleanup()
        self._server = None

    async def _handshake(self, request: web.Request) -> web.StreamResponse:
        self.handshakes.append(request)
        if self.status != 101:
            return web.json_response({"error": {"message": "no"}}, status=self.status)
        socket = Socket(compress=True, max_msg_size=0, autoping=True, heartbeat=None)
        socket.headers.update(self.headers)
        await socket.prepare(request)
        self.sockets.append(socket)
        async for message in socket:
            self.raw.append(message)
            if message.type is WSMsgType.TEXT:
                asked = json.loads(message.data)
                self.asked.append(asked)
                if asked.get("type") == "response.create":
                    await self.turn(self, socket, asked)
                else:
                    await socket.send_str(json.dumps({"type": "heard", "what": asked}))
            elif message.type is WSMsgType.BINARY:
                await socket.send_bytes(message.data)
        return socket


def _answers(body: bytes) -> Callable[[web.Request], Awaitable[web.Response]]:
    async def answer(_: web.Request) -> web.Response:
        return web.Response(body=body, content_type="application/json")

    return answer


class Caller:
    """A client: aiohttp's."""

    def __init__(self, socket: aiohttp.ClientWebSocketResponse) -> None:
        self.socket = socket

    async def ask(self, **more: Any) -> list[Any]:
        """One turn: its events."""
        await self.socket.send_json(create(**more))
        return await self.turn()

    async def turn(self, stream: str | None = None) -> list[Any]:
        """Events up to the end of a response; of one stream, if that is said."""
        found: list[Any] = []
        while not found or found[-1]["type"] not in ("response.completed", "error"):
            event = await self.socket.receive_json(timeout=10)
            if stream is None or event.get("stream_id") == stream:
                found.append(event)
        return found

    async def closed(self) -> int:
        """The code of its close."""
        while True:
            message = await self.socket.receive(timeout=10)
            if message.type in (WSMsgType.CLOSE, WSMsgType.CLOSED, WSMsgType.CLOSING, WSMsgType.ERROR):
                assert self.socket.close_code is not None
                return self.socket.close_code


def records_of(bench: Bench) -> list[rec.Record]:
    """Filled while the test runs."""
    found: list[rec.Record] = []
    inner = bench.gateway.driver._on_records

    def on_records(records: list[rec.Record]) -> None:
        found.extend(records)
        inner(records)

    bench.gateway.driver._on_records = on_records
    return found


async def agree(exchange: Exchange) -> None:
    key = exchange.request.get(b"sec-websocket-key")
    assert key is not None
    await exchange.send(
        b"HTTP/1.1 101 Switching Protocols\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
        b"Sec-WebSocket-Accept: %s\r\n\r\n" % accepted(key)
    )


def agrees(*frames: bytes, then: str = "hang") -> Any:
    """A script of a raw backend: agrees, waits for a client's frame, sends these bytes, and then `close`s,
    `reset`s or `hang`s."""

    async def script(exchange: Exchange) -> None:
        await agree(exchange)
        await exchange.reader.read(1 << 16)
        for each in frames:
            await exchange.send(each)
        if then == "hang":
            await exchange.until_left()
        elif then == "close":
            exchange.close()
        else:
            await asyncio.sleep(0.05)  # so that what was sent is read before the reset
            exchange.reset()

    return script


def text(event: Any) -> bytes:
    return frame(Opcode.TEXT, json.dumps(event).encode())
