"""Replicas that report errors inside good answers, or answer with what is none."""

import asyncio
import gzip
import json
import time

import pytest

from tests.server.bench import (
    CHAT,
    CHAT_ANSWER,
    DELTA,
    DONE,
    STREAM_HEAD,
    answer,
    chunk,
    eventually,
    get,
    post,
    sends,
)
from tests.server.test_failures import STREAM, WHOLE_STREAM, metrics_of


def event(data: object, name: str = "") -> bytes:
    return (f"event: {name}\n" if name else "").encode() + b"data: " + json.dumps(data).encode() + b"\n\n"


ERROR = {"error": {"message": "CUDA error", "type": "InternalServerError", "code": 500}}
OVERLOADED = {"type": "error", "error": {"type": "overloaded_error", "message": "no"}}
RESPONSE = {"id": "resp_1", "status": "failed", "error": {"code": "server_error"}}
FAILED = {"type": "response.failed", "response": RESPONSE}
BEGUN = event({"type": "message_start", "message": {"id": "msg_1", "usage": {"input_tokens": 1}}})
RESPONSES = post(b'{"model":"m","input":"hi","stream":true,"store":false}', b"/v1/responses")
MESSAGES = post(
    b'{"model":"m","max_tokens":9,"stream":true,"messages":[{"role":"user","content":"hi"}]}', b"/v1/messages"
)
CHAT_END = event({"choices": [{"index": 0, "delta": {}, "finish_reason": "stop"}]})
EMBED = post(b'{"model":"m","input":"hi"}', b"/v1/embeddings")
TOKENIZE = post(b'{"model":"m","prompt":"hi"}', b"/tokenize")
INVOKE = post(CHAT, b"/invocations")
GOOD = {
    **dict.fromkeys((EMBED, TOKENIZE, INVOKE), answer(b'{"data":[]}')),
    STREAM: WHOLE_STREAM,
    post(): answer(),
    MESSAGES: answer(b'{"type":"message","content":[],"stop_reason":"end_turn"}'),
    RESPONSES: answer(b'{"id":"resp_2","status":"completed","output":[]}'),
}
HALF = rb'{"error":{"message":"half \ud83d"},"took":NaN}'
BAD: dict[str, tuple[bytes, tuple[bytes, ...] | bytes, str]] = {
    "messages, bare": (MESSAGES, (BEGUN, event(ERROR), DONE), "error"),
    "responses, bare and alone": (RESPONSES, (event(ERROR),), "error"),
    "a comment before": (MESSAGES, (BEGUN, b": ping\nevent: error\ndata: {}\n\n"), "error"),
    "its name behind": (STREAM, (DELTA, b"data: {}\r\nevent:error\r\n\r\n", DONE), "error"),
    "chat, no strict JSON": (STREAM, (DELTA, b"data: %s\n\n" % HALF, DONE), "error"),
    "no stream, no strict JSON": (post(), HALF, "error"),
    "bad UTF-8": (STREAM, (b'data: {"error":{"message":"\xf0\x9f"}}\n\n', DONE), "error"),
    "a field of another type": (STREAM, (event({**ERROR, "choices": "x"}), DONE), "error"),
    "it finishes so": (STREAM, (DELTA, CHAT_END.replace(b"stop", b"error"), DONE), "error"),
    "a page": (post(), b"<html>502 Bad Gateway</html>", "malformed"),
    "no field of an answer": (post(), b'{"detail":"Internal Server Error"}', "malformed"),
    "cut, with its length": (MESSAGES, b'{"content":[', "malformed"),
    "no choices": (post(), b'{"choices":[]}', "empty"),
    "embeddings": (EMBED, json.dumps(ERROR).encode(), "error"),
    "tokens": (TOKENIZE, json.dumps(ERROR).encode(), "error"),
    "another door": (INVOKE, json.dumps(ERROR).encode(), "error"),
    "chat": (STREAM, (event(ERROR), DONE), "error"),
    "chat, later": (STREAM, (DELTA, event(ERROR), DONE), "error"),
    "chat, no stream": (post(), json.dumps(ERROR).encode(), "error"),
    "chat, as a text": (STREAM, (event({"error": "out of memory"}),), "error"),
    "chat, by name": (STREAM, (event({"message": "gone"}, "error"),), "error"),
    "chat, as vLLM was": (STREAM, (event({"object": "error", "message": "no", "code": 500}),), "error"),
    "messages": (MESSAGES, (BEGUN, event(OVERLOADED, "error")), "error"),
    "messages, no stream": (MESSAGES, json.dumps(OVERLOADED).encode(), "error"),
    "responses": (RESPONSES, (event(FAILED, "response.failed"),), "error"),
    "responses, no stream": (RESPONSES, json.dumps(RESPONSE).encode(), "error"),
    "responses, bare": (RESPONSES, (event({"type": "error", "code": "server_error"}),), "error"),
    "no event": (STREAM, (b": hello\n\n",), "truncated"),
    "nothing": (STREAM, (), "truncated"),
    "no end": (STREAM, (DELTA,), "truncated"),
    "messages, no end": (MESSAGES, (BEGUN,), "truncated"),
    "its end alone": (STREAM, (DONE,), "empty"),
    "an empty body": (post(), b"", "truncated"),
}


@pytest.mark.parametrize(("asked", "said", "failure"), BAD.values(), ids=BAD)
async def test_a_replica_that_fails_inside_good_answers_is_ejected(start, asked, said, failure):
    bench = await start(replicas=2)
    whole = said if isinstance(said, bytes) else b"".join(said)
    streamed = STREAM_HEAD + b"".join(chunk(part) for part in said or () if said is not whole)
    bench.backends[0].script = sends(answer(whole) if said is whole else streamed + b"0\r\n\r\n")
    bench.backends[1].script = sends(GOOD[asked])
    bodies = [(await bench.ask(asked)).body for _ in range(10)]
    assert bodies.count(whole) == len(bench.backends[0].seen) == 3, (
        "then it is ejected; bytes pass as they are"
    )
    told = await metrics_of(bench)
    assert 'turnpike_replica_changes_total{replica="default-0",state="ejected"} 1.0' in told
    if asked != TOKENIZE:  # which runs on no GPU
        assert f'turnpike_attempts_total{{code="200",outcome="{failure}",replica="default-0"}} 3.0' in told
    assert 'code="200",endpoint="' in told and 'status_class="5xx"} 3.0' in told


async def test_embeddings_that_succeed_do_not_excuse_chats_that_fail(start):
    bench = await start(replicas=2)

    async def only_embeds(exchange):
        is_chat = b"/chat/" in exchange.request.first_line
        await exchange.send(answer(b"{}", status=b"500 X") if is_chat else GOOD[EMBED])

    bench.backends[0].script = only_embeds
    bench.backends[1].script = sends(answer())
    for _ in range(8):
        await bench.ask(post())
        await bench.ask(EMBED)
    seen = [each.first_line for each in bench.backends[0].seen]
    assert sum(b"/chat/" in each for each in seen) == 3


async def test_the_answer_to_a_question_after_a_failed_one_is_a_good_one(start):
    bench = await start()
    bench.backend.script = sends(answer(json.dumps(RESPONSE).encode()))
    for _ in range(8):
        assert (await bench.ask(get(b"/v1/responses/resp_1"))).status == 200
    told = await metrics_of(bench)
    assert 'status_class="2xx"} 8.0' in told and 'status_class="5xx"' not in told


CLIENTS_FAULT = {"error": {"message": "too long", "type": "BadRequestError", "code": 400}}
"""Whoever answers it."""


@pytest.mark.parametrize(
    ("raw", "outcome"),
    [
        (STREAM_HEAD + chunk(event(CLIENTS_FAULT)) + b"0\r\n\r\n", "rejected"),
        (STREAM_HEAD + chunk(CHAT_END) + b"0\r\n\r\n", "finished"),
        (STREAM_HEAD + chunk(b"data: no JSON\n\n") + b"0\r\n\r\n", "finished"),
        (answer(b"{}", status=b"400 Bad Request"), "rejected"),
        (answer().replace(b"application/json", b"text/plain"), "finished"),
        (answer(DELTA + DONE), "finished"),
        (STREAM_HEAD + chunk(CHAT_ANSWER) + b"0\r\n\r\n", "finished"),
        (answer(CHAT_ANSWER.replace(b"{", b'{"error":false,', 1)), "finished"),
        (answer(b"?", headers=b"Content-Encoding: br\r\n"), "finished"),
        (b"HTTP/1.1 204 No Content\r\n\r\n", "finished"),
    ],
    ids=[
        *(
            "a client's error",
            "no [DONE]",
            "what cannot be read",
            "400",
            "as a text",
            "as JSON",
            "as a stream",
        ),
        *("no error", "unknown coding", "204"),
    ],
)
async def test_what_is_no_fault_of_the_replicas_ejects_nobody(start, raw, outcome):
    bench = await start(replicas=2)
    for backend in bench.backends:
        backend.script = sends(raw)
    for _ in range(8):
        await bench.ask(STREAM)
    metrics = await metrics_of(bench)
    assert 'state="ejected"' not in metrics
    for replica, backend in enumerate(bench.backends):
        count = f"{len(backend.seen)}.0"
        assert backend.seen and f'outcome="{outcome}",replica="default-{replica}"}} {count}' in metrics


async def test_a_client_that_leaves_at_the_error_takes_nothing_of_it_away(start):
    """SDKs raise at the error, and close."""
    bench = await start(replicas=2)
    bench.backends[0].script = sends(STREAM_HEAD + chunk(event(ERROR)), then="hang")
    bench.backends[1].script = sends(WHOLE_STREAM)
    for _ in range(10):
        client = await bench.send(STREAM)
        async with asyncio.timeout(5):
            await client.reader.readuntil(b"}\n\n")
        client.close()
        await eventually(bench.is_quiet)
    assert len(bench.backends[0].seen) == 3


async def test_an_answer_that_swells_holds_nobody_up(start):
    """A hundred kilobytes of it are six million events."""
    bench = await start()
    packed = gzip.compress(b"data: {}\n\n" * 6_000_000)
    raw = answer(packed, headers=b"Content-Encoding: gzip\r\n").replace(
        b"application/json", b"text/event-stream"
    )
    bench.backend.script = sends(raw)
    asked, longest_s = asyncio.ensure_future(bench.ask(STREAM)), 0.0
    while not (asked.done() and bench.is_quiet()):
        before = time.thread_time()
        await asyncio.sleep(0)
        longest_s = max(longest_s, time.thread_time() - before)
    assert asked.result().body == packed and longest_s < 0.5
    assert 'outcome="finished",replica="default-0"} 1.0' in await metrics_of(bench)
