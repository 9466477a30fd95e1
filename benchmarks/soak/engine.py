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

MODELS: Final = ("agent", "big")
_WORDS: Final = (
    "the parser gives back bytes of an unfinished request so run its tests first then look again".split()
)
_CANNED: Final = "Done. Is there anything else that I can help you with today?"
_BIG_PIECE: Final = "lorem ipsum " * 400
_BIG_PIECES: Final = 800
_STREAM_HEAD: Final = (
    b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream; charset=utf-8\r\ntransfer-encoding: chunked\r\n\r\n"
)
FAULTS: Final = {
    "reset_before": 0.006, "reset_within": 0.006, "status_500": 0.006, "status_429": 0.004, "garbage": 0.003,
    "short": 0.003, "no_stream": 0.006, "silent": 0.002, "stalls": 0.002,
}  # fmt: skip


class Answer:
    """One answer: what it says, and the events or the body in which a protocol says it."""

    def __init__(self, path: str, body: dict[str, Any], dice: random.Random, number: int) -> None:
        self._path, self._dice = path, dice
        self.model = body.get("model")
        self.id = f"{number:x}{dice.getrandbits(64):016x}"
        is_canned = dice.random() < 0.1
        self.pieces = (
            [_CANNED] if is_canned else [" ".join(dice.choices(_WORDS, k=6)) + " " for _ in range(6)]
        )
        if self.model == "big":
            self.pieces = [_BIG_PIECE] * _BIG_PIECES
        tools = [each for each in body.get("tools") or () if isinstance(each, dict)]
        self.calls: list[tuple[str, str]] = []
        if tools and not is_canned and dice.random() < 0.8:
            for at in range(dice.choice((1, 1, 2))):
                tool = dice.choice(tools)
                self.calls.append((f"call_{self.id}{at}", str(tool.get("name") or tool["function"]["name"])))

    def events(self) -> Iterator[bytes]:
        make = {"/v1/chat/completions": self._chat, "/v1/completions": self._plain,
                "/v1/responses": self._responses, "/v1/messages": self._messages}[self._path]  # fmt: skip
        return make()

    def whole(self) -> dict[str, Any]:
        text, usage = (
            "".join(self.pieces),
            {"prompt_tokens": 900, "completion_tokens": 40, "total_tokens": 940},
        )
        if self._path == "/v1/chat/completions":
            message = {"role": "assistant", "content": text, "tool_calls": self._chat_calls()}
            finish = "tool_calls" if self.calls else "stop"
            choices = [{"index": 0, "message": message, "finish_reason": finish}]
            return {"id": self.id, "object": "chat.completion", "choices": choices, "usage": usage}
        if self._path == "/v1/completions":
            choices = [{"index": 0, "text": text, "finish_reason": "stop"}]
            return {"id": self.id, "object": "text_completion", "choices": choices, "usage": usage}
        if self._path == "/v1/messages":
            uses = [{"type": "tool_use", "id": call, "name": name, "input": {}} for call, name in self.calls]
            return {"id": self.id, "type": "message", "role": "assistant",
                    "content": [{"type": "text", "text": text}, *uses],
                    "stop_reason": "tool_use" if uses else "end_turn",
                    "usage": {"input_tokens": 900, "output_tokens": 40}}  # fmt: skip
        return self._response("completed")

    def _chat_calls(self) -> list[dict[str, Any]]:
        return [{"id": call, "type": "function", "function": {"name": name, "arguments": "{}"}}
                for call, name in self.calls]  # fmt: skip

    def _chat(self) -> Iterator[bytes]:
        def chunk(delta: dict[str, Any], finish: str | None = None, **more: Any) -> bytes:
            choice = {"index": 0, "delta": delta, "finish_reason": finish}
            return _event({"id": self.id, "object": "chat.completion.chunk", "choices": [choice], **more})

        yield chunk({"role": "assistant", "content": ""})
        for piece in self.pieces:
            yield chunk({"content": piece})
        for at, call in enumerate(self._chat_calls()):
            yield chunk({"tool_calls": [{"index": at, **call}]})
        yield chunk(
            {}, "tool_calls" if self.calls else "stop", usage={"prompt_tokens": 900, "completion_tokens": 40}
        )
        yield b"data: [DONE]\n\n"

    def _plain(self) -> Iterator[bytes]:
        for piece in self.pieces:
            yield _event({"id": self.id, "choices": [{"index": 0, "text": piece, "finish_reason": None}]})
        yield b"data: [DONE]\n\n"

    def _response(self, status: str) -> dict[str, Any]:
        said = {
            "type": "message",
            "role": "assistant",
            "content": [{"type": "output_text", "text": "".join(self.pieces)}],
        }
        calls = [
            {"type": "function_call", "call_id": call, "name": name, "arguments": "{}"}
            for call, name in self.calls
        ]
        return {"id": f"resp_{self.id}", "object": "response", "status": status, "output": [said, *calls],
                "usage": {"input_tokens": 900, "output_tokens": 40, "total_tokens": 940}}  # fmt: skip

    def _responses(self) -> Iterator[bytes]:
        yield _named({"type": "response.created", "response": self._response("in_progress") | {"output": []}})
        for piece in self.pieces:
            yield _named({"type": "response.output_text.delta", "delta": piece})
        for item in self._response("completed")["output"][1:]:
            yield _named({"type": "response.output_item.done", "item": item})
        yield _named({"type": "response.completed", "response": self._response("completed")})

    def _messages(self) -> Iterator[bytes]:
        message = {"id": self.id, "type": "message", "role": "assistant", "content": [],
                   "usage": {"input_tokens": 900, "output_tokens": 1}}  # fmt: skip
        yield _named({"type": "message_start", "message": message})
        yield _named(
            {"type": "content_block_start", "index": 0, "content_block": {"type": "text", "text": ""}}
        )
        for piece in self.pieces:
            yield _named(
                {"type": "content_block_delta", "index": 0, "delta": {"type": "text_delta", "text": piece}}
            )
        yield _named({"type": "content_block_stop", "index": 0})
        for at, (call, name) in enumerate(self.calls, start=1):
            block = {"type": "tool_use", "id": call, "name": name, "input": {}}
            yield _named({"type": "content_block_start", "index": at, "content_block": block})
            yield _named({"type": "content_block_stop", "index": at})
        reason = "tool_use" if self.calls else "end_turn"
        yield _named(
            {"type": "message_delta", "delta": {"stop_reason": reason}, "usage": {"output_tokens": 40}}
        )
        yield _named({"type": "message_stop"})


def _event(value: dict[str, Any]) -> bytes:
    return b"data: " + json.dumps(value, separators=(",", ":")).encode() + b"\n\n"


def _named(value: dict[str, Any]) -> bytes:
    return f"event: {value['type']}\n".encode() + _event(value)


def _chunk(data: bytes) -> bytes:
    return b"%x\r\n%s\r\n" % (len(data), data)


def _json(status: bytes, value: Any) -> bytes:
    body = json.dumps(value, separators=(",", ":")).encode()
    return b"HTTP/1.1 %s\r\ncontent-type: application/json\r\ncontent-length: %d\r\n\r\n%s" % (
        status,
        len(body),
        body,
    )


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
        head = (await reader.readuntil(b"\r\n\r\n")).split(b"\r\n")
        path = head[0].split(b" ")[1].partition(b"?")[0].decode()
        size = next(
            (int(line.partition(b":")[2]) for line in head if line.lower().startswith(b"content-length:")), 0
        )
        sent = await reader.readexactly(size)
        if path == "/health":
            writer.write(_json(b"200 OK", {}))
        elif path == "/version":
            writer.write(_json(b"200 OK", {"version": "0.32.0"}))
        elif path == "/v1/models":
            writer.write(
                _json(
                    b"200 OK",
                    {"object": "list", "data": [{"id": each, "object": "model"} for each in MODELS]},
                )
            )
        elif path in ("/v1/chat/completions", "/v1/completions", "/v1/responses", "/v1/messages"):
            try:
                body = json.loads(sent)
                assert isinstance(body, dict)
            except (ValueError, AssertionError, RecursionError):
                writer.write(_json(b"400 Bad Request", {"error": {"message": "not a JSON object"}}))
                return True
            return await self._generate(path, body, writer)
        else:
            writer.write(_json(b"404 Not Found", {"detail": "Not Found"}))
        return True

    async def _generate(self, path: str, body: dict[str, Any], writer: asyncio.StreamWriter) -> bool:
        dice, chance = self._dice, self._dice.random()
        fault = ""
        for name, share in FAULTS.items():
            if not fault and chance < share:
                fault = name
            chance -= share
        answer = Answer(path, body, dice, next(self._numbers))
        await asyncio.sleep(dice.uniform(0.005, 0.05))
        if fault in ("reset_before", "silent"):
            if fault == "silent":
                await asyncio.sleep(3600.0)
            return _reset(writer)
        if fault in ("status_500", "status_429"):
            writer.write(
                _json(
                    b"500 Internal Server Error" if fault == "status_500" else b"429 Too Many Requests",
                    {"error": {"message": fault}},
                )
            )
            return True
        if fault == "garbage":
            writer.write(dice.randbytes(200))
            return False
        if body.get("stream") is not True or fault in ("no_stream", "short"):
            whole = _json(b"200 OK", answer.whole())
            writer.write(whole[:-7] if fault == "short" else whole)
            return fault != "short"
        writer.write(_STREAM_HEAD)
        for at, event in enumerate(answer.events()):
            if at == 3 and fault == "reset_within":
                return _reset(writer)
            if at == 3 and fault == "stalls":
                await asyncio.sleep(3600.0)
            writer.write(_chunk(event))
            await writer.drain()
            if answer.model != "big":
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
    print(server.sockets[0].getsockname()[1], flush=True)
    await server.serve_forever()


if __name__ == "__main__":
    with contextlib.suppress(KeyboardInterrupt):
        asyncio.run(_main(int(sys.argv[1]), int(sys.argv[2])))
