"""An engine that says back what it was told: the last item of a conversation is its answer.

    python -m benchmarks.bystander.engine

prints its port and serves until it is ended. `/v1/chat/completions` with `"flood"` in a small body streams
without end.
"""

import asyncio
import contextlib
from typing import Final

import uvloop

_FLOOD: Final = b'data: {"choices":[{"delta":{"content":"' + b"word " * 3000 + b'"}}]}\n\n'
_ITEM: Final = b'{"role":"assistant"'
_MODELS: Final = b'{"object":"list","data":[{"id":"m","object":"model"}]}'
_JSON: Final = b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: %d\r\n\r\n"
_SSE: Final = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n"
_SMALL: Final = 4096


async def _served(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    with contextlib.suppress(ConnectionError, asyncio.IncompleteReadError):
        while True:
            head = (await reader.readuntil(b"\r\n\r\n")).lower()
            _, found, length = head.partition(b"\r\ncontent-length:")
            body = await reader.readexactly(int(length.partition(b"\r\n")[0])) if found else b""
            if b"flood" in body[:_SMALL]:
                await _flood(writer)
            writer.write(_answer(head, body))
            await writer.drain()
    writer.close()


async def _flood(writer: asyncio.StreamWriter) -> None:
    writer.write(_SSE)
    while True:
        writer.write(b"%x\r\n%b\r\n" % (len(_FLOOD), _FLOOD))
        await writer.drain()


def _answer(head: bytes, body: bytes) -> bytes:
    if head.startswith(b"get"):
        said = _MODELS if b"/v1/models" in head else b'{"version":"0.32.0"}'
        return _JSON % len(said) + said
    at = body.rfind(_ITEM) if len(body) > _SMALL else -1
    item = body[at:].rpartition(b"]")[0] if at >= 0 else _ITEM + b',"content":"ok"}'
    if b'"stream":true' in body[:_SMALL]:
        event = b'data: {"choices":[{"delta":%b}]}\n\ndata: [DONE]\n\n' % item
        return _SSE + b"%x\r\n%b\r\n0\r\n\r\n" % (len(event), event)
    said = b'{"id":"x","choices":[{"index":0,"finish_reason":"stop","message":%b}]}' % item
    return _JSON % len(said) + said


async def _main() -> None:
    server = await asyncio.start_server(_served, "127.0.0.1", 0, limit=1 << 20)
    print(server.sockets[0].getsockname()[1], flush=True)
    await asyncio.Event().wait()


if __name__ == "__main__":
    uvloop.run(_main())
