"""What turns say, end to end: a collector receives it if the operator asked for it, and nothing is kept."""

import asyncio
import gzip
import json
from typing import Any

import pytest

from gateway.server.auth.client_keys import hash_key
from tests.server.bench import (
    CHAT_ANSWER,
    DELTA,
    DONE,
    STREAM_HEAD,
    Exchange,
    answer,
    chunk,
    eventually,
    post,
    sends,
)
from tests.telemetry.otlp_receiver import Receiver, attributes

SECRET = "Bearer sk-of-the-client"
ASK = {"role": "user", "content": "Weather in Paris?"}
TOLD_ASK = {"role": "user", "parts": [{"type": "text", "content": "Weather in Paris?"}]}
TOOLS = [{"type": "function", "function": {"name": "look", "parameters": {"type": "object"}}}]
CHAT = {"model": "m", "messages": [{"role": "system", "content": "Be brief."}, ASK], "tools": TOOLS}
ARGUMENTS = '{"city":"Paris"}'
CALL = {"type": "tool_call", "id": "call_1", "name": "look", "arguments": {"city": "Paris"}}
PATHS = {"chat": b"/v1/chat/completions", "responses": b"/v1/responses", "messages": b"/v1/messages"}


def sse(*events: Any) -> bytes:
    said = b"".join(b"data: %s\n\n" % json.dumps(event).encode() for event in events)
    return STREAM_HEAD + chunk(said[:40]) + chunk(said[40:]) + chunk(b"")


def delta(**fields: Any) -> Any:
    return {"id": "c1", "model": "m", "choices": [{"index": 0, "delta": fields}]}


def call(number: int = 0, **function: Any) -> Any:
    of = {"id": "call_1", "type": "function"} if "name" in function else {}
    return {"tool_calls": [{"index": number, **of, "function": function}]}


CHAT_STREAM = sse(
    delta(reasoning_content="hm"),
    *(delta(content=word) for word in ("Let ", "me ", "look", ".")),
    delta(**call(name="look", arguments="")),
    *(delta(**call(arguments=piece)) for piece in ('{"city"', ':"Paris"}')),
    {"id": "c1", "choices": [{"index": 0, "delta": {}, "finish_reason": "tool_calls"}]},
)
CHAT_WHOLE = {
    "id": "c1",
    "model": "m",
    "choices": [
        {
            "index": 0,
            "finish_reason": "tool_calls",
            "message": {
                "role": "assistant",
                "reasoning_content": "hm",
                "content": "Let me look.",
                "tool_calls": [
                    {"id": "call_1", "type": "function", "function": {"name": "look", "arguments": ARGUMENTS}}
                ],
            },
        }
    ],
}
BLOCKS: list[Any] = [
    {"type": "thinking", "thinking": "hm", "signature": "s"},
    {"type": "text", "text": "Let me look."},
    {"type": "tool_use", "id": "call_1", "name": "look", "input": {"city": "Paris"}},
]
MESSAGES_WHOLE = {
    "id": "m1", "type": "message", "role": "assistant", "model": "m", "content": BLOCKS,
    "stop_reason": "tool_use", "usage": {"input_tokens": 3, "output_tokens": 2},
}  # fmt: skip
ITEMS = [
    {"type": "reasoning", "id": "rs_1", "summary": [{"type": "summary_text", "text": "hm"}]},
    {
        "type": "message", "id": "msg_1", "role": "assistant",
        "content": [{"type": "output_text", "text": "Let me look."}],
    },
    {"type": "function_call", "id": "fc_1", "call_id": "call_1", "name": "look", "arguments": ARGUMENTS},
]  # fmt: skip
RESPONSES_WHOLE = {
    "id": "resp_1", "object": "response", "model": "m", "status": "completed", "output": ITEMS
}  # fmt: skip
SAID = [{"type": "reasoning", "content": "hm"}, {"type": "text", "content": "Let me look."}, CALL]
BODIES: dict[str, Any] = {
    "chat": CHAT,
    "responses": {"model": "m", "instructions": "Be brief.", "input": [ASK]},
    "messages": {"model": "m", "max_tokens": 9, "system": "Be brief.", "messages": [ASK]},
}


def whole(body: Any) -> bytes:
    return answer(json.dumps(body).encode())


@pytest.mark.parametrize(
    ("protocol", "answered", "reason"),
    [
        ("chat", CHAT_STREAM, "tool_call"),
        ("chat", whole(CHAT_WHOLE), "tool_call"),
        ("messages", whole(MESSAGES_WHOLE), "tool_call"),
        ("responses", whole(RESPONSES_WHOLE), "stop"),
    ],
    ids=("chat-stream", "chat", "messages", "responses"),
)
@pytest.mark.parametrize("ahead", [False, True], ids=("", "prefill-ahead"))
async def test_the_span_of_a_turn_says_it(start, receiver, protocol, answered, reason, ahead):
    bench = await start(
        otel={"endpoint": receiver.endpoint, "content": True}, prefill_ahead={"enabled": ahead}
    )
    bench.backend.script = sends(answered)
    body = {**BODIES[protocol], "stream": answered.startswith(STREAM_HEAD)}
    await bench.ask(
        post(json.dumps(body).encode(), PATHS[protocol], b"Authorization: %s\r\n" % SECRET.encode())
    )
    await bench.gateway.stop()
    [chat] = chats(receiver)
    told = content(chat)
    before = told.pop("system_instructions", None)
    if protocol == "chat":
        in_history = [{"role": "system", "parts": [{"type": "text", "content": "Be brief."}]}]
        assert told.pop("tool.definitions") == [{"type": "function", "name": "look"}] and before is None
    else:
        in_history = []
        assert before == [{"type": "text", "content": "Be brief."}]
    assert told == {
        "input.messages": [*in_history, TOLD_ASK],
        "output.messages": [{"role": "assistant", "parts": SAID, "finish_reason": reason}],
    }
    assert "turnpike.content.truncated" not in attributes(chat)
    others = b"".join(span.SerializeToString() for span in receiver.spans if span is not chat)
    assert b"Paris" not in others
    assert SECRET.encode() not in others + chat.SerializeToString()


def chats(receiver: Receiver) -> list[Any]:
    return [span for span in receiver.spans if span.name.startswith(("chat", "text_completion"))]


def content(span: Any) -> dict[str, Any]:
    names = ("input.messages", "output.messages", "system_instructions", "tool.definitions")
    found = attributes(span)
    return {name: json.loads(found[key]) for name in names if (key := f"gen_ai.{name}") in found}


async def test_without_the_setting_nothing_is_said_nor_held(start, receiver, caplog):
    bench = await start(otel={"endpoint": receiver.endpoint})
    assert not [each for each in caplog.messages if "otel.content" in each]
    assert bench.gateway.telemetry.contents is None
    await bench.ask(post(json.dumps(CHAT).encode()))
    await bench.gateway.stop()
    [chat] = chats(receiver)
    assert not content(chat) and b"Paris" not in chat.SerializeToString()


async def test_sessions_that_are_not_traced_are_not_held(start, receiver):
    bench = await start(otel={"endpoint": receiver.endpoint, "content": True, "sample": 0.0})
    held: list[int] = []

    async def script(exchange: Exchange) -> None:
        await exchange.send(STREAM_HEAD + chunk(DELTA))
        await asyncio.sleep(0.05)
        held.append(bench.gateway.telemetry.contents.bytes)
        await exchange.send(chunk(DONE) + chunk(b""))

    bench.backend.script = script
    await bench.ask(post(json.dumps({**CHAT, "stream": True}).encode()))
    await bench.gateway.stop()
    assert held == [0] and not receiver.spans


async def test_it_is_held_while_the_answer_runs_and_let_go_of_when_its_span_is_sent(start, receiver):
    bench = await start(otel={"endpoint": receiver.endpoint, "content": True})
    contents = bench.gateway.telemetry.contents
    held: list[int] = []

    async def script(exchange: Exchange) -> None:
        await exchange.send(STREAM_HEAD + chunk(DELTA))
        await asyncio.sleep(0.05)
        held.append(contents.bytes)
        await exchange.send(chunk(DONE) + chunk(b""))

    bench.backend.script = script
    body = json.dumps({**CHAT, "stream": True}).encode()
    await bench.ask(post(body))
    assert held == [len(body) + 65_536]
    await eventually(lambda: not contents.bytes and chats(receiver))
    assert not contents._held


async def test_turns_beyond_the_room_are_traced_without_it_and_counted(start, receiver):
    bench = await start(otel={"endpoint": receiver.endpoint, "content": True, "content_max_bytes": 1 << 20})
    padding = "x" * (1 << 20)
    await bench.ask(post(json.dumps({"model": "m", "messages": [{**ASK, "content": padding}]}).encode()))
    await bench.ask(post(json.dumps(CHAT).encode()))
    assert bench.gateway.telemetry.contents.left_out == 1
    await bench.gateway.stop()
    assert sorted(bool(content(chat)) for chat in chats(receiver)) == [False, True]


async def test_what_is_too_long_is_cut_and_said(start, receiver):
    bench = await start(otel={"endpoint": receiver.endpoint, "content": True, "content_bytes": 2048})
    history = [{"role": "user", "content": f"{number} " + "x" * 300} for number in range(40)]
    bench.backend.script = sends(whole(CHAT_WHOLE))
    await bench.ask(post(json.dumps({"model": "m", "messages": history}).encode()))
    await bench.gateway.stop()
    [chat] = chats(receiver)
    found, told = attributes(chat), content(chat)
    assert found["turnpike.content.truncated"] is True
    left_out = found["turnpike.content.messages_left_out"]
    assert left_out + len(told["input.messages"]) == 40 and left_out > 30
    assert told["input.messages"][-1]["parts"][0]["content"].startswith("39 x")
    assert (
        sum(len(value) for key, value in found.items() if key.startswith("gen_ai.") and "messages" in key)
        <= 2048
    )


async def test_a_tenant_may_be_left_out(start, receiver):
    tenants = [
        {"name": "open", "key_hashes": [hash_key("k1")]},
        {"name": "closed", "key_hashes": [hash_key("k2")], "content": False},
    ]
    bench = await start(otel={"endpoint": receiver.endpoint, "content": True}, tenants=tenants)
    for key in (b"k1", b"k2"):
        await bench.ask(post(json.dumps(CHAT).encode(), headers=b"Authorization: Bearer %s\r\n" % key))
    await bench.gateway.stop()
    roots = {attributes(span)["gen_ai.conversation.id"]: attributes(span)["turnpike.tenant"]
             for span in receiver.spans if span.name == "invoke_agent"}  # fmt: skip
    told = {
        roots[attributes(chat)["gen_ai.conversation.id"]]: bool(content(chat)) for chat in chats(receiver)
    }
    assert told == {"open": True, "closed": False}


async def test_bodies_that_are_compressed_are_read(start, receiver):
    bench = await start(otel={"endpoint": receiver.endpoint, "content": True})
    packed = gzip.compress(json.dumps(CHAT).encode())
    bench.backend.script = sends(answer(gzip.compress(CHAT_ANSWER), headers=b"Content-Encoding: gzip\r\n"))
    await bench.ask(post(packed, headers=b"Content-Encoding: gzip\r\n"))
    await bench.gateway.stop()
    [chat] = chats(receiver)
    told = content(chat)
    assert told["input.messages"][-1] == TOLD_ASK
    assert told["output.messages"][0]["parts"] == [{"type": "text", "content": "hello"}]


async def test_an_answer_that_breaks_off_says_what_came(start, receiver):
    bench = await start(otel={"endpoint": receiver.endpoint, "content": True})
    bench.backend.script = sends(STREAM_HEAD + chunk(DELTA) + chunk(DELTA), then="reset")
    client = await bench.send(post(json.dumps({**CHAT, "stream": True}).encode()))
    await client.rest()
    await bench.gateway.stop()
    [chat] = chats(receiver)
    [message] = content(chat)["output.messages"]
    assert message["finish_reason"] == "cut" == attributes(chat)["error.type"]
    assert message["parts"] == [{"type": "text", "content": "hellohello"}]


async def test_a_turn_that_went_elsewhere_says_it(start, receiver):
    asked: list[Exchange] = []

    async def script(exchange: Exchange) -> None:
        asked.append(exchange)
        if len(asked) == 1:
            exchange.reset()
            return
        await exchange.send(STREAM_HEAD + chunk(DELTA))
        await asyncio.sleep(0.1)  # that the first one failed gets known meanwhile
        await exchange.send(chunk(DONE) + chunk(b""))

    bench = await start(replicas=2, otel={"endpoint": receiver.endpoint, "content": True}, script=script)
    await bench.ask(post(json.dumps({**CHAT, "stream": True}).encode()))
    await bench.gateway.stop()
    [chat] = chats(receiver)
    assert len(asked) == 2
    assert content(chat)["output.messages"][0]["parts"] == [{"type": "text", "content": "hello"}]


@pytest.mark.slow
async def test_a_client_that_leaves_leaves_nothing(start, receiver):
    bench = await start(otel={"endpoint": receiver.endpoint, "content": True})
    bench.backend.script = sends(STREAM_HEAD + chunk(DELTA), then="hang")
    contents = bench.gateway.telemetry.contents
    for _ in range(3):
        client = await bench.send(post(json.dumps({**CHAT, "stream": True}).encode()))
        await client.reader.readuntil(b"hello")
        assert contents.bytes
        client.reset()
        await eventually(lambda: not contents.bytes)
    await bench.gateway.stop()
    told = {chat.span_id: chat for chat in chats(receiver)}  # what a slow collector took may come again
    assert [content(chat)["output.messages"][0]["finish_reason"] for chat in told.values()] == [
        "client_left"
    ] * 3


async def test_turns_left_out_of_traces_are_not_held(start, receiver):
    bench = await start(otel={"endpoint": receiver.endpoint, "content": True, "max_spans_per_s": 1})
    for _ in range(8):
        await bench.ask(post(json.dumps(CHAT).encode()))
    contents = bench.gateway.telemetry.contents
    await eventually(lambda: not contents.bytes and not contents._held)
    assert bench.gateway.telemetry._export.left_out >= 5


async def test_a_dead_collector_holds_no_more_than_may_be_held(start):
    bench = await start(
        otel={"endpoint": "http://127.0.0.1:9/v1/traces", "content": True, "content_max_bytes": 1 << 20}
    )
    contents = bench.gateway.telemetry.contents
    client = await bench.connect()
    for _ in range(60):
        assert (await client.ask(post(json.dumps(CHAT).encode()))).status == 200
    assert contents.bytes <= 1 << 20
    assert contents.left_out > 0


@pytest.mark.slow
async def test_a_collector_that_is_busy_gets_it_once_and_whole(start, receiver):
    receiver.statuses = [503]
    bench = await start(otel={"endpoint": receiver.endpoint, "content": True})
    await bench.ask(post(json.dumps(CHAT).encode()))
    await eventually(lambda: receiver.requests == 1)
    assert not bench.gateway.telemetry.contents.bytes, "it is written, and the body is let go of"
    await eventually(lambda: chats(receiver))
    [chat] = chats(receiver)
    keys = [pair.key for pair in chat.attributes]
    assert keys.count("gen_ai.input.messages") == 1 and content(chat)["input.messages"][-1] == TOLD_ASK
