"""A collector as small as can be: OTLP/HTTP, decoded with OpenTelemetry's own definitions."""

import contextlib
import threading
from collections.abc import Iterable
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

SpanMessage = Any


def spans_of(request: ExportTraceServiceRequest) -> list[SpanMessage]:
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
    out: dict[bytes, list[SpanMessage]] = {}
    for span in sorted(spans, key=lambda each: (each.start_time_unix_nano, each.end_time_unix_nano)):
        out.setdefault(span.parent_span_id, []).append(span)
    return out


class Receiver:
    """Answers with `statuses`, one after the other, then with 200; after `delay_s`. On threads of its own."""

    def __init__(self) -> None:
        self.spans: list[SpanMessage] = []
        self.headers: list[Any] = []
        self.resources: list[dict[str, Any]] = []
        self.statuses: list[int] = []
        self.delay_s = 0.0
        self.requests = 0
        self._is_closed = threading.Event()
        receiver = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["Content-Length"]))
                status = receiver.receive(self.path, self.headers, body)
                with contextlib.suppress(OSError):  # it may have left
                    self.send_response(status)
                    self.send_header("Content-Length", "0")
                    self.end_headers()

            def log_message(self, *_: Any) -> None:
                pass

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._server.daemon_threads = True
        self.endpoint = f"http://127.0.0.1:{self._server.server_port}/v1/traces"
        threading.Thread(target=self._server.serve_forever, args=(0.02,), daemon=True).start()

    def __enter__(self) -> "Receiver":
        return self

    def __exit__(self, *_: object) -> None:
        self._is_closed.set()
        self._server.shutdown()
        self._server.server_close()

    def receive(self, path: str, headers: Any, body: bytes) -> int:
        self.requests += 1
        self.headers.append(headers)
        self._is_closed.wait(self.delay_s)
        if path != "/v1/traces" or headers["Content-Type"] != "application/x-protobuf":
            return 404
        status = self.statuses.pop(0) if self.statuses else 200
        if status == 200:
            self._take_spans(body)
        return status

    def _take_spans(self, body: bytes) -> None:
        request = ExportTraceServiceRequest.FromString(body)
        self.spans += spans_of(request)
        self.resources += [attributes(each.resource) for each in request.resource_spans]
