"""Traces on their way to a collector, by OTLP/HTTP.

Records become spans as they are handed over, a few hundred at a time and on the loop itself: a thread that
computes would hold the interpreter for milliseconds at a time, and records that are kept for long push what
requests need out of the processor's caches. Sending is the loop's work, too, of which there is never more
than one at a time. Contents of turns are written when they are sent, in slices, and let go of.

Invariants: the spans that wait are bounded; what a collector does not take in time, or
refuses, is dropped and counted, and nobody waits for it.
"""

import asyncio
import contextlib
from collections import deque
from collections.abc import Callable, Mapping
from typing import Final

from gateway import __version__
from gateway.config.telemetry import OtelConfig
from gateway.domain import records as rec
from gateway.telemetry.otel.collector import Collector, Verdict, resource_of
from gateway.telemetry.otel.contents import Content, Contents
from gateway.telemetry.otel.otlp import (
    Attributes,
    Span,
    attributes_field,
    encode_request,
    encode_span,
    text_attribute,
)
from gateway.telemetry.otel.spans import Spans
from gateway.telemetry.otel.trace_context import TraceContexts

_SEND_PERIOD_S: Final = 1.0
_SPANS_AT_ONCE: Final = 512
# Of a request to the collector; many take no more than 4 MiB.
_BYTES_AT_ONCE: Final = 2 << 20
_BACKOFF_S: Final = (1.0, 2.0, 5.0, 10.0)
_AT_THE_END_S: Final = 3.0
_ENDS: Final = frozenset((rec.GpuEnd, rec.Refused, rec.TurnLeft))
# The field of a span that holds them.
_ATTRIBUTES: Final = 9


class TraceExport:
    """`take` is for the driver."""

    def __init__(
        self,
        config: OtelConfig,
        contexts: TraceContexts,
        environ: Mapping[str, str],
        *,
        max_sessions: int,
        clock: Callable[[], float],
        contents: Contents | None = None,
    ) -> None:
        """`contents`: of turns; None if they are not exported. Raises ConfigError for a variable that is not
        there."""
        self._collector = Collector(config, environ)
        self.open = self._collector.open
        self._max_pending = config.max_pending
        self._clock = clock
        self._resource = resource_of(config)
        self._contents = contents if contents is not None else Contents(config)
        self._spans = Spans(
            contexts, spans_per_s=config.max_spans_per_s, max_sessions=max_sessions, contents=self._contents
        )
        self._pending: deque[tuple[bytes, Content | None]] = deque()
        self._batch: list[bytes] = []
        self.sent = 0
        self.dropped = 0

    @property
    def left_out(self) -> int:
        return self._spans.left_out

    @property
    def waiting(self) -> int:
        return len(self._pending) + len(self._batch)

    def take(self, records: list[rec.Record]) -> None:
        self._take(self._spans.take(records, now=self._clock()))
        if self._contents.bytes:
            for record in records:
                if type(record) in _ENDS and getattr(record, "outcome", "") != "failed":
                    self._contents.forget(record.turn)  # type: ignore[union-attr]

    async def run(self) -> None:
        while True:
            pause_s = _SEND_PERIOD_S
            while self.waiting:
                if not await self._send():
                    pause_s = _BACKOFF_S[min(self._collector.failures, len(_BACKOFF_S)) - 1]
                    break
            await asyncio.sleep(pause_s)

    async def close(self) -> None:
        self._take(self._spans.end_all())
        if not self._collector.is_open:
            return
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(_AT_THE_END_S):
                while self.waiting and await self._send():
                    pass
        self.dropped += self.waiting
        for _, content in self._pending:
            self._let_go(content)
        self._pending.clear()
        self._batch.clear()
        await self._collector.close()

    def _take(self, spans: list[Span]) -> None:
        room = self._max_pending - self.waiting
        self._pending.extend([(encode_span(span), span.content) for span in spans[:room]])
        for span in spans[room:]:
            self.dropped += 1
            self._let_go(span.content)

    def _let_go(self, content: Content | None) -> None:
        if content is not None:
            self._contents.let_go(content)

    async def _send(self) -> bool:
        await self._fill()
        batch = self._batch
        verdict = await self._collector.post(encode_request(batch, self._resource, version=__version__))
        if verdict is Verdict.LATER:
            return False
        if verdict is Verdict.TAKEN:
            self.sent += len(batch)
        else:
            self.dropped += len(batch)
        batch.clear()
        return True

    async def _fill(self) -> None:
        batch, size = self._batch, sum(map(len, self._batch))
        while self._pending and len(batch) < _SPANS_AT_ONCE and size < _BYTES_AT_ONCE:
            span, content = self._pending.popleft()
            batch.append(span)
            if content is not None:
                try:
                    batch[-1] += await _written(self._contents, content)
                finally:
                    self._contents.let_go(content)
            size += len(batch[-1])


async def _written(contents: Contents, content: Content) -> bytes:
    work = contents.writing(content)
    try:
        while True:
            next(work)
            await asyncio.sleep(0)
    except StopIteration as end:
        found, left_out, is_cut = end.value
        cut_marks: Attributes = (
            ("turnpike.content.truncated", is_cut or None),
            ("turnpike.content.messages_left_out", left_out or None),
        )
        return attributes_field(_ATTRIBUTES, cut_marks) + b"".join(
            [text_attribute(_ATTRIBUTES, name, encoded) for name, encoded in found]
        )
