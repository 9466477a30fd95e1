"""Replicas that report errors inside good answers; and a gateway that knows no sessions."""

import asyncio
import gzip
import json
import time
from typing import Any

import pytest

from tests.server.bench import (
    CHAT,
    CHAT_ANSWER,
    DELTA,
    DONE,
    STREAM_HEAD,
    Bench,
    answer,
    bearer,
    chunk,
    eventually,
    get,
    pauses,
    post,
    sends,
)
from tests.server.test_auth import ALICE, BOB, TENANTS
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
    bench = await start(script=sends(answer(json.dumps(RESPONSE).encode())))
    for _ in range(8):
        assert (await bench.ask(get(b"/v1/responses/resp_1"))).status == 200
    told = await metrics_of(bench)
    assert 'status_class="2xx"} 8.0' in told and 'status_class="5xx"' not in told


CLIENTS_FAULT = {"error": {"message": "too long", "type": "BadRequestError", "code": 400}}


@pytest.mark.parametrize(
    ("raw", "outcome"),
    [
        (STREAM_HEAD + chunk(event(CLIENTS_FAULT)) + b"0\r\n\r\n", "rejected"),
        (STREAM_HEAD + chunk(CHAT_END) + b"0\r\n\r\n", "finished"),
        (answer(b"{}", status=b"400 Bad Request"), "rejected"),
        (answer().replace(b"application/json", b"text/plain"), "finished"),
        (answer(DELTA + DONE), "finished"),
        (STREAM_HEAD + chunk(CHAT_ANSWER) + b"0\r\n\r\n", "finished"),
        (answer(CHAT_ANSWER.replace(b"{", b'{"error":false,', 1)), "finished"),
        (answer(b"?", headers=b"Content-Encoding: br\r\n"), "finished"),
        (b"HTTP/1.1 204 No Content\r\n\r\n", "finished"),
    ],
    ids=[
        *("a client's error", "no [DONE]", "400", "as a text", "as JSON", "as a stream", "no error"),
        *("unknown coding", "204"),
    ],
)
async def test_what_is_no_fault_of_the_replicas_ejects_nobody(start, raw, outcome):
    bench = await start(replicas=2, script=sends(raw))
    for _ in range(8):
        await bench.ask(STREAM)
    metrics = await metrics_of(bench)
    assert 'state="ejected"' not in metrics
    for replica, backend in enumerate(bench.backends):
        count = f"{len(backend.seen)}.0"
        assert backend.seen and f'outcome="{outcome}",replica="default-{replica}"}} {count}' in metrics


async def test_a_client_that_leaves_at_the_error_takes_nothing_of_it_away(start):
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
    packed = gzip.compress(b"data: {}\n\n" * 6_000_000)
    raw = answer(packed, headers=b"Content-Encoding: gzip\r\n").replace(
        b"application/json", b"text/event-stream"
    )
    bench = await start(script=sends(raw))
    asked, longest_s = asyncio.ensure_future(bench.ask(STREAM)), 0.0
    while not (asked.done() and bench.is_quiet()):
        before = time.thread_time()
        await asyncio.sleep(0)
        longest_s = max(longest_s, time.thread_time() - before)
    assert asked.result().body == packed and longest_s < 0.5
    assert 'outcome="finished",replica="default-0"} 1.0' in await metrics_of(bench)


RELAY = {"mode": "relay"}
OF_ONE = b"x-turnpike-session: one\r\n"
TOOL = b"<call>"
STORED = json.dumps({"id": "resp_1", "object": "response", "status": "completed", "output": []}).encode()
GOES_ON = post(b'{"model":"m","input":"go on","previous_response_id":"resp_1"}', b"/v1/responses")


def seen(bench: Bench) -> list[int]:
    return [len(backend.seen) for backend in bench.backends]


async def test_what_says_to_be_one_session_goes_where_least_runs(start: Any) -> None:
    bench = await start(server=RELAY, replicas=2)
    for _ in range(4):
        response = await bench.ask(post(headers=OF_ONE))
        assert response.status == 200 and response.body == CHAT_ANSWER
        assert not [name for name, _ in response.headers if name.lower().startswith(b"x-turnpike")]
    assert seen(bench) == [2, 2]
    assert {request.body for backend in bench.backends for request in backend.seen} == {CHAT}
    assert not len(bench.brain.sessions.sessions) and not bench.brain.placement.ledger.sessions_at


async def test_one_that_is_busy_gets_no_more(start: Any) -> None:
    bench = await start(server=RELAY, replicas=2, script=sends(STREAM_HEAD + chunk(DELTA), then="hang"))
    client = await bench.send(post(b'{"model":"m","stream":true,"messages":[]}'))
    await eventually(lambda: sum(seen(bench)) == 1)
    busy = seen(bench).index(1)
    for backend in bench.backends:
        backend.script = sends(answer())
    for _ in range(3):
        assert (await bench.ask(post())).status == 200
    assert seen(bench)[busy] == 1 and seen(bench)[1 - busy] == 3
    client.close()


async def test_a_stream_passes_as_it_came(start: Any) -> None:
    events = [DELTA, TOOL.join([b"data: ", b"\n\n"]), DONE]
    bench = await start(server=RELAY, script=sends(STREAM_HEAD + b"".join(map(chunk, events)) + b"0\r\n\r\n"))
    response = await bench.ask(post(b'{"model":"m","stream":true,"messages":[]}'))
    assert response.is_whole and response.body == b"".join(events)
    metrics = (await bench.control(get(b"/metrics"))).body
    assert b'turnpike_attempts_total{code="200",outcome="finished",replica="default-0"} 1.0' in metrics
    assert b"turnpike_turns_total{" not in metrics


async def test_what_a_replica_stores_is_found_there_again(start: Any) -> None:
    bench = await start(server=RELAY, replicas=2, script=sends(answer(STORED)))
    await bench.ask(post(b'{"model":"m","input":"hi"}', b"/v1/responses"))
    home = seen(bench).index(1)
    for _ in range(3):
        assert (await bench.ask(GOES_ON)).status == 200
    assert seen(bench)[home] == 4


async def test_keys_count_and_so_does_whose_a_stored_response_is(start: Any) -> None:
    bench = await start(server=RELAY, tenants=TENANTS, script=sends(answer(STORED)))
    assert (await bench.ask(post())).status == 401
    made = await bench.ask(post(b'{"model":"m","input":"hi"}', b"/v1/responses", bearer(ALICE)))
    assert made.status == 200
    for key, status in ((BOB, 404), (ALICE, 200)):
        asked = GOES_ON.replace(b"Host: gw\r\n", b"Host: gw\r\n" + bearer(key))
        assert (await bench.ask(asked)).status == status
    moves = post(b'{"model":"m","messages":[],"kv_transfer_params":{"remote_host":"h"}}', headers=bearer(BOB))
    assert (await bench.ask(moves)).status in (400, 403)
    assert len(bench.backend.seen) == 2


@pytest.mark.parametrize("body", [CHAT, b'{"model":"m","messages":[}'], ids=["read", "not read"])
async def test_a_replica_runs_as_many_as_it_may(start: Any, body: bytes) -> None:
    bench = await start(server=RELAY, admission={"max_running_per_replica": 1})
    goes_on = asyncio.Event()
    bench.backend.script = pauses(b"", goes_on, answer())
    asked = [asyncio.ensure_future(bench.ask(post(body))) for _ in range(3)]
    await eventually(lambda: len(bench.brain.waiting_room) == 2 and len(bench.backend.seen) == 1)
    goes_on.set()
    assert [response.status for response in await asyncio.gather(*asked)] == [200] * 3


async def test_one_that_fails_is_left_alone(start: Any) -> None:
    bench = await start(server=RELAY, replicas=2)
    bench.backends[0].script = sends(b"", then="close")
    for _ in range(20):
        assert (await bench.ask(post())).status == 200
    assert bench.brain.fleet.health.state("default-0").value == "ejected"
    assert seen(bench)[0] < 10


async def test_models_of_one_name_are_drawn_anew_for_each_request(start: Any) -> None:
    name = {"name": "coder", "targets": [{"model": "m"}, {"model": "n", "weight": 2}]}
    bench = await start(server=RELAY, models=[name])
    for _ in range(40):
        assert (await bench.ask(post(b'{"model":"coder","messages":[]}'))).status == 200
    drawn = {json.loads(request.body)["model"] for request in bench.backend.seen}
    assert drawn == {"m", "n"}


async def test_names_of_models_lead_where_they_lead(start: Any) -> None:
    name = {"name": "coder", "targets": [{"model": "gone"}], "fallbacks": ["m"]}
    other = b'{"object":"list","data":[{"id":"gone"}]}'
    bench = await start(
        server=RELAY,
        models=[name],
        pools=[{"name": "a", "backends": 1, "listing": other}, {"name": "b", "backends": 1}],
    )
    body = b'{"model":"coder","messages":[]}'
    assert (await bench.ask(post(body))).status == 200
    await bench.backends[0].close()
    bench.gateway.replica_watch.health.check_now("a-0")
    await eventually(lambda: not bench.brain.fleet.get("a-0").is_up)
    assert (await bench.ask(post(body))).status == 200
    assert [json.loads(b.seen[0].body)["model"] for b in bench.backends] == ["gone", "m"]


PATHS = [b"/turnpike/snapshot", b"/turnpike/graphs", b"/turnpike/readyz", b"/metrics"]


@pytest.mark.parametrize("path", PATHS)
async def test_an_operator_may_look(start: Any, path: bytes) -> None:
    bench = await start(server=RELAY)
    await bench.ask(post())
    assert (await bench.control(get(path))).status == 200
