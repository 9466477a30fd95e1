"""An engine for the soak: real HTTP and SSE in four protocols, no model, and faults by chance.

    python -m benchmarks.soak.engine PORT SEED

serves on that port until it is ended. Most requests are answered as vLLM would; a few meet a reset before
or in the middle of an answer, an error status, bytes that are not HTTP, a length that is wrong, JSON where
a stream was asked for, or no answer at all. A request whose model is `big` gets an answer of megabytes.
"""

import asyncio
import contextlib
import itertools
import json
import random
import socket
import struct
import sys
from collections.abc import Iterator
from typing import Any, Final

from benchmarks.answers import JSON_HEAD, STREAM_HEAD, Call, chunk, compact, stream, whole
from benchmarks.dialects import DIALECTS

MODELS: Final = ("agent", "big")
PLAIN: Final = "/v1/completions"
_PROTOCOLS: Final = {each.path.decode(): each.name for each in DIALECTS}
_WORDS: Final = (
    "the parser gives back bytes of an unfinished request so run its tests first then look again".split()
)
_CANNED: Final = "Done. Is there anything else that I can help you with today?"
_BIG_PIECE: Final = "lorem ipsum " * 400
_BIG_PIECES: Final = 800
_PAGES: Final[dict[str, Any]] = {
    "/health": {},
    "/version": {"version": "0.32.0"},
    "/v1/models": {"object": "list", "data": [{"id": each, "object": "model"} for each in MODELS]},
}
FAULTS: Final = {
    "reset_before": 0.006, "reset_within": 0.006, "status_500": 0.006, "status_429": 0.004, "garbage": 0.003,
    "short": 0.003, "no_stream": 0.006, "silent": 0.002, "stalls": 0.002,
}  # fmt: skip


class Answer:
    """What it says, and the events or the body in which a protocol says it."""

    def __init__(self, path: str, body: dict[str, Any], dice: random.Random, number: int) -> None:
        self._path = path
        self.is_big = body.get("model") == "big"
        is_canned = dice.random() < 0.1
        self.pieces = [" ".join(dice.choices(_WORDS, k=6)) + " " for _ in range(6)]
        if is_canned:
            self.pieces = [_CANNED]
        if self.is_big:
            self.pieces = [_BIG_PIECE] * _BIG_PIECES
        self.calls: list[Call] = []
        tools = [each for each in body.get("tools") or () if isinstance(each, dict)]
        if tools and not is_canned and dice.random() < 0.8:
            for at in range(dice.choice((1, 1, 2))):
                tool = dice.choice(tools)
                name = str(tool.get("name") or tool["function"]["name"])
                self.calls.append((f"call_{number:x}{dice.getrandbits(64):016x}{at}", name, ["{}"]))

    def events(self) -> Iterator[bytes]:
        if self._path != PLAIN:
            return stream(_PROTOCOLS[self._path], self.pieces, self.calls)
        made = (b"data: " + compact(self._plain(piece)) + b"\n\n" for piece in self.pieces)
        return itertools.chain(made, [b"data: [DONE]\n\n"])

    def whole(self) -> dict[str, Any]:
        if self._path != PLAIN:
            return whole(_PROTOCOLS[self._path], self.pieces, self.calls)
        return self._plain("".join(self.pieces))

    @staticmethod
    def _plain(text: str) -> dict[str, Any]:
        choices = [{"index": 0, "text": text, "finish_reason": "stop"}]
        return {"id": "cmpl-1", "object": "text_completion", "choices": choices}


def _json(value: Any, status: bytes = b"200 OK") -> bytes:
    body = compact(value)
    return (JSON_HEAD % len(body)).replace(b"200 OK", status, 1) + body


class Engine:
    def __init__(self, seed: int) -> None:
        self._dice = random.Random(seed)
        self._numbers = itertools.count(1)

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(OSError, asyncio.IncompleteReadError):
            while await self._serve_one(reader, writer):
                await writer.drain()
        writer.close()

    async def _serve_one(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> bool:
        """False when the connection is to be closed."""
        head = (await reader.readuntil(b"\r\n\r\n")).lower()
        path = head.split(b" ", 2)[1].partition(b"?")[0].decode()
        _, found, length = head.partition(b"\r\ncontent-length:")
        sent = await reader.readexactly(int(length.partition(b"\r\n")[0]) if found else 0)
        if path in _PAGES:
            writer.write(_json(_PAGES[path]))
        elif path == PLAIN or path in _PROTOCOLS:
            try:
                body = json.loads(sent)
                assert isinstance(body, dict)
            except (ValueError, AssertionError, RecursionError):
                writer.write(_json({"error": {"message": "not a JSON object"}}, b"400 Bad Request"))
                return True
            return await self._generate(path, body, writer)
        else:
            writer.write(_json({"detail": "Not Found"}, b"404 Not Found"))
        return True

    async def _generate(self, path: str, body: dict[str, Any], writer: asyncio.StreamWriter) -> bool:
        dice, chance = self._dice, self._dice.random()
        fault = ""
        for name, share in FAULTS.items():
            if not fault and chance < share:
                fault = name
            chance -= share
        answer = Answer(path, body, dice, next(self._numbers))
        await asyncio.sleep(3600.0 if fault == "silent" else dice.uniform(0.005, 0.05))
        if fault in ("reset_before", "silent"):
            return _reset(writer)
        if fault.startswith("status_"):
            reason = b"500 Internal Server Error" if fault == "status_500" else b"429 Too Many Requests"
            writer.write(_json({"error": {"message": fault}}, reason))
            return True
        if fault == "garbage":
            writer.write(dice.randbytes(200))
            return False
        if body.get("stream") is not True or fault in ("no_stream", "short"):
            data = _json(answer.whole())
            writer.write(data[:-7] if fault == "short" else data)
            return fault != "short"
        writer.write(STREAM_HEAD)
        for at, event in enumerate(answer.events()):
            if at == 3 and fault == "reset_within":
                return _reset(writer)
            if at == 3 and fault == "stalls":
                await asyncio.sleep(3600.0)
            writer.write(chunk(event))
            await writer.drain()
            if not answer.is_big:
                await asyncio.sleep(0.004)
        writer.write(b"0\r\n\r\n")
        return True


def _reset(writer: asyncio.StreamWriter) -> bool:
    accepted = writer.get_extra_info("socket")
    accepted.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    writer.transport.abort()
    return False


async def _main(port: int, seed: int) -> None:
    engine = Engine(seed)
    server = await asyncio.start_server(engine.serve, "127.0.0.1", port, backlog=1024, limit=1 << 24)
    await server.serve_forever()


if __name__ == "__main__":
    with contextlib.suppress(KeyboardInterrupt):
        asyncio.run(_main(int(sys.argv[1]), int(sys.argv[2])))
