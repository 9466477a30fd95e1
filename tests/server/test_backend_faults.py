"""What a backend can do wrong. `docs/operate/faults.md` lists the outcomes."""

import asyncio

import pytest

from tests.server.bench import (
    CHAT,
    CHAT_ANSWER,
    DELTA,
    DONE,
    PATIENCE_S,
    STREAM_HEAD,
    Exchange,
    answer,
    chunk,
    eventually,
    get,
    pauses,
    post,
    sends,
)

STORED = b'{"model":"m","input":"hi"}'


def stored(body: bytes = STORED) -> bytes:
    return post(body, b"/v1/responses")


def error_code(message) -> str:
    error = message.json()["error"]
    assert set(error) == {"message", "type", "param", "code"}
    return error["code"]


# --- before the response head ---------------------------------------------------------------------


async def test_a_refused_connection_is_a_502(start):
    bench = await start()
    await bench.backend.close()
    response = await bench.ask(post())
    assert response.status == 502 and error_code(response) == "upstream_unreachable"


@pytest.mark.parametrize("request_bytes", [post(), stored()], ids=["replayable", "stored"])
async def test_a_refused_connection_goes_elsewhere_whatever_the_request(start, request_bytes):
    bench = await start(replicas=2)
    await bench.backends[0].close()
    for _ in range(2):  # replicas take turns, so one of the two meets the closed one
        response = await bench.ask(request_bytes)
        assert response.status == 200 and response.body == CHAT_ANSWER
    assert len(bench.backends[1].seen) == 2


async def test_a_replica_that_refused_is_out_at_once(start, monkeypatch):
    """Else it looks idle, and draws in every request that waits."""
    bench = await start(replicas=2)
    await bench.backends[0].close()
    # It would find out, too.
    monkeypatch.setattr(bench.gateway.replica_watch.health, "check_now", lambda replica: None)
    for _ in range(2):  # replicas take turns, so one of the two meets the closed one
        assert (await bench.ask(post())).status == 200
    assert [state.is_up for state in bench.brain.fleet].count(False) == 1
    later = [await bench.ask(post()) for _ in range(4)]
    assert {response.get(b"x-turnpike-reason") for response in later} == {b"least_loaded"}, "nobody met it"
    assert {response.get(b"x-turnpike-replica") for response in later} == {b"default-1"}


async def test_silence_before_the_head_is_a_504(start):
    bench = await start(replicas=2, upstream={"head_timeout_s": 0.2}, script=Exchange.until_left)
    response = await bench.ask(post())
    assert response.status == 504 and error_code(response) == "upstream_timeout"
    assert sum(len(b.seen) for b in bench.backends) == 1  # it may be running still: not sent twice


async def test_a_reset_before_the_head_is_retried_elsewhere(start):
    broken: list[Exchange] = []

    async def breaks_once(exchange: Exchange) -> None:
        if not broken:
            broken.append(exchange)
            exchange.reset()
        else:
            await exchange.send(answer())

    bench = await start(replicas=2, script=breaks_once)
    response = await bench.ask(post())
    assert response.status == 200
    assert response.get(b"x-turnpike-reason") == b"retried_elsewhere"
    assert [[request.body for request in b.seen] for b in bench.backends] == [[CHAT], [CHAT]]


async def test_a_reset_before_the_head_of_a_stored_response_is_a_502(start):
    bench = await start(replicas=2, script=sends(b"", then="reset"))
    response = await bench.ask(stored())
    assert response.status == 502 and error_code(response) == "upstream_broken"
    assert sum(len(b.seen) for b in bench.backends) == 1


@pytest.mark.parametrize("request_bytes", [post(), stored()], ids=["replayable", "stored"])
async def test_a_kept_connection_that_goes_stale_is_not_noticed(start, request_bytes):

    async def closes_when_used_again(exchange: Exchange) -> None:
        uses[exchange.number] = uses.get(exchange.number, 0) + 1
        if uses[exchange.number] == 2:
            exchange.reset()  # as a server does whose idle timeout ran out just then
        else:
            await exchange.send(answer())

    uses: dict[int, int] = {}
    bench = await start(script=closes_when_used_again)
    assert (await bench.ask(post())).status == 200
    assert (await bench.ask(request_bytes)).status == 200


async def test_a_stored_response_is_never_sent_on_a_kept_connection(start):
    bench = await start()
    for request in (post(), post(), stored()):
        assert (await bench.ask(request)).status == 200
    assert bench.backend.connections == 2


@pytest.mark.parametrize(
    "garbage",
    [
        b"SSH-2.0-OpenSSH_9.6\r\n",
        b"\x16\x03\x01\x00\x05hello",
        b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\nContent-Length: 6\r\n\r\nhello!",
        b"HTTP/1.1 200 OK\r\nContent-Length: -5\r\n\r\n",
        b"HTTP/1.1 101 Switching Protocols\r\nUpgrade: x\r\nConnection: Upgrade\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nX: " + b"y" * (300 << 10),
        b"HTTP/1.1 200 OK\r\n" + b"X: y\r\n" * 100_000,
    ],
    ids=["ssh", "tls", "cl+te", "two lengths", "negative length", "101", "endless field", "endless head"],
)
async def test_what_is_not_http_is_a_502(start, garbage):
    bench = await start(script=sends(garbage, then="hang"))
    response = await bench.ask(post())
    assert response.status == 502 and error_code(response) == "upstream_broken"


# --- after it -------------------------------------------------------------------------------------


async def test_silence_in_the_stream_resets_the_client(start):
    bench = await start(upstream={"stall_timeout_s": 0.2})
    bench.backend.script = sends(STREAM_HEAD + chunk(DELTA), then="hang")
    client = await bench.send(post())
    data, end = await client.rest()
    assert data.endswith(chunk(DELTA)) and end == "reset"


@pytest.mark.parametrize("then", ["close", "reset"])
@pytest.mark.parametrize(
    "part",
    [STREAM_HEAD + chunk(DELTA), STREAM_HEAD + chunk(DELTA) + b"5\r\nhel", answer()[:-5]],
    ids=["between chunks", "in a chunk", "short of its length"],
)
async def test_a_response_that_breaks_off_resets_the_client(start, part, then):
    bench = await start(replicas=2, script=sends(part, then=then))
    client = await bench.send(post())
    data, end = await client.rest()
    assert data.startswith(b"HTTP/1.1 200 OK") and end == "reset"
    assert not data.endswith(b"0\r\n\r\n")
    assert sum(len(b.seen) for b in bench.backends) == 1  # headers are out: no retry


async def test_a_reset_ends_a_body_without_length_with_a_reset(start):
    bench = await start(script=sends(b"HTTP/1.1 200 OK\r\n\r\nhalf", then="reset"))
    client = await bench.send(post(headers=b"Connection: close\r\n"))
    assert (await client.rest())[1] == "reset"


async def test_garbage_in_a_chunked_body_resets_the_client(start):
    bench = await start(script=sends(STREAM_HEAD + chunk(DELTA) + b"no size\r\n", then="hang"))
    client = await bench.send(post())
    data, end = await client.rest()
    assert data.endswith(chunk(DELTA)) and end == "reset"


# --- odd but right --------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("status", "headers"),
    [
        (b"500 Internal Server Error", b""),
        (b"503 Service Unavailable", b"Retry-After: 7\r\n"),
        (b"429 Too Many Requests", b"Retry-After: 3\r\n"),
        (b"400 Bad Request", b""),
        (b"299 So So", b""),
    ],
)
async def test_a_backends_answer_is_passed_on_byte_for_byte(start, status, headers):
    raw = answer(b'{"object": "error", "oops" : 1}\n', status, headers)
    bench = await start(replicas=2, server={"debug_headers": False}, script=sends(raw))
    client = await bench.send(post(headers=b"Connection: close\r\n"))
    data, end = await client.rest()
    assert data.replace(b"Connection: close\r\n", b"") == raw and end == "eof"
    assert sum(len(b.seen) for b in bench.backends) == 1


async def test_interim_responses_are_dropped(start):
    interim = b"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 103 Early Hints\r\nLink: </x>\r\n\r\n"
    bench = await start(script=sends(interim + answer()))
    response = await bench.ask(post())
    assert response.status == 200 and response.body == CHAT_ANSWER
    assert response.get(b"link") is None


@pytest.mark.parametrize("version", [b"1.0", b"1.1"])
async def test_a_body_may_end_with_the_connection(start, version):
    head = b"HTTP/%s 200 OK\r\nContent-Type: text/event-stream\r\n\r\n" % version
    bench = await start(script=sends(head + DELTA + DONE, then="close"))
    client = await bench.connect()
    for _ in range(2):  # the client's connection outlives it
        response = await client.ask(post())
        assert response.is_whole and response.body == DELTA + DONE
        assert response.get(b"transfer-encoding") == b"chunked"


FINISH = b'data: {"choices":[{"index":0,"delta":{},"finish_reason":"stop"}]}\n\n'
SAID = b'data: {"type":"content_block_delta","index":0,"delta":{"type":"text_delta","text":"a"}}\n\n'
TEXT = b'data: {"type":"response.output_text.delta","output_index":0,"delta":"a"}\n\n'
CHATTED, MESSAGES, RESPONSES = b"/v1/chat/completions", b"/v1/messages", b"/v1/responses"
ENDS = [
    (CHATTED, DELTA, False),
    (CHATTED, DELTA + FINISH, True),
    (CHATTED, DELTA + DONE[:-2], True),
    (CHATTED, DELTA + b'data: {"error":{"message":"m"}}\n\n', True),
    (CHATTED, b": nothing yet\n\n", False),
    (CHATTED, b'data: {"choices":[{"index":0,"delta":{"role":"assistant","content":""}}]}\n\n', False),
    (CHATTED, CHAT_ANSWER, True),
    (MESSAGES, b'data: {"type":"message_start","message":{"id":"msg_1"}}\n\n', False),
    (RESPONSES, b'data: {"type":"response.created","response":{"id":"r","status":"queued"}}\n\n', False),
    (RESPONSES, b"", False),
    (MESSAGES, SAID, False),
    (MESSAGES, SAID + b'data: {"type":"message_stop"}\n\n', True),
    (RESPONSES, TEXT, False),
    (RESPONSES, TEXT + b'data: {"type":"response.completed","response":{}}\n\n', True),
    (b"/generate", DELTA, True),
]


@pytest.mark.parametrize(("path", "events", "is_whole"), ENDS)
async def test_a_stream_that_ends_with_its_connection_before_its_last_event_is_cut(
    start, path, events, is_whole
):
    bench = await start(
        script=sends(b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\n\r\n" + events, then="close")
    )
    response = await bench.ask(post(path=path))
    assert (response.body, response.is_whole) == (events, is_whole)
    assert b"transfer-encoding: chunked" in response.head.lower()


@pytest.mark.parametrize(
    ("request_bytes", "raw"),
    [
        (b"HEAD /v1/models/m HTTP/1.1\r\nHost: gw\r\n\r\n", answer()[: -len(CHAT_ANSWER)]),
        (get(b"/tokens"), b"HTTP/1.1 204 No Content\r\n\r\n"),
        (get(b"/tokens"), b'HTTP/1.1 304 Not Modified\r\nETag: "x"\r\nContent-Length: 5\r\n\r\n'),
    ],
    ids=["HEAD", "204", "304"],
)
async def test_a_response_without_body(start, request_bytes, raw):
    bench = await start(script=sends(raw))
    client = await bench.connect()
    for _ in range(2):
        client.send(request_bytes)
        response = await client.receive(is_head=True)
        assert response.first_line == raw.split(b"\r\n")[0]
        assert response.get(b"transfer-encoding") is None
        assert response.get(b"content-length") == (b"5" if b"304" in raw else response.get(b"content-length"))


async def test_a_large_head_and_a_slow_one(start):
    large = b"".join(b"X-%d: %s\r\n" % (n, b"y" * 1000) for n in range(100))

    async def byte_by_byte(exchange: Exchange) -> None:
        for byte in answer(b"{}", headers=b"X-Slow: yes\r\n"):
            await exchange.send(bytes([byte]))
            await asyncio.sleep(0)

    bench = await start(script=sends(answer(headers=large)))
    assert (await bench.ask(post())).get(b"x-99") == b"y" * 1000
    bench.backend.script = byte_by_byte
    response = await bench.ask(post())
    assert response.body == b"{}" and response.get(b"x-slow") == b"yes"


async def test_an_answer_before_the_request_was_read(start):
    async def answers_at_once(exchange: Exchange) -> None:
        await exchange.send(answer(b'{"detail":"no"}', b"401 Unauthorized"))
        await exchange.until_left()

    bench = await start(script=answers_at_once)
    bench.backend.reads_bodies = False
    body = b'{"model":"m","messages":[{"role":"user","content":"%s"}]}' % (b"x" * (20 << 20))
    response = await bench.ask(post(body))
    assert response.status == 401 and response.body == b'{"detail":"no"}'
    # The rest of the body is still to be sent on that connection, so it is not used again.
    bench.backend.reads_bodies, bench.backend.script = True, sends(answer())
    assert (await bench.ask(post())).status == 200
    assert bench.backend.connections == 2


@pytest.mark.parametrize(
    "surplus",
    [b"x", b"HTTP/1.1 200 OK\r\nContent-Length: 4\r\n\r\nevil", b"HTTP/1.1 200 OK\r\nContent-Le"],
    ids=["garbage", "a response", "half a response"],
)
@pytest.mark.parametrize("is_late", [False, True], ids=["at once", "later"])
@pytest.mark.parametrize(
    "raw", [answer(), STREAM_HEAD + chunk(DELTA) + b"0\r\n\r\n"], ids=["length", "chunked"]
)
async def test_surplus_bytes_reach_no_client(start, surplus, is_late, raw):

    async def says_more(exchange: Exchange) -> None:
        if exchange.number > 1:
            await exchange.send(answer())
            return
        await exchange.send(raw if is_late else raw + surplus)
        if is_late:
            await asyncio.sleep(0.05)
            await exchange.send(surplus)
        await exchange.until_left()

    bench = await start(script=says_more)
    client = await bench.connect()
    first = await client.ask(post())
    assert first.status == 200 and first.is_whole and b"evil" not in first.body
    if is_late:
        await asyncio.sleep(0.1)
    second = await client.ask(post())
    assert second.status == 200 and second.body == CHAT_ANSWER
    assert bench.backend.connections == 2


@pytest.mark.parametrize(
    ("method", "status"),
    [
        (b"GET", b"304 Not Modified"),
        (b"GET", b"204 No Content"),
        (b"HEAD", b"200 OK"),
        (b"HEAD", b"304 Not Modified"),
    ],
)
async def test_a_body_where_there_must_be_none_is_dropped(start, method, status):
    bench = await start(script=sends(b"HTTP/1.1 %s\r\nContent-Length: 5\r\n\r\nhello" % status))
    client = await bench.connect()
    for _ in range(2):
        client.send(get(b"/tokens").replace(b"GET", method))
        assert (await client.receive(is_head=True)).first_line == b"HTTP/1.1 " + status
    client.writer.write_eof()
    assert await client.rest() == (b"", "eof")
    assert bench.backend.connections == 2


async def test_trailer_fields_do_not_become_headers(start):
    bench = await start(script=sends(STREAM_HEAD + chunk(DELTA) + b"0\r\nX-Late: yes\r\n\r\n"))
    response = await bench.ask(post())
    assert response.is_whole and response.get(b"x-late") is None


async def test_a_stream_is_passed_on_event_by_event(start):
    seen = asyncio.Event()
    bench = await start(script=pauses(STREAM_HEAD + chunk(DELTA), seen, chunk(DONE) + b"0\r\n\r\n"))
    client = await bench.send(post())
    await asyncio.wait_for(client.reader.readuntil(DELTA), PATIENCE_S)
    seen.set()
    assert (await asyncio.wait_for(client.reader.readuntil(b"0\r\n\r\n"), PATIENCE_S)).startswith(b"\r\n")


async def test_a_replica_that_is_gone_is_taken_out_and_comes_back(start):
    bench = await start(upstream={"health_period_s": 0.05})
    await bench.backend.close()
    await eventually(lambda: not any(state.is_up for state in bench.brain.fleet))
    response = await bench.ask(post())
    assert response.status == 503 and error_code(response) == "no_replica"
    assert response.get(b"retry-after") is not None
    await bench.backend.open()
    await eventually(lambda: all(state.is_up for state in bench.brain.fleet))
    assert (await bench.ask(post(CHAT))).status == 200


@pytest.mark.parametrize("request_bytes", [post(), stored()], ids=["replayable", "stored"])
async def test_what_finds_the_sole_replica_gone_is_kept_until_it_is_back(start, request_bytes):
    bench = await start(upstream={"health_period_s": 0.05}, core={"no_replica_wait_s": 10})
    await bench.backend.close()
    client = await bench.send(request_bytes)
    await eventually(lambda: len(bench.brain.waiting_room) == 1)
    await bench.backend.open()
    assert (await client.receive()).status == 200


async def test_what_the_sole_replica_took_down_with_it_is_answered_when_it_is_back(start):
    bench = await start(upstream={"health_period_s": 0.05}, core={"no_replica_wait_s": 10})
    bench.backend.script = Exchange.until_left
    client = await bench.send(post())
    await eventually(lambda: len(bench.backend.seen) == 1)
    bench.backend.script = sends(answer())
    await bench.backend.close()
    await eventually(lambda: len(bench.brain.waiting_room) == 1)
    await bench.backend.open()
    assert (await client.receive()).status == 200


async def test_an_outage_is_waited_out_for_a_bounded_time(start):
    bench = await start(upstream={"health_period_s": 0.05}, core={"no_replica_wait_s": 0.3})
    await bench.backend.close()
    response = await bench.ask(post())
    assert response.status == 503 and error_code(response) == "no_replica"
    assert response.get(b"retry-after") is not None
