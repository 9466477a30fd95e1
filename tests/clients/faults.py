"""A hop between the gateway and the engines that misbehaves on demand: refuses, or dies in mid-answer.

It reads every request to the model and asks its rule what becomes of it. All else passes as it is.
"""

import asyncio
import json
import re
import socket
import struct
import threading
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from types import TracebackType
from typing import Any, Self

import aiohttp
from aiohttp import hdrs, web
from multidict import CIMultiDict

from demo.hop import HOP_BY_HOP, NEVER_ADD

_RESET_ON_CLOSE = struct.pack("ii", 1, 0)
_CALL_ID = re.compile(r'"(?:tool_call_id|call_id|tool_use_id)":\s*"([^"]+)"')
_START_WITHIN_S = 10.0


@dataclass(frozen=True)
class Refuse:
    """503, and when to come again."""

    retry_after_s: int = 1


@dataclass(frozen=True)
class Cut:
    """So many events of the answer, then a reset; half of an answer that is not a stream."""

    after_events: int = 2


Fate = Refuse | Cut | None


@dataclass(kw_only=True)
class Asked:
    """One request to the model as the backend would have seen it, and what became of it."""

    path: str
    headers: dict[str, str]
    body: dict[str, Any]
    first_call: str | None
    """The oldest tool call id of the conversation, which no other shares; None before there is one."""
    fate: Fate = None


Rule = Callable[[Asked], Fate]


def pass_all(asked: Asked) -> Fate:
    return None


def in_turn(*fates: Fate) -> Rule:
    """These for the next requests, one each; what comes later passes."""
    left = iter(fates)
    return lambda asked: next(left, None)


def once_in_each_conversation(fate: Fate) -> Rule:
    """For the first request that brings a tool's result, in every conversation anew."""
    met: set[str] = set()

    def rule(asked: Asked) -> Fate:
        if asked.first_call is None or asked.first_call in met:
            return None
        met.add(asked.first_call)
        return fate

    return rule


class Faults:
    """Listens once for each backend, in a thread of its own; a context manager."""

    def __init__(self, backends: Iterable[str]) -> None:
        self._backends = tuple(backends)
        self.urls: list[str] = []
        self.rule: Rule = pass_all
        self.asked: list[Asked] = []
        self._is_up = threading.Event()
        self._thread = threading.Thread(target=lambda: asyncio.run(self._serve()), daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        assert self._is_up.wait(_START_WITHIN_S)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._loop.call_soon_threadsafe(self._over.set)
        self._thread.join(_START_WITHIN_S)

    def play(self, rule: Rule) -> None:
        self.asked, self.rule = [], rule

    @property
    def faults(self) -> list[Fate]:
        return [asked.fate for asked in self.asked if asked.fate is not None]

    async def _serve(self) -> None:
        self._loop, self._over = asyncio.get_running_loop(), asyncio.Event()
        no_limits = aiohttp.ClientTimeout(total=None)
        async with aiohttp.ClientSession(timeout=no_limits, auto_decompress=False) as self._client:
            runners = [await self._listen(backend) for backend in self._backends]
            self._is_up.set()
            await self._over.wait()
            for runner in runners:
                await runner.cleanup()

    async def _listen(self, backend: str) -> web.AppRunner:
        async def handle(request: web.Request) -> web.StreamResponse:
            return await self._handle(request, backend)

        app = web.Application(client_max_size=1 << 30)
        app.router.add_route("*", "/{path:.*}", handle)
        runner = web.AppRunner(app, access_log=None, shutdown_timeout=0.5, handler_cancellation=True)
        await runner.setup()
        await web.TCPSite(runner, "127.0.0.1", 0).start()
        self.urls.append("http://{}:{}".format(*runner.addresses[0][:2]))
        return runner

    async def _handle(self, request: web.Request, backend: str) -> web.StreamResponse:
        body = await request.read()
        fate = None
        if asked := _read(request, body):
            asked.fate = fate = self.rule(asked)
            self.asked.append(asked)
        if isinstance(fate, Refuse):
            headers = {hdrs.RETRY_AFTER: str(fate.retry_after_s)}
            return web.json_response({"error": {"message": "busy"}}, status=503, headers=headers)
        answer = await self._client.request(
            request.method,
            backend + request.path_qs,
            headers=_end_to_end(request.headers),
            data=body or None,
            skip_auto_headers=NEVER_ADD,
        )
        async with answer:
            reply = web.StreamResponse(status=answer.status, headers=_end_to_end(answer.headers))
            await reply.prepare(request)
            if isinstance(fate, Cut):
                await reply.write(await _beginning(answer, fate))
                _reset(request)
                return reply
            async for chunk in answer.content.iter_any():
                await reply.write(chunk)
            await reply.write_eof()
        return reply


def _read(request: web.Request, body: bytes) -> Asked | None:
    """None for what does not ask the model to speak."""
    try:
        message = json.loads(body)
    except ValueError:
        return None
    if not isinstance(message, dict) or not {"messages", "input"} & message.keys():
        return None
    headers = {name.lower(): value for name, value in request.headers.items()}
    found = _CALL_ID.search(body.decode())
    return Asked(path=request.path, headers=headers, body=message, first_call=found and found[1])


async def _beginning(answer: aiohttp.ClientResponse, cut: Cut) -> bytes:
    whole = await answer.read()
    if answer.content_type != "text/event-stream":
        return whole[: len(whole) // 2]
    events = whole.split(b"\n\n")[:-1]
    assert len(events) > abs(cut.after_events), "there is nothing left to cut off"
    return b"".join(event + b"\n\n" for event in events[: cut.after_events])


def _reset(request: web.Request) -> None:
    assert request.transport is not None
    held: socket.socket = request.transport.get_extra_info("socket")
    held.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET_ON_CLOSE)
    request.transport.abort()


def _end_to_end(headers: Any) -> CIMultiDict[str]:
    kept = CIMultiDict(headers)
    for name in HOP_BY_HOP:
        kept.popall(name, None)
    return kept
