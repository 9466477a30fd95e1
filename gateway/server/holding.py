"""Clients whose streamed answer has not begun: after a while they are sent keep-alives.

Nothing is sent before `quiet_s`, so that whoever waits no longer than that gets the backend's own head, or an
error status. Nothing at all is sent to a client that did not ask for an event stream, or that does not read.
How long 22 clients wait in silence, and what keeps them from giving up, was observed.
"""

import asyncio
from typing import Final

from gateway.config.holding import HoldingConfig
from gateway.domain.decision import Refusal
from gateway.domain.request import RequestFacts
from gateway.errors import error_body, http_status
from gateway.server.connection import ClientConnection
from gateway.server.relay import Write
from gateway.server.request_parser import HttpRequest
from gateway.server.response_writer import Framing
from gateway.upstream.response_head import ResponseHead
from gateway.wire.headers import get_header
from gateway.wire.keep_alive import error_event, keep_alive

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

    def as_last_event(self, status: int) -> Write:
        """Where to write a body that is no event stream: it ends the stream as one event, cut to a bound."""
        body = bytearray()

        def write(parts: list[bytes], is_last: bool) -> None:
            for part in parts:
                body.extend(part[: _MAX_ERROR_BYTES - len(body)])
            if is_last:
                self.fail(status, bytes(body))

        return write

    def refuse(self, refusal: Refusal) -> None:
        self.fail(http_status(refusal.reason), error_body(self._protocol, refusal))

    def _speak(self) -> None:
        if not self.has_begun:
            self.has_begun = True
            self._client.start_response(_HEAD, Framing.CLOSE if self._is_http_1_0 else Framing.CHUNKED)
        if not self._client.is_paused:
            self._client.write([self._told])
        self._timer = self._loop.call_later(self._period_s, self._speak)


def is_event_stream(head: ResponseHead) -> bool:
    """Whether the body can follow the head that a held client has got."""
    return (
        head.status == 200
        and head.content_type.startswith("text/event-stream")
        and head.content_encoding is None
    )
