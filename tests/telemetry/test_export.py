"""Export: how spans and what turns say are held, encoded and sent, whatever a collector does."""

import asyncio
import contextlib
import json
import logging
import time

import pytest
from hypothesis import given
from hypothesis import strategies as st
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.proto.trace.v1 import trace_pb2

from gateway import __version__
from gateway.config.load import ConfigError
from gateway.config.telemetry import OtelConfig
from gateway.domain.ids import RequestId
from gateway.domain.request import Protocol
from gateway.responses.content import Kind, ResponseContent
from gateway.telemetry.otel import export as module
from gateway.telemetry.otel import otlp
from gateway.telemetry.otel.contents import Content, Contents
from gateway.telemetry.otel.export import TraceExport
from gateway.telemetry.otel.otlp import (
    CLIENT,
    INTERNAL,
    SERVER,
    Span,
    encode_request,
    encode_span,
    text_attribute,
)
from gateway.telemetry.otel.trace_context import TraceContexts
from gateway.wire.slices import finish
from tests.core.playbook import Playbook, finished, first_token, session_finished, stated
from tests.telemetry.otlp_receiver import Receiver, attributes

TEXT = st.text(st.characters(exclude_categories=["Cs"]), max_size=300)
VALUES = (
    TEXT | st.integers(-(2**63), 2**63 - 1) | st.floats(allow_nan=False) | st.booleans()
    | st.lists(TEXT, max_size=4).map(tuple)
)  # fmt: skip
SPANS = st.builds(
    Span,
    trace_id=st.binary(min_size=16, max_size=16),
    span_id=st.binary(min_size=8, max_size=8),
    parent=st.just(b"") | st.binary(min_size=8, max_size=8),
    name=TEXT,
    kind=st.sampled_from((INTERNAL, SERVER, CLIENT)),
    start_s=st.floats(0, 4e9),
    end_s=st.floats(0, 4e9),
    attributes=st.dictionaries(TEXT, VALUES, max_size=6).map(lambda each: tuple(each.items())),
    links=st.lists(
        st.tuples(st.binary(min_size=16, max_size=16), st.binary(min_size=8, max_size=8)), max_size=3
    ),
    error=TEXT,
)


@given(SPANS)
def test_a_span_is_read_as_it_was_meant(span):
    read = trace_pb2.Span.FromString(encode_span(span))
    assert (read.trace_id, read.span_id, read.parent_span_id) == (span.trace_id, span.span_id, span.parent)
    assert (read.name, read.kind) == (span.name, span.kind)
    assert read.start_time_unix_nano == int(span.start_s * 1e9)
    assert read.end_time_unix_nano == int(span.end_s * 1e9)
    assert attributes(read) == dict(span.attributes)
    assert [(link.trace_id, link.span_id) for link in read.links] == span.links
    assert (read.status.code, read.status.message) == ((2, span.error) if span.error else (0, ""))
    assert not read.HasField("status") or span.error


def test_what_is_not_known_is_not_said():
    span = Span(b"t" * 16, b"s" * 8, b"", "x", INTERNAL, 1.0, 2.0, (("a", None), ("b", 0), ("c", "")))
    assert attributes(trace_pb2.Span.FromString(encode_span(span))) == {"b": 0, "c": ""}


def test_what_turns_say_is_not_remembered():
    otlp._attribute.cache_clear()
    said = text_attribute(9, "gen_ai.input.messages", '[{"role":"größer"}]'.encode())
    assert attributes(trace_pb2.Span.FromString(said)) == {"gen_ai.input.messages": '[{"role":"größer"}]'}
    assert not otlp._attribute.cache_info().currsize


def test_a_name_that_is_no_unicode_harms_nobody():
    span = Span(b"t" * 16, b"s" * 8, b"", "\ud800", INTERNAL, 1.0, 2.0)
    assert trace_pb2.Span.FromString(encode_span(span)).name == "?"


@given(st.lists(SPANS, max_size=5))
def test_a_request_holds_them_all(spans):
    body = encode_request(map(encode_span, spans), (("service.name", "turnpike"),), version="1")
    [resource] = ExportTraceServiceRequest.FromString(body).resource_spans
    [scope] = resource.scope_spans
    assert (scope.scope.name, scope.scope.version) == ("turnpike", "1")
    assert [span.span_id for span in scope.spans] == [span.span_id for span in spans]
    assert attributes(resource.resource) == {"service.name": "turnpike"}


@pytest.fixture
def receiver():
    with Receiver() as receiver:
        yield receiver


@pytest.fixture(autouse=True)
def quick(monkeypatch):
    monkeypatch.setattr(module, "_SEND_PERIOD_S", 0.01)
    monkeypatch.setattr(module, "_BACKOFF_S", (0.01, 0.05))


class Exported:
    def __init__(self, endpoint: str, environ=None, **settings) -> None:
        config = OtelConfig(endpoint=endpoint, **{"max_spans_per_s": 1_000_000, **settings})
        self.export = TraceExport(
            config, TraceContexts(1.0, max_sessions=1000), environ or {}, max_sessions=1000, clock=time.time
        )
        self.play = Playbook()
        self.export.open()
        self.tasks = [asyncio.ensure_future(self.export.run())]

    def sessions(self, count: int, start: int = 0) -> None:
        play = self.play
        for number in range(start, start + count):
            name = f"r{number}"
            play.begins(name, explicit=stated(name), stream=True) >> first_token(name) >> finished(name)
            play >> session_finished(play.session.id)
            self.export.take(play.records.copy())
            play.records.clear()

    async def __aenter__(self) -> "Exported":
        return self

    async def __aexit__(self, *_: object) -> None:
        for task in self.tasks:
            task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await task
        await self.export.close()


async def until(is_true) -> None:
    async with asyncio.timeout(10):
        while not is_true():
            await asyncio.sleep(0.005)


async def test_spans_arrive(receiver):
    async with Exported(
        receiver.endpoint, {"TOKEN": "Bearer x\n"}, headers={"x-team": "a"}, authorization_env="TOKEN"
    ) as sent:
        sent.sessions(300)
        await until(lambda: sent.export.sent == 1500)
        assert len(receiver.spans) == 1500 and not sent.export.dropped and receiver.requests < 10
        assert receiver.headers[0]["Authorization"] == "Bearer x" and receiver.headers[0]["x-team"] == "a"
        names = {span.name for span in receiver.spans}
        assert names == {"chat", "decode", "invoke_agent", "prefill", "session"}


async def test_a_resource_is_described_as_everywhere(receiver, monkeypatch):
    monkeypatch.setenv("OTEL_RESOURCE_ATTRIBUTES", "deployment.environment=test")
    async with Exported(receiver.endpoint, service_name="front") as sent:
        sent.sessions(1)
        await until(lambda: receiver.resources)
        said = receiver.resources[0]
        assert said["service.name"] == "front" and said["service.version"] == __version__
        assert said["deployment.environment"] == "test"


async def test_what_is_open_at_the_end_is_sent(receiver):
    async with Exported(receiver.endpoint) as sent:
        sent.play.arrives("r1", explicit=stated("one"))
        sent.export.take(sent.play.records)
    [root] = [span for span in receiver.spans if not span.parent_span_id]
    [end] = [span for span in receiver.spans if span.name == "session"]
    assert attributes(end)["turnpike.session.end"] == "shutdown" and end.parent_span_id == root.span_id
    assert len(receiver.spans) == 4


async def test_a_collector_that_is_busy_is_asked_again(receiver):
    receiver.statuses = [503, 429, 200]
    async with Exported(receiver.endpoint) as sent:
        sent.sessions(2)
        await until(lambda: len(receiver.spans) == 10)
        assert not sent.export.dropped


async def test_what_it_refuses_is_dropped_and_counted(receiver, caplog):
    receiver.statuses = [400]
    async with Exported(receiver.endpoint) as sent:
        with caplog.at_level(logging.WARNING):
            sent.sessions(2)
            await until(lambda: sent.export.dropped == 10)
        assert caplog.messages == ['warning collector_down cause="it answered 400"']
        sent.sessions(1, start=9)
        await until(lambda: len(receiver.spans) == 5)


async def test_a_dead_collector_costs_spans_and_nothing_else(caplog):
    async with Exported("http://127.0.0.1:9/v1/traces", max_pending=100) as sent:
        sent.sessions(200)
        await until(lambda: sent.export.dropped >= 900)
        assert len(sent.export._pending) == 100
    assert sent.export.dropped == 1000
    assert len([each for each in caplog.messages if "collector_down" in each]) == 1


async def test_a_slow_collector_is_waited_for_by_nobody(receiver, monkeypatch):
    monkeypatch.setattr(module, "_AT_THE_END_S", 0.1)
    receiver.delay_s = 30.0
    async with Exported(receiver.endpoint, max_pending=50) as sent:
        sent.sessions(100)
        await until(lambda: sent.export.dropped >= 350 and receiver.requests)
        began = time.monotonic()
        for _ in range(100):
            await asyncio.sleep(0)
        assert receiver.requests == 1
    assert time.monotonic() - began < receiver.delay_s / 2


def test_a_variable_that_is_not_there_is_said_at_once():
    with pytest.raises(ConfigError, match=r"otel\.authorization_env: NOPE"):
        TraceExport(
            OtelConfig(endpoint="http://x", authorization_env="NOPE"),
            TraceContexts(1.0, max_sessions=9),
            {},
            max_sessions=9,
            clock=time.time,
        )


BODY = json.dumps({"messages": [{"role": "user", "content": "hi"}]}).encode()
R1, R2 = RequestId("r1"), RequestId("r2")


@pytest.fixture
def contents() -> Contents:
    return Contents(
        OtelConfig(endpoint="http://c", content=True, content_bytes=1024, content_max_bytes=1 << 20)
    )


def hold(contents: Contents, turn: RequestId = R1, body: bytes = BODY) -> ResponseContent | None:
    return contents.hold(turn, Protocol.CHAT, body, None)


def written(contents: Contents, content: Content) -> tuple[dict[str, str], bool]:
    found, _, is_cut = finish(contents.writing(content))
    return {name: value.decode() for name, value in found}, is_cut


def test_it_is_held_until_its_span_is_written(contents):
    said = hold(contents)
    assert said is not None and contents.bytes == len(BODY) + 1024
    said.add(1, Kind.TEXT, "hello")
    content = contents.ended(R1, "stop")
    assert content is not None and contents.ended(R1, "stop") is None and contents.bytes
    told, is_cut = written(contents, content)
    assert '"content":"hi"' in told["gen_ai.input.messages"] and '"hello"' in told["gen_ai.output.messages"]
    assert not is_cut
    contents.let_go(content)
    assert not contents.bytes


def test_a_turn_that_is_sent_again_is_held_once(contents):
    hold(contents)
    hold(contents)
    assert contents.bytes == len(BODY) + 1024
    contents.forget(R1)
    contents.forget(R1)
    assert not contents.bytes and contents.ended(R1, "stop") is None


def test_what_finds_no_room_is_left_out_and_counted(contents):
    assert hold(contents, R1, b"x" * (1 << 20)) is None
    assert (contents.bytes, contents.left_out) == (0, 1)
    assert hold(contents, R2) is not None


def test_who_is_told_anyway_is_told_once_and_for_all(contents):
    said = ResponseContent()
    assert contents.hold(R1, Protocol.CHAT, BODY, said) is said
    assert contents.bytes == len(BODY) + said.max_bytes
    assert contents.hold(R2, Protocol.CHAT, b"x" * (1 << 20), said) is said, "though there is no room"
    contents.forget(R1)
    assert not contents.bytes


def test_an_answer_that_was_too_long_is_cut(contents):
    said = hold(contents)
    assert said is not None
    said.add(1, Kind.TEXT, "x" * 2000)
    content = contents.ended(R1, "length")
    assert content is not None and written(contents, content)[1]


def test_a_body_that_cannot_be_read_is_not_told(contents):
    hold(contents, R1, b"\x1f\x8bno json")
    content = contents.ended(R1, "stop")
    assert content is not None
    assert written(contents, content) == ({}, True)
    contents.let_go(content)
