"""A collector as small as can be: OTLP/HTTP, decoded with OpenTelemetry's own definitions."""

import asyncio
from collections.abc import Iterable
from typing import Any

from aiohttp import web
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

SpanMessage = Any


def spans_of(body: bytes) -> list[SpanMessage]:
    request = ExportTraceServiceRequest.FromString(body)
    return [
        span for resource in request.resource_spans for scope in resource.scope_spans for span in scope.spans
    ]


def attributes(span: SpanMessage) -> dict[str, Any]:
    out = {}
    for pair in span.attributes:
        kind = pair.value.WhichOneof("value")
        value = getattr(pair.value, kind)
        out[pair.key] = tuple(each.string_value for each in value.values) if kind == "array_value" else value
    return out


def children(spans: Iterable[SpanMessage]) -> dict[bytes, list[SpanMessage]]:
    """Parent's id → spans, in order of their beginning."""
    out: dict[bytes, list[SpanMessage]] = {}
    for span in sorted(spans, key=lambda each: (each.start_time_unix_nano, each.end_time_unix_nano)):
        out.setdefault(span.parent_span_id, []).append(span)
    return out


class Receiver:
    """Answers with `statuses`, one after the other, then with 200; after `delay_s`."""

    def __init__(self) -> None:
        self.spans: list[SpanMessage] = []
        self.headers: list[Any] = []
        self.statuses: list[int] = []
        self.delay_s = 0.0
        self.requests = 0
        self.port = 0
        self._runner: web.AppRunner | None = None

    async def start(self) -> None:
        app = web.Application(client_max_size=64 << 20)
        app.router.add_post("/v1/traces", self._receive)
        self._runner = web.AppRunner(app, access_log=None, shutdown_timeout=0.1)
        await self._runner.setup()
        await web.TCPSite(self._runner, "127.0.0.1", 0).start()
        self.port = self._runner.addresses[0][1]

    @property
    def endpoint(self) -> str:
        return f"http://127.0.0.1:{self.port}/v1/traces"

    async def close(self) -> None:
        if self._runner is not None:
            await self._runner.cleanup()

    async def _receive(self, request: web.Request) -> web.Response:
        self.requests += 1
        self.headers.append(request.headers.copy())
        body = await request.read()
        await asyncio.sleep(self.delay_s)
        status = self.statuses.pop(0) if self.statuses else 200
        if status == 200:
            assert request.content_type == "application/x-protobuf"
            self.spans += spans_of(body)
        return web.Response(status=status, content_type="application/x-protobuf")
