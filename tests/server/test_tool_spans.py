"""Agents' own spans of their tools, as OpenTelemetry's SDK exports them, to a gateway that saw the calls."""

import asyncio
import gzip
import json
from typing import Any

import pytest
from opentelemetry.exporter.otlp.proto.http import Compression
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import (
    ExportTraceServiceRequest,
    ExportTraceServiceResponse,
)
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor
from opentelemetry.trace import StatusCode, format_span_id, format_trace_id, set_span_in_context

from gateway.server import otlp_spans, tool_spans
from gateway.server.tenants import hash_key
from tests.server import mcp_bench
from tests.server.bench import Bench, Message
from tests.server.mcp_bench import learned, timed

ALICE, BOB, CONTROL = "alice-key", "bob-key", "control-key"
TENANTS = [
    {"name": "alice", "key_hashes": [hash_key(ALICE)]},
    {"name": "bob", "key_hashes": [hash_key(BOB)]},
]
KEYS: Any = {"tenants": TENANTS, "server": {"control_key_hashes": [hash_key(CONTROL)]}}
LONG_AGO_NS = 1_000_000_000_000_000_000
"""The agent's clock is twenty years behind."""


class Agent(mcp_bench.Agent):
    """It exports what it did with OpenTelemetry's SDK."""

    def __init__(self, bench: Bench, key: str = "", *, gzip: bool = False) -> None:
        super().__init__(bench, f"go {key}", key)
        exporter = OTLPSpanExporter(
            endpoint=f"http://127.0.0.1:{bench.gateway.control_port}/v1/traces",
            headers={"authorization": f"Bearer {key}"} if key else None,
            compression=Compression.Gzip if gzip else Compression.NoCompression,
            timeout=5,
        )
        self.provider = TracerProvider(shutdown_on_exit=False)
        self.provider.add_span_processor(BatchSpanProcessor(exporter, schedule_delay_millis=60_000))
        self.tracer = self.provider.get_tracer("agent")
        self.root = self.tracer.start_span("invoke_agent", start_time=LONG_AGO_NS)
        context = self.root.get_span_context()
        self.trace = format_trace_id(context.trace_id)
        self.parent = f"00-{self.trace}-{format_span_id(context.span_id)}-01"

    async def turn(self, *calls: str, traced: bool = True, took: str = "") -> None:
        """Its answer asks for calls such as `c1:bash`."""
        self._headers = b"traceparent: %s\r\n" % self.parent.encode() if traced else b""
        self._headers += b"x-turnpike-tools: %s\r\n" % took.encode() if took else b""
        await self.ask(**{each.partition(":")[0]: each.partition(":")[2] + " {}" for each in calls})

    def ran(self, took_s: float, *, failed: bool = False, **attributes: str) -> None:
        """`gen_ai__tool__name` is the attribute `gen_ai.tool.name`."""
        span = self.tracer.start_span(
            "execute_tool",
            context=set_span_in_context(self.root),
            attributes={name.replace("__", "."): value for name, value in attributes.items()},
            start_time=LONG_AGO_NS,
        )
        if failed:
            span.set_status(StatusCode.ERROR)
        span.end(LONG_AGO_NS + int(took_s * 1e9))

    def genai(self, call: str, name: str, took_s: float, *, failed: bool = False) -> None:
        self.ran(
            took_s,
            failed=failed,
            gen_ai__operation__name="execute_tool",
            gen_ai__tool__name=name,
            gen_ai__tool__call__id=call,
        )

    async def export(self) -> None:
        await asyncio.to_thread(self.provider.force_flush)

    async def close(self) -> None:
        await asyncio.to_thread(self.provider.shutdown)


@pytest.fixture
async def agent_of():
    """Makes agents, and sees them off."""
    agents: list[Agent] = []

    def make(bench: Bench, key: str = "", **options: Any) -> Agent:
        agents.append(Agent(bench, key, **options))
        return agents[-1]

    yield make
    for each in agents:
        await each.close()


@pytest.mark.parametrize("compress", [False, True])
async def test_parallel_calls_are_told_apart_before_and_after_their_results(start, agent_of, compress):
    bench = await start()
    agent = agent_of(bench, gzip=compress)
    await agent.turn("c1f7a9x3:make", "c2f7a9x3:read")
    agent.genai("c1f7a9x3", "make", 0.08)
    agent.genai("c2f7a9x3", "read", 0.01, failed=True)
    await agent.export()
    assert timed(bench) == [("make", 0.08, False), ("read", 0.01, True)] and learned(bench, "make") == (0, 0)
    agent.results("c1f7a9x3", "c2f7a9x3")
    await agent.turn("c3f7a9x3:make", "c4f7a9x3:read")
    assert learned(bench, "make") == (1, 0.08) and learned(bench, "read") == (1, 0.01)
    agent.results("c3f7a9x3", "c4f7a9x3")
    await agent.turn()  # an exporter sends later than that
    assert learned(bench, "make")[0] == learned(bench, "read")[0] == 1
    agent.genai("c4f7a9x3", "read", 0.01)
    agent.genai("c3f7a9x3", "make", 0.08)
    await agent.export()
    assert learned(bench, "make") == (2, 0.08) and learned(bench, "read") == (2, 0.01)
    text = (await bench.control(b"GET /metrics HTTP/1.1\r\nHost: c\r\n\r\n")).body
    assert b"turnpike_tool_spans_taken_total 4.0" in text and b"turnpike_tool_spans_left_total 0.0" in text
    assert b"turnpike_tool_call_seconds_count 4.0" in text


async def test_openinference_and_spans_without_an_id_lead_to_their_calls(start, agent_of):
    bench = await start()
    agent = agent_of(bench)
    await agent.turn("c1f7a9x3:search", "c2f7a9x3:fetch", "c3f7a9x3:fetch")
    agent.ran(0.05, openinference__span__kind="TOOL", tool__name="search", tool_call__id="c1f7a9x3")
    agent.ran(0.02, openinference__span__kind="TOOL", tool__name="fetch")
    agent.ran(0.03, gen_ai__operation__name="execute_tool", gen_ai__tool__name="fetch")
    agent.ran(0.03, gen_ai__operation__name="chat", gen_ai__tool__name="fetch")
    agent.ran(0.03, openinference__span__kind="LLM")
    await agent.export()
    assert [(name, took_s) for name, took_s, _ in timed(bench)] == [
        ("search", 0.05),
        ("fetch", 0.02),
        ("fetch", 0.03),
    ]


async def test_without_a_trace_or_an_id_nothing_is_guessed(start, agent_of):
    bench = await start()
    agent = agent_of(bench)
    await agent.turn("c1f7a9x3:search", traced=False)
    agent.ran(0.05, openinference__span__kind="TOOL", tool__name="search")
    await agent.export()
    assert timed(bench) == []


async def test_a_client_may_say_it_with_the_results(start, agent_of):
    bench = await start()
    agent = agent_of(bench)
    await agent.turn("c1f7a9x3:make", "c2f7a9x3:read")
    agent.results("c1f7a9x3", "c2f7a9x3")
    await agent.turn(
        "c3f7a9x3:make", took="c1f7a9x3;dur=80, c2f7a9x3;dur=10;failed, c9f7a9x3;dur=1, c2f7a9x3;dur=20"
    )
    assert timed(bench) == [("make", 0.08, False), ("read", 0.01, True)]
    assert learned(bench, "make") == (1, 0.08) and learned(bench, "read") == (1, 0.01)
    assert bench.backend.seen[-1].get(b"x-turnpike-tools") is None
    agent.genai("c1f7a9x3", "make", 0.05)  # it traces itself, too
    await agent.export()
    agent.results("c3f7a9x3")
    await agent.turn(took="c3f7a9x3;dur=3600000")
    assert len(timed(bench)) == 2 and learned(bench, "make")[0] == 1


async def test_a_tenants_key_tells_of_its_own_calls_and_an_operators_of_all(start, agent_of):
    bench = await start(**KEYS)
    alice, bob, collector = agent_of(bench, ALICE), agent_of(bench, BOB), agent_of(bench, CONTROL)
    await alice.turn("call_0:bash")
    await bob.turn("call_1:bash")
    bob.genai("call_0", "bash", 0.02)
    await bob.export()
    assert timed(bench) == []
    alice.genai("call_0", "bash", 0.03)
    await alice.export()
    collector.genai("call_1", "bash", 0.04)
    await collector.export()
    assert [took_s for _, took_s, _ in timed(bench)] == [0.03, 0.04]


async def test_a_tenants_key_opens_nothing_else(start):
    bench = await start(**KEYS)
    for head in (b"POST /turnpike/hosts/h", b"GET /turnpike/snapshot", b"POST /v1/traces/", b"GET /metrics"):
        request = (
            head + b" HTTP/1.1\r\nHost: c\r\nAuthorization: Bearer alice-key\r\nContent-Length: 0\r\n\r\n"
        )
        assert (await bench.control(request)).status == 401
    assert (await post(bench, b"", key="nobody")).status == 401
    assert (await post(bench, b"", key="")).status == 401
    assert (await post(bench, b"", key=ALICE)).status == 200


async def post(
    bench: Bench, body: bytes, kind: str = "application/x-protobuf", *, key: str = CONTROL, more: bytes = b""
) -> Message:
    head = b"POST /v1/traces HTTP/1.1\r\nHost: c\r\nContent-Type: %s\r\n%s" % (kind.encode(), more)
    if key:
        head += b"Authorization: Bearer %s\r\n" % key.encode()
    return await bench.control(head + b"Content-Length: %d\r\n\r\n%s" % (len(body), body))


def json_span(call: str, took_ns: int = 10_000_000, **fields: Any) -> dict[str, Any]:
    """As JavaScript's exporter writes it."""
    told = {"gen_ai.operation.name": "execute_tool", "gen_ai.tool.name": "bash", "gen_ai.tool.call.id": call}
    return {
        "traceId": "5B8EFFF798038103D269B633813FC60C",
        "spanId": "EEE19B7EC3C1B174",
        "name": "execute_tool bash",
        "kind": 1,
        "startTimeUnixNano": "1544712660000000000",
        "endTimeUnixNano": str(1544712660000000000 + took_ns),
        "attributes": [
            {"key": "n", "value": {"intValue": "3"}},
            *({"key": key, "value": {"stringValue": value}} for key, value in told.items()),
        ],
        "status": {},
        **fields,
    }


def json_body(*spans: dict[str, Any]) -> bytes:
    return json.dumps({"resourceSpans": [{"resource": {}, "scopeSpans": [{"spans": spans}]}]}).encode()


async def test_json_is_read_as_otlp_writes_it(start, agent_of):
    bench = await start()
    agent = agent_of(bench)
    await agent.turn("c1f7a9x3:bash", "c2f7a9x3:bash", "c3f7a9x3:bash")
    body = json_body(
        json_span("c1f7a9x3", status={"code": 2}),
        json_span("c2f7a9x3", 20_000_000, spanId="00" * 8),
        json_span("c3f7a9x3", kind=3, attributes=[{"key": "http.method", "value": {"stringValue": "GET"}}]),
    )
    response = await post(bench, gzip.compress(body), "application/json", more=b"Content-Encoding: gzip\r\n")
    assert (response.status, response.json()) == (200, {})
    assert response.get(b"content-type") == b"application/json"
    assert timed(bench) == [("bash", 0.01, True), ("bash", 0.02, False)]


async def test_what_was_rejected_is_told(start, agent_of, monkeypatch):
    monkeypatch.setattr(tool_spans, "_MAX_SPANS", 6)
    bench = await start()
    agent = agent_of(bench)
    await agent.turn("c1:bash", "same:bash")
    other = agent_of(bench)
    other.messages[0]["content"] = "something else"
    await other.turn("same:bash")
    spans = [
        json_span("c1", 3_600_000_000_000),
        json_span("same"),
        json_span("c1", -1),
        json_span("c1", endTimeUnixNano="soon"),
        json_span("c1\n"),
        json_span("c1", traceId="1"),
        *(json_span(f"unknown-{number}") for number in range(6)),
    ]
    response = await post(bench, json_body(*spans), "application/json")
    told = response.json()["partialSuccess"]
    assert response.status == 200 and told["rejectedSpans"] == "8"
    for why in (
        "longer than the call",
        "several sessions",
        "ends before it begins",
        "id of a call",
        "2: too many",
    ):
        assert why in told["errorMessage"]
    request = ExportTraceServiceRequest()
    span = request.resource_spans.add().scope_spans.add().spans.add(trace_id=b"t" * 16, span_id=b"s" * 8)
    span.attributes.add(key="openinference.span.kind").value.string_value = "TOOL"
    response = await post(bench, request.SerializeToString())
    told = ExportTraceServiceResponse.FromString(response.body).partial_success
    assert told.rejected_spans == 1 and "ends before it begins" in told.error_message
    assert timed(bench) == []


def status_of(body: bytes) -> tuple[int, str]:
    """`google.rpc.Status`, read by hand."""
    assert body[0] == 0x08 and body[2] == 0x12 and body[3] == len(body) - 4
    return body[1], body[4:].decode()


async def test_what_is_no_trace_request_is_refused_in_otlps_shape(start, monkeypatch):
    monkeypatch.setattr(tool_spans, "MAX_BYTES", 1000)
    bench = await start()
    for body, kind, more, status in (
        (b"\xff\xff", "application/x-protobuf", b"", 400),
        (b"x" * 2000, "application/x-protobuf", b"", 413),
        (gzip.compress(b"\0" * 2000), "application/x-protobuf", b"Content-Encoding: gzip\r\n", 413),
        (b"no gzip", "application/x-protobuf", b"Content-Encoding: gzip\r\n", 400),
        (gzip.compress(b"\0" * 20)[:-1], "application/x-protobuf", b"Content-Encoding: gzip\r\n", 400),
        (b"", "application/x-protobuf", b"Content-Encoding: zstd\r\n", 400),
        (b"", "text/plain", b"", 415),
    ):
        response = await post(bench, body, kind, more=more)
        assert response.status == status, body
        assert status_of(response.body)[0] == 3 and response.get(b"content-type") == b"application/x-protobuf"
    for body in (b"", b"{", b"[]", b'{"resourceSpans":1}', b"[" * 900, b"\xff"):
        response = await post(bench, body, "application/json")
        assert response.status == 400 and response.json()["code"] == 3 and response.json()["message"]
    assert (await post(bench, b"{}", "application/json; charset=utf-8")).status == 200


async def test_bodies_that_do_not_come_keep_nobody_out_for_long(start, monkeypatch):
    monkeypatch.setattr(tool_spans, "_PATIENCE_S", 0.2)
    monkeypatch.setattr(tool_spans, "_MAX_BODIES", 1)
    bench = await start()
    reader, writer = await asyncio.open_connection("127.0.0.1", bench.gateway.control_port)
    writer.write(
        b"POST /v1/traces HTTP/1.1\r\nHost: c\r\nContent-Type: application/json\r\nContent-Length: 9\r\n\r\n{"
    )
    while (response := await post(bench, b"{}", "application/json")).status == 200:
        pass  # it is not there yet
    assert response.status == 503 and "again" in response.json()["message"]
    assert b" 408 " in await reader.readline()
    assert (await post(bench, b"{}", "application/json")).status == 200
    writer.write(b"}" + b" " * 7)  # else aiohttp goes on waiting for it
    await writer.drain()
    writer.close()


def empty_spans(count: int) -> bytes:
    request = ExportTraceServiceRequest()
    scope = request.resource_spans.add().scope_spans.add()
    for _ in range(count):
        scope.spans.add()
    return request.SerializeToString()


async def test_spans_of_all_kinds_count(start, monkeypatch):
    monkeypatch.setattr(tool_spans, "_MAX_COST", 10_000)
    monkeypatch.setattr(otlp_spans, "MAX_JSON_OBJECTS", 5000)
    bench = await start()
    assert (await post(bench, empty_spans(4000))).status == 200
    response = await post(bench, empty_spans(20_000))
    assert response.status == 413 and "10000 spans" in status_of(response.body)[1]
    assert (await post(bench, json_body(*[{}] * 4000), "application/json")).status == 200
    response = await post(bench, json_body(*[{}] * 6000), "application/json")
    assert response.status == 413 and "5000 objects" in response.json()["message"]


async def test_a_body_is_read_in_slices(start, monkeypatch):
    monkeypatch.setattr(tool_spans, "_SLICE_COST", 100)
    bench = await start()
    turns = 0

    async def others_go_on() -> None:
        nonlocal turns
        while True:
            turns += 1
            await asyncio.sleep(0)

    task = asyncio.create_task(others_go_on())
    response = await post(bench, empty_spans(50_000))
    task.cancel()
    assert response.status == 200 and turns >= 500


@pytest.mark.slow
async def test_a_body_that_swells_is_refused(start):
    bench = await start()
    swollen = gzip.compress(empty_spans(900_000))
    response = await post(bench, swollen, more=b"Content-Encoding: gzip\r\n")
    assert len(swollen) < 20_000 and response.status == 400 and "swells" in status_of(response.body)[1]


async def test_who_sends_too_much_is_told_to_wait_and_the_others_are_not(start, monkeypatch):
    monkeypatch.setattr(tool_spans, "_BURST_BYTES", 1000)
    monkeypatch.setattr(tool_spans, "_BYTES_PER_S", 10)
    bench = await start(**KEYS)
    body = empty_spans(100)
    assert (await post(bench, body, key=ALICE)).status == 200
    response = await post(bench, body, key=ALICE)
    assert response.status == 429 and int(response.get(b"retry-after") or 0) > 60
    assert (await post(bench, body, key=BOB)).status == 200
