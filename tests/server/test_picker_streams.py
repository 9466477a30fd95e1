"""A picker asked by gRPC's own client, without Envoy: what it holds, when it refuses, how it goes."""

import asyncio
import contextlib
from collections import Counter
from typing import Any

import grpc
import grpc.aio
import pytest

from gateway.core import events as ev
from gateway.server.picker.answers import DESTINATION
from gateway.server.picker.messages import ProcessingRequest
from tests.envoy_messages import ProcessingResponse
from tests.server.bench import CHAT, CHAT_ANSWER, Bench, eventually

_PROCESS = "/envoy.service.ext_proc.v3.ExternalProcessor/Process"
_CHECK = "/grpc.health.v1.Health/Check"


class PickerBench(Bench):
    is_picker = True

    def channel(self) -> Any:
        """With a connection of its own."""
        options = [("grpc.use_local_subchannel_pool", 1), ("grpc.max_send_message_length", -1)]
        return grpc.aio.insecure_channel(f"127.0.0.1:{self.gateway.picker_port}", options=options)


@pytest.fixture
async def begin():
    async with contextlib.AsyncExitStack() as stack:

        async def start(**settings) -> PickerBench:
            bench = PickerBench()
            picker = {"listen": "127.0.0.1:0", **settings.pop("picker", {})}
            await bench.start(replicas=1, picker=picker, **settings)
            stack.push_async_callback(bench.finish, is_last=False)
            return bench

        yield start


def ask(channel: Any) -> Any:
    return channel.stream_stream(
        _PROCESS,
        request_serializer=lambda message: message if type(message) is bytes else message.SerializeToString(),
        response_deserializer=ProcessingResponse.FromString,
    )()


def headers(field: str, *more: tuple[str, str]) -> Any:
    message = ProcessingRequest()
    told = {
        "request_headers": [(":method", "POST"), (":path", "/v1/chat/completions"), (":authority", "g")],
        "response_headers": [(":status", "200"), ("content-type", "application/json")],
    }[field]
    for name, value in (*told, *more):
        getattr(message, field).headers.headers.add(key=name.encode(), raw_value=value.encode())
    return message


def body(field: str, data: bytes, *, is_last: bool = True) -> Any:
    message = ProcessingRequest()
    getattr(message, field).body, getattr(message, field).end_of_stream = data, is_last
    return message


async def said(stream: Any, message: Any) -> Any:
    await stream.write(message)
    return await stream.read()


async def place(stream: Any) -> Any:
    await said(stream, headers("request_headers"))
    told = await said(stream, body("request_body", CHAT))
    names = [each.header.key for each in told.request_body.response.header_mutation.set_headers]
    assert DESTINATION in names
    return told


async def leave(stream: Any) -> None:
    await stream.done_writing()
    assert await stream.code() is grpc.StatusCode.OK


@pytest.mark.parametrize(
    ("parts", "has_length", "told"),
    [
        ([CHAT_ANSWER], True, {ev.AnsweredAtOnce: 1}),
        ([CHAT_ANSWER], False, {ev.ResponseStarted: 1, ev.FirstTokenSeen: 1, ev.ResponseFinished: 1}),
        (
            [CHAT_ANSWER[:9], CHAT_ANSWER[9:]],
            True,
            {ev.ResponseStarted: 1, ev.FirstTokenSeen: 1, ev.ResponseFinished: 1},
        ),
    ],
)
async def test_an_answer_that_comes_whole_is_told_at_once(begin, parts, has_length, told, monkeypatch):
    bench, sent = await begin(), Counter[type]()
    send = bench.gateway.driver.send

    def spy(event):
        sent[type(event)] += 1
        send(event)

    monkeypatch.setattr(bench.gateway.driver, "send", spy)
    async with bench.channel() as channel:
        stream = ask(channel)
        await place(stream)
        length = [("content-length", str(len(CHAT_ANSWER)))] if has_length else []
        receipts = await said(stream, headers("response_headers", *length))
        assert receipts.response_headers.response.header_mutation.set_headers
        for number, part in enumerate(parts, 1):
            reply = await said(stream, body("response_body", part, is_last=number == len(parts)))
            assert reply.HasField("response_body")
        await leave(stream)
    of_answers = {
        ev.AnsweredAtOnce,
        ev.ResponseStarted,
        ev.FirstTokenSeen,
        ev.ResponseFinished,
        ev.ClientLeft,
    }
    assert {kind: count for kind, count in sent.items() if kind in of_answers} == told


async def test_a_large_body_needs_room_before_it_is_there(begin):
    bench = await begin(limits={"max_body_bytes": 8 << 20, "max_buffered_bytes": 8 << 20})
    budget = bench.gateway.listener.budget
    async with bench.channel() as channel:
        first, second = ask(channel), ask(channel)
        for stream in (first, second):
            await said(stream, headers("request_headers"))
        # gRPC's client sends a message as fast as windows allow: its beginning is there before its end.
        large = asyncio.create_task(said(first, body("request_body", b"x" * (5 << 20))))
        await eventually(lambda: budget.used >= 5 << 20)
        refused = await said(second, body("request_body", b"x" * (5 << 20)))
        assert refused.immediate_response.status.code == 503
        await large
        await leave(second)
        first.cancel()
    await eventually(bench.is_quiet)


async def test_a_message_beyond_all_limits_is_refused_when_it_begins(begin):
    bench = await begin(limits={"max_body_bytes": 1000})
    async with bench.channel() as channel:
        stream = ask(channel)
        await said(stream, headers("request_headers"))
        refused = await said(stream, body("request_body", b"x" * (3 << 20)))
        assert refused.immediate_response.status.code == 413
        await leave(stream)
        stream = ask(channel)  # nobody is known yet
        refused = await said(stream, headers("request_headers", ("x-large", "x" * (200 << 10))))
        assert refused.immediate_response.status.code == 413


async def test_what_is_no_message_ends_its_stream_alone(begin):
    bench = await begin()
    async with bench.channel() as channel:
        broken, sound = ask(channel), ask(channel)
        await said(sound, headers("request_headers"))
        await broken.write(b"\xff\xff\xff")
        assert await broken.code() is grpc.StatusCode.INTERNAL and not bench._logs.lines
        told = await said(sound, body("request_body", CHAT))
        assert told.HasField("request_body")
        sound.cancel()


async def test_no_more_streams_than_there_may_be(begin):
    bench = await begin(picker={"max_streams": 1})
    async with bench.channel() as one, bench.channel() as other:
        first = ask(one)
        await place(first)
        second = ask(other)
        assert await second.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
        await leave(first)
        third = ask(other)
        await place(third)
        await leave(third)


async def test_who_stops_says_so_and_lets_streams_end(begin):
    bench = await begin()
    async with bench.channel() as channel, bench.channel() as late:
        check = channel.unary_unary(_CHECK, request_serializer=bytes, response_deserializer=bytes)
        assert await check(b"") == b"\x08\x01"
        stream = ask(channel)
        await place(stream)
        bench.gateway._picker.retire()
        assert await check(b"") == b"\x08\x02"
        stopping = asyncio.create_task(bench.gateway._picker.stop(30.0))
        await asyncio.sleep(0.2)
        assert not stopping.done()
        with pytest.raises(grpc.aio.AioRpcError, match="UNAVAILABLE"):
            await late.unary_unary(_CHECK, request_serializer=bytes, response_deserializer=bytes)(b"")
        await said(stream, headers("response_headers"))
        assert (await said(stream, body("response_body", CHAT_ANSWER))).HasField("response_body")
        await leave(stream)
        await asyncio.wait_for(stopping, 10.0)


async def test_who_stops_at_once_cuts_streams(begin):
    bench = await begin()
    async with bench.channel() as channel:
        stream = ask(channel)
        await place(stream)
        await bench.gateway._picker.stop(0.0)
        assert await stream.code() is grpc.StatusCode.UNAVAILABLE
        assert bench.is_quiet()
