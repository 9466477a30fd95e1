"""The contents of turns, held until their spans are written, where the operator wants them (`otel.content`).

A request's body is held as it came, while its answer runs; it is encoded when the span is sent, one at a
time, and never before the answer has ended. Nothing is held of sessions that are not traced, of tenants whose
contents may not be exported, and of unreadable bodies.

Invariants: at most `otel.content_max_bytes` are held, whatever becomes of the spans: who finds no room is
left out, and counted; headers are never held.
"""

from collections.abc import Generator

import msgspec

from gateway.config.telemetry import OtelConfig
from gateway.domain.ids import RequestId
from gateway.domain.request import Protocol
from gateway.responses.content import ResponseContent
from gateway.telemetry.otel.messages import Attribute, describing


class Content(msgspec.Struct, eq=False):
    protocol: Protocol
    body: bytes
    response: ResponseContent
    finish_reason: str = "unknown"

    @property
    def size(self) -> int:
        return len(self.body) + self.response.max_bytes


class Contents:
    """`hold` is for who passes answers on, the rest for who writes spans."""

    def __init__(self, config: OtelConfig) -> None:
        self._span_bytes = config.content_bytes
        self._max_bytes = config.content_max_bytes
        self._held: dict[RequestId, Content] = {}
        self.bytes = 0
        self.left_out = 0

    def hold(
        self, turn: RequestId, protocol: Protocol, body: bytes, response: ResponseContent | None
    ) -> ResponseContent | None:
        """Returns what is to collect the content of the turn's answer; None if nobody needs it.
        `response`: what collects it anyway."""
        self.forget(turn)  # it was answered elsewhere, in vain
        content = Content(protocol, body, response or ResponseContent(self._span_bytes))
        if self.bytes + content.size > self._max_bytes:
            self.left_out += 1
            return response
        self._held[turn] = content
        self.bytes += content.size
        return content.response

    def ended(self, turn: RequestId, finish_reason: str) -> Content | None:
        """Its span is made. `let_go` is to be called in the end."""
        if (content := self._held.pop(turn, None)) is not None:
            content.finish_reason = finish_reason
        return content

    def forget(self, turn: RequestId) -> None:
        if (content := self._held.pop(turn, None)) is not None:
            self.let_go(content)

    def let_go(self, content: Content) -> None:
        self.bytes -= content.size

    def writing(self, content: Content) -> Generator[None, None, tuple[list[Attribute], int, bool]]:
        is_cut = content.response.is_full
        found, left_out, was_cut = yield from describing(
            content.protocol,
            content.body,
            content.response.parts,
            content.finish_reason,
            max_bytes=self._span_bytes,
        )
        return found, left_out, is_cut or was_cut
