"""OTLP's trace requests."""

import json
import math
import random
from typing import Any

from gateway.server.otlp_spans import JSON, PROTOBUF, TooLarge, Unreadable
from tests.fuzz.mutation import WORDS, mutate, value


def _span(rng: random.Random) -> dict[str, Any]:
    said = ("execute_tool", "bash", "call_1", "TOOL", *WORDS)
    keys = (
        "gen_ai.operation.name",
        "gen_ai.tool.name",
        "gen_ai.tool.call.id",
        "openinference.span.kind",
        "error.type",
        "x",
    )
    pairs = [
        {"key": rng.choice(keys), "value": {"stringValue": rng.choice(said)}} for _ in range(rng.randrange(5))
    ]
    span = {
        "traceId": rng.choice(("0" * 31 + "1", "zz", "")),
        "spanId": rng.choice(("0" * 15 + "1", "")),
        "name": rng.choice(said),
        "startTimeUnixNano": rng.choice(("1", 1, "-1", "x", 2**70, 10**18)),
        "endTimeUnixNano": rng.choice(("2", 2, 0, "9" * 30)),
        "attributes": pairs,
    }
    return span if rng.randrange(4) else {**span, rng.choice(list(span)): value(rng, 1)}


def make(rng: random.Random) -> tuple[str, bytes]:
    from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

    spans = [_span(rng) for _ in range(rng.randrange(4))]
    if rng.randrange(2):
        body = json.dumps({"resourceSpans": [{"scopeSpans": [{"spans": spans}]}]}).encode(
            "utf-8", "surrogatepass"
        )
        return "application/json", mutate(rng, body)
    request = ExportTraceServiceRequest()
    scope = request.resource_spans.add().scope_spans.add()
    for number in range(rng.randrange(4)):
        span = scope.spans.add(
            trace_id=b"t" * 16, span_id=b"s" * 8, name="execute_tool ls", start_time_unix_nano=number
        )
        span.end_time_unix_nano = rng.choice((0, 5, 2**64 - 1))
        for key in ("gen_ai.operation.name", "gen_ai.tool.name"):
            span.attributes.add(key=key).value.string_value = rng.choice(("execute_tool", "ls", "\u2028"))
    return "application/x-protobuf", mutate(rng, request.SerializeToString())


_SPANS = {each.content_type: each for each in (PROTOBUF, JSON)}


def check(given: tuple[str, bytes]) -> None:
    """Read or refused, and nothing else."""
    kind, body = given
    try:
        form = _SPANS[kind]
        for _, found in form.spans(form.decode(body)):
            if found is not None and found.span is not None:
                assert math.isfinite(found.span.duration_s) and found.span.duration_s >= 0 and found.span.name
    except (Unreadable, TooLarge):
        pass
