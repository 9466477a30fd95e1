"""A gateway on real sockets that is asked for prefills whenever a test says so."""

import json
from collections.abc import Sequence
from typing import Any

from gateway.core import events as ev
from gateway.core.commands import Prefill, StopPrefill
from gateway.domain.ids import ReplicaId, RequestId
from gateway.domain.request import Usage
from gateway.server.prefill_ahead.retained_request import RetainedRequest
from tests.server.bench import Bench, Exchange, Message, Script, answer, chunk, eventually, post, sends

ON = {"enabled": True}
TOOLS = [{"type": "function", "function": {"name": "bash", "parameters": {"type": "object"}}}]
ASKS = {"role": "user", "content": "Find é."}
RESULT = {"role": "tool", "tool_call_id": "call-1", "content": "found"}
ARGUMENTS = '{"command": "ls", "all": true}'
DELTAS: list[dict[str, Any]] = [
    {"role": "assistant", "content": ""},
    {"reasoning": "Let me "},
    {"reasoning": "look."},
    {"content": "I "},
    {"content": "look."},
    {
        "tool_calls": [
            {"index": 0, "id": "call-1", "type": "function", "function": {"name": "bash", "arguments": ""}}
        ]
    },
    {"tool_calls": [{"index": 0, "function": {"arguments": ARGUMENTS[:9]}}]},
    {"tool_calls": [{"index": 0, "function": {"arguments": ARGUMENTS[9:]}}]},
]


def call(arguments: str = ARGUMENTS) -> dict[str, Any]:
    return {"id": "call-1", "type": "function", "function": {"name": "bash", "arguments": arguments}}


def turn(*messages: Any, system: str = "You look.", headers: bytes = b"", session: str = "s") -> bytes:
    body = {
        "model": "m",
        "messages": [{"role": "system", "content": system}, *messages],
        "tools": TOOLS,
        "stream": True,
        "stream_options": {"include_usage": True},
    }
    return post(json.dumps(body).encode(), headers=b"x-turnpike-session: %s\r\n" % session.encode() + headers)


def streamed(events: Sequence[dict[str, Any]], end: bytes = b"data: [DONE]\n\n") -> list[bytes]:
    head = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n"
    lines = [b"data: %s\n\n" % json.dumps(event).encode() for event in events]
    return [head, *map(chunk, lines), *([chunk(end)] if end else []), chunk(b"")]


def chat_stream() -> list[bytes]:
    deltas = [{"choices": [{"index": 0, "delta": delta, "finish_reason": None}]} for delta in DELTAS]
    end = {"choices": [{"index": 0, "delta": {}, "finish_reason": "tool_calls"}]}
    return streamed([*deltas, end])


class Ahead:
    """Asks for prefills, and takes what the brain would be told of their ends: it asked for none."""

    def __init__(self, bench: Bench, prefill: Script | None = None) -> None:
        self.bench = bench
        self.prefill = prefill or sends(answer())
        self.asked: list[Message] = []
        self.ended: list[tuple[RequestId, Usage | None]] = []
        self.pieces = chat_stream()
        prefills = bench.gateway._parts.listeners.prefills
        assert prefills is not None
        self.prefills = prefills
        self._send = bench.gateway.driver.send
        bench.gateway.driver.send = self._sent  # type: ignore[method-assign]
        for backend in bench.backends:
            backend.script = self.script

    def _sent(self, event: Any) -> None:
        if isinstance(event, ev.PrefillEnded):
            self.ended.append((event.turn, event.usage))
        else:
            self._send(event)

    async def script(self, exchange: Exchange) -> None:
        if json.loads(exchange.request.body).get("max_tokens") == 1:
            self.asked.append(exchange.request)
            await self.prefill(exchange)
            return
        for piece in self.pieces:
            await exchange.send(piece)

    async def pauses(self, request: bytes) -> RetainedRequest:
        assert (await self.bench.ask(request)).status == 200
        return [*self.prefills.kept._kept.values()][-1]

    def begin(self, kept: RetainedRequest, *, agent: int = 0, replica: str = "default-0") -> RequestId:
        session, thread = kept.conversation
        at = ReplicaId(replica)
        self.prefills.take(Prefill(turn=kept.turn, session=session, thread=thread, replica=at, agent=agent))
        return kept.turn

    async def ends(self, kept: RetainedRequest, **how: Any) -> Usage | None:
        turn, before = self.begin(kept, **how), len(self.ended)
        await eventually(lambda: len(self.ended) > before)
        assert [each for each, _ in self.ended[before:]] == [turn]
        return self.ended[-1][1]

    def stop(self, kept: RetainedRequest) -> None:
        self.prefills.take(StopPrefill(turn=kept.turn))

    @property
    def foreseen(self) -> dict[str, Any]:
        body: dict[str, Any] = json.loads(self.asked[-1].body)
        return body


async def started(start: Any, prefill: Script | None = None, **settings: Any) -> Ahead:
    return Ahead(await start(prefill_ahead=ON, **settings), prefill)


def said_plainly() -> dict[str, Any]:
    return {"role": "assistant", "content": "I look.", "tool_calls": [call()]}
