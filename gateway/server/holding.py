"""Clients whose streamed answer has not begun: after a while they hear that they are not forgotten.

Source: none; what 22 clients bear in silence, and what keeps them from giving up, was observed.

Symbols: —

Deviations: —

Invariants: nothing is sent before `quiet_s`, so that whoever need not wait for longer than that gets the
backend's own head, or a status; nothing at all is sent to a client that does not read an event stream; a
request that need not wait costs nothing.
"""

import asyncio
from typing import Final

from gateway.config.holding import HoldingConfig
from gateway.domain.decision import Refusal
from gateway.domain.request import RequestFacts
from gateway.errors import error_body, http_status
from gateway.server.connection import ClientConnection
from gateway.server.driver import Ticket
from gateway.server.relay import answer_of
from gateway.server.request_parser import HttpRequest
from gateway.server.response_writer import Framing
from gateway.upstream.connection import UpstreamConnection
from gateway.upstream.errors import AnswerCut
from gateway.upstream.response_head import ResponseHead
from gateway.wire.headers import get_header
from gateway.wire.keep_alive import error_event, keep_alive
from gateway.wire.observer import ResponseObserver

_MAX_ERROR_BYTES: Final = 1 << 16
_HEAD: Final = (
    b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream; charset=utf-8\r\nCache-Control: no-cache\r\n"
)


class Held:
    """A request that waits. `end` must be called."""

    def __init__(
        self,
        client: ClientConnection,
        request: HttpRequest,
        facts: RequestFacts,
        *,
        config: HoldingConfig,
    ) -> None:
        self._client = client
        self._protocol = facts.protocol
        self._is_http_1_0 = request.head.is_http_1_0
        software = get_header(request.head.headers, b"user-agent") or ""
        self._told = keep_alive(facts.protocol, is_codex="codex" in software.lower())
        self._loop = asyncio.get_running_loop()
        self._period_s = config.period_s
        self.has_begun = False
        """The head of the answer is out."""
        self._timer = self._loop.call_later(config.quiet_s, self._speak)

    def end(self) -> None:
        """The answer begins, or nobody waits for it any more."""
        self._timer.cancel()

    def fail(self, status: int, body: bytes) -> None:
        """What would have been a status ends the stream."""
        self._client.write([error_event(self._protocol, status, body)], is_last=True)

    def refuse(self, refusal: Refusal) -> None:
        self.fail(http_status(refusal.reason), error_body(self._protocol, refusal))

    def _speak(self) -> None:
        if not self.has_begun:
            self.has_begun = True
            self._client.start_response(_HEAD, Framing.CLOSE if self._is_http_1_0 else Framing.CHUNKED)
        self._client.write([self._told])
        self._timer = self._loop.call_later(self._period_s, self._speak)


def is_event_stream(head: ResponseHead) -> bool:
    """Whether the body can follow the head that a held client has got."""
    return (
        head.status == 200
        and head.content_type.startswith("text/event-stream")
        and head.content_encoding is None
    )


async def fail_late(
    held: Held,
    client: ClientConnection,
    upstream: UpstreamConnection,
    ticket: Ticket,
    observer: ResponseObserver,
) -> bool:
    """An answer that is no stream, to a client that was promised one. Whether the replica's connection is fit
    for reuse."""
    head = upstream.head
    assert head is not None
    ticket.response_started(head.status)
    body = bytearray()

    def keep(parts: list[bytes], _: bool) -> None:
        for part in parts:
            body.extend(part[: _MAX_ERROR_BYTES - len(body)])

    try:
        upstream.set_sink(keep)
        await upstream.done
    except AnswerCut as cut:
        ticket.cut(answer_of(observer, head), str(cut))
        client.abort()
        return False
    observer.feed(bytes(body))
    ticket.finished(answer_of(observer, head))
    held.fail(head.status, bytes(body))
    return True
