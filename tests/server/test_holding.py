"""Clients that wait for a stream: quiet at first, then keep-alives, then the answer or the stream's error."""

import asyncio
import gzip
import zlib
from types import SimpleNamespace
from typing import Any

import pytest

from tests.server.bench import DELTA, DONE, STREAM_HEAD, answer, chunk, eventually, post, sends
from tests.server.test_queue import Gate

CHAT = b'{"model":"m","stream":true,"messages":[{"role":"user","content":"hi"}]}'
CREATED = b'data: {"type":"response.created","sequence_number":0,"response":{"id":"r","output":[]}}\n\n'
COMPLETED = CREATED.replace(b"created", b"completed")
MESSAGE = (
    b'event: message_start\ndata: {"type":"message_start","message":{"id":"m","role":"assistant",'
    b'"content":[],"model":"m","usage":{"input_tokens":1,"output_tokens":1}}}\n\n'
    b'event: message_stop\ndata: {"type":"message_stop"}\n\n'
)
FAILURE = answer(b'{"error":{"message":"too long","type":"BadRequestError","code":400}}', b"400 Bad Request")
HOLDING = {"first_keepalive_s": 0.1, "period_s": 0.05}


def streamed(*events: bytes) -> bytes:
    return STREAM_HEAD + b"".join(map(chunk, events)) + b"0\r\n\r\n"


async def held(start: Any, last: bytes, **settings: Any) -> tuple[Any, Any, Gate]:
    """A bench whose only place is taken; whoever comes next gets `last`."""
    settings.setdefault("server", {"holding": HOLDING})
    bench = await start(admission={"max_running_per_replica": 1}, **settings)
    gate = Gate()

    async def script(exchange: Any) -> None:
        if len(bench.backend.seen) == 1:
            await gate(exchange)
        else:
            await sends(last)(exchange)

    bench.backend.script = script
    first = await bench.arrive(post())
    return bench, first, gate


async def free(first: Any, gate: Gate) -> None:
    gate.passes.release()
    assert (await first.receive()).status == 200


async def test_who_waits_shortly_gets_the_backends_own_head(start):
    bench, first, gate = await held(start, FAILURE, server={"holding": {"first_keepalive_s": 5}})
    second = await bench.send(post(CHAT))
    await eventually(lambda: len(bench.brain.waiting_room) == 1)
    await free(first, gate)
    assert (await second.receive()).status == 400


async def test_who_waits_for_long_hears_of_it_and_gets_all_of_the_answer(start):
    bench, first, gate = await held(start, streamed(DELTA, DONE))
    second = await bench.send(post(CHAT))
    await asyncio.sleep(0.3)
    await free(first, gate)
    response = await second.receive()
    assert response.status == 200 and response.is_whole
    assert response.get(b"content-type").startswith(b"text/event-stream")
    said, _, rest = response.body.rpartition(b": keep-alive\n")
    assert said.count(b": keep-alive\n") >= 1 and b"\n\n" not in said and rest == DELTA + DONE
    assert response.get(b"x-accel-buffering") == b"no" and response.get(b"date")
    assert response.get(b"x-turnpike-request"), "`turnpike explain` takes it"
    # The connection serves on.
    bench.backend.script = sends(answer())
    assert (await second.ask(post())).status == 200


async def test_who_reads_no_stream_is_told_nothing(start):
    bench, first, gate = await held(start, answer(b"{}"))
    second = await bench.send(post())
    await asyncio.sleep(0.25)
    await free(first, gate)
    assert (await second.receive()).body == b"{}"


def compressed(body: bytes, status: bytes, kind: bytes, coding: bytes) -> bytes:
    packed = (
        gzip.compress(body) if coding == b"gzip" else zlib.compress(body) if coding == b"deflate" else body
    )
    head = b"HTTP/1.1 %s\r\nContent-Type: %s\r\nContent-Encoding: %s\r\nTransfer-Encoding: chunked\r\n\r\n"
    chunks = b"".join(chunk(packed[at : at + 7]) for at in range(0, len(packed), 7))
    return head % (status, kind, coding) + chunks + b"0\r\n\r\n"


TOO_LONG, EVENTS = FAILURE.partition(b"\r\n\r\n")[2], b"text/event-stream"
COMPRESSED = {
    "an error": (compressed(TOO_LONG, b"400 No", b"application/json", b"gzip"), b'"message":"too long"'),
    "deflated": (compressed(TOO_LONG, b"400 No", b"application/json", b"deflate"), b'"message":"too long"'),
    "of another coding": (compressed(TOO_LONG, b"400 No", b"application/json", b"br"), b"content coding br"),
    "damaged": (compressed(TOO_LONG, b"400 No", b"application/json", b"x-gzip"), b"content coding x-gzip"),
    "a stream": (compressed(DELTA + DONE, b"200 OK", EVENTS, b"gzip"), DELTA + DONE),
    "a stream of another coding": (compressed(DELTA + DONE, b"200 OK", EVENTS, b"br"), b"content coding br"),
    "a damaged stream": (compressed(DELTA + DONE, b"200 OK", EVENTS, b"x-gzip"), None),
}


@pytest.mark.parametrize("case", COMPRESSED)
async def test_who_was_held_can_read_an_answer_that_came_compressed(start, case):
    last, told = COMPRESSED[case]
    bench, first, gate = await held(start, last)
    second = await bench.send(post(CHAT, headers=b"Accept-Encoding: gzip, br\r\n"))
    await asyncio.sleep(0.2)
    await free(first, gate)
    response = await second.receive()
    assert bench.backend.seen[1].all(b"accept-encoding") == [b"identity"]
    if told is None:
        assert not response.is_whole
    else:
        assert told in response.body and response.body.endswith(DONE) and response.is_whole


async def test_a_client_that_leaves_meanwhile_is_forgotten(start):
    bench, first, gate = await held(start, FAILURE)
    second = await bench.send(post(CHAT))
    await asyncio.sleep(0.2)
    second.close()
    await eventually(lambda: not bench.brain.waiting_room)
    await free(first, gate)


async def test_a_backend_that_dies_cuts_the_stream(start):
    bench, first, gate = await held(start, FAILURE)
    second = await bench.send(post(CHAT))
    await asyncio.sleep(0.2)
    bench.backend.script = sends(STREAM_HEAD + chunk(DELTA), then="reset")
    gate.passes.release()
    assert not (await second.receive()).is_whole
    await first.receive()


async def test_who_waited_too_long_is_told_in_the_stream(start):
    bench, first, gate = await held(start, FAILURE, core={"max_wait_s": 0.3, "max_stream_wait_s": 0.3})
    response = await bench.ask(post(CHAT))
    assert response.status == 200 and response.is_whole
    assert b'"code":"queue_timeout"' in response.body and response.body.endswith(DONE)
    await free(first, gate)


async def test_streams_are_held_longer_than_what_cannot_be_told_anything(start):
    bench, first, gate = await held(
        start, streamed(DELTA, DONE), core={"max_wait_s": 0.2, "max_stream_wait_s": 30}
    )
    second = await bench.send(post(CHAT))
    assert (await bench.ask(post())).status == 503
    await free(first, gate)
    assert (await second.receive()).body.endswith(DELTA + DONE)


async def late_failure(start: Any, **settings: Any) -> tuple[Any, Any]:
    """A held client that was told to wait, and a backend that begins an answer that is no stream."""
    part = b"HTTP/1.1 500 Oops\r\nContent-Type: application/json\r\nContent-Length: 1000\r\n\r\n{"
    bench, first, gate = await held(start, part, **settings)

    second = await bench.send(post(CHAT))
    await second.reader.readuntil(b"keep-alive\n")
    bench.backend.script = sends(part, then="hang")
    await free(first, gate)
    return bench, second


async def test_a_late_failure_that_stalls_is_cut(start):
    bench, second = await late_failure(start, upstream={"stall_timeout_s": 0.2})
    assert (await second.rest())[1] == "reset"
    await eventually(bench.is_quiet)


async def test_who_leaves_during_a_late_failure_takes_its_request_along(start):
    bench, second = await late_failure(start)
    replicas = bench.gateway.replica_watch.replicas.values()
    await eventually(lambda: any(each.head for replica in replicas for each in replica._busy))
    second.close()
    await eventually(bench.is_quiet)


# --- the SDKs, unmodified ----------------------------------------------------------------------------


@pytest.fixture(scope="module")
def libraries() -> Any:
    import anthropic
    import openai

    return SimpleNamespace(anthropic=anthropic, openai=openai)


class Sdk:
    """A client of a kind that asks while the only place is taken, and what it makes of the answer."""

    def __init__(self, libraries: Any, bench: Any) -> None:
        url = f"http://127.0.0.1:{bench.gateway.listener.port}"
        self.openai = libraries.openai.AsyncOpenAI(base_url=f"{url}/v1", api_key="any", max_retries=0)
        self.anthropic = libraries.anthropic.AsyncAnthropic(base_url=url, api_key="any", max_retries=0)

    async def chat(self) -> list[Any]:
        return [
            e async for e in await self.openai.chat.completions.create(model="m", messages=ASKED, stream=True)
        ]

    async def responses(self) -> list[Any]:
        return [e async for e in await self.openai.responses.create(model="m", input="hi", stream=True)]

    async def responses_helper(self) -> list[Any]:
        async with self.openai.responses.stream(model="m", input="hi") as events:
            return [event async for event in events]

    async def messages(self) -> list[Any]:
        stream = await self.anthropic.messages.create(model="m", max_tokens=9, messages=ASKED, stream=True)
        return [event async for event in stream]

    async def close(self) -> None:
        await self.openai.close()
        await self.anthropic.close()


ASKED: Any = [{"role": "user", "content": "hi"}]
ANSWERS = {
    "chat": (streamed(DELTA, DONE), 1),
    "responses": (streamed(CREATED, COMPLETED), 2),
    "responses_helper": (streamed(CREATED, COMPLETED), 2),
    "messages": (streamed(MESSAGE), 2),
}


@pytest.mark.parametrize("api", ANSWERS)
@pytest.mark.slow
async def test_sdks_take_keep_alives_and_then_the_answer(start, libraries, api):
    last, count = ANSWERS[api]
    bench, first, gate = await held(start, last)
    sdk = Sdk(libraries, bench)
    asking = asyncio.create_task(getattr(sdk, api)())
    await asyncio.sleep(0.4)
    await free(first, gate)
    assert len(await asking) == count
    await sdk.close()


@pytest.mark.parametrize("api", ANSWERS)
@pytest.mark.slow
async def test_sdks_raise_the_streams_error(start, libraries, api):
    bench, first, gate = await held(start, FAILURE)
    sdk = Sdk(libraries, bench)
    asking = asyncio.create_task(getattr(sdk, api)())
    await asyncio.sleep(0.4)
    await free(first, gate)
    with pytest.raises((libraries.openai.APIError, libraries.anthropic.APIError), match="too long"):
        await asking
    await sdk.close()
