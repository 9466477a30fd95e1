"""Bodies that nobody should send: forwarded untouched, or refused for their size."""

import asyncio

import pytest

from gateway.upstream.moments import Run
from gateway.wire import facts
from tests.server.bench import answer, eventually, get, post, sends

COMPLAINT = b'{"error":{"message":"not today" , "code":400}}'


@pytest.mark.parametrize("path", [b"/v1/chat/completions", b"/v1/responses", b"/v1/messages"])
@pytest.mark.parametrize(
    "body",
    [
        b'{"model": "m", "messages": [',
        b'{"model": 7, "messages": "none", "tools": {}, "input": 3.5, "stream": [1]}',
        b'{"model":"m","messages":[{"role":"user","content":"\xff\xfe"}]}',
        b"\xef\xbb\xbf{}",
        b"[" * 100_000,
        b'{"messages":' + b"[" * 100_000 + b"]" * 100_000 + b"}",
        b"null",
        b"",
        b'{"model":"m"} trailing',
        b'{"model":"m","model":"n"}',
        b'{"a":' + b"9" * 10_000 + b"}",
        b"\x00\x01\x02",
    ],
    ids=lambda body: repr(body[:20]),
)
async def test_what_cannot_be_read_is_the_backends_to_judge(start, path, body):
    bench = await start(server={"receipts": False})
    bench.backend.script = sends(answer(COMPLAINT, b"400 Bad Request"))
    response = await bench.ask(post(body, path))
    assert response.status == 400 and response.body == COMPLAINT
    assert bench.backend.seen[0].body == body


async def test_what_we_fail_to_understand_passes(start, monkeypatch, caplog):
    def fails(*_: object) -> None:
        raise TypeError("a fault of ours")

    monkeypatch.setattr(facts.TRANSCRIPTS, "reading", fails)
    bench = await start()
    bench.may_log_errors = True
    for _ in range(2):
        assert (await bench.ask(post())).status == 200
    assert bench.backend.seen[1].body == bench.backend.seen[0].body
    assert caplog.text.count("was not understood") == 1


async def test_ten_thousand_messages(start):
    bench = await start()
    message = b'{"role":"user","content":"hi"}'
    body = b'{"model":"m","messages":[%s]}' % b",".join([message] * 10_000)
    assert (await bench.ask(post(body))).status == 200
    assert bench.backend.seen[0].body == body


@pytest.mark.parametrize(
    ("path", "kind"),
    [(b"/v1/chat/completions", "invalid_request_error"), (b"/v1/messages", "request_too_large")],
)
@pytest.mark.parametrize("framing", ["announced", "length", "chunked"])
async def test_100_mb_are_a_413(start, path, kind, framing):
    bench = await start()
    client = await bench.connect()
    piece = b"x" * (1 << 20)
    head = b"POST %s HTTP/1.1\r\nHost: gw\r\n" % path
    if framing == "chunked":
        client.send(head + b"Transfer-Encoding: chunked\r\n\r\n")
        for _ in range(100):
            client.send(b"%x\r\n%s\r\n" % (len(piece), piece))
        client.send(b"0\r\n\r\n")
    else:
        client.send(head + b"Content-Length: %d\r\n\r\n" % (100 << 20))
        for _ in range(100 if framing == "length" else 0):
            client.send(piece)
    await client.writer.drain()
    response = await client.receive()
    assert response.status == 413 and response.json()["error"]["type"] == kind
    assert response.get(b"connection") == b"close" and await client.rest() == (b"", "eof")
    assert not bench.backend.seen


async def test_100_continue_is_not_sent_for_a_body_that_is_too_large(start):
    bench = await start(limits={"max_body_bytes": 10, "linger_s": 0.1})
    response = await bench.ask(post(headers=b"Expect: 100-continue\r\n"))
    assert response.status == 413


@pytest.mark.parametrize(
    "head",
    [
        get(b"/" + b"a" * 70_000),
        get(b"/v1/models", b"X: %s\r\n" % (b"y" * 70_000)),
        get(b"/v1/models", b"X: y\r\n" * 20_000),
        b"GET /v1/models HTTP/1.1\r\nHost: gw\r\nX: " + b"y" * 700_000,
        b"POST /a HTTP/1.1\r\nHost: gw\r\nTransfer-Encoding: chunked\r\n\r\n0\r\nX: " + b"y" * 700_000,
        b"POST /a HTTP/1.1\r\nHost: gw\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n" + b"X: y\r\n" * 20_000,
        b"POST /a HTTP/1.1\r\nHost: gw\r\nTransfer-Encoding: chunked\r\n\r\n1;" + b"y" * 700_000,
        b"\r\n" * 400_000,
    ],
    ids=["target", "field", "fields", "endless", "trailer", "trailers", "extension", "empty lines"],
)
async def test_too_much_of_a_head_is_a_431(start, head):
    bench = await start(limits={"linger_s": 0.1})
    response = await bench.ask(head)
    assert response.status == 431 and response.json()["error"]["code"] == "headers_too_large"
    assert not bench.backend.seen


async def test_bodies_have_a_common_budget(start):
    bench = await start(limits={"max_buffered_bytes": 2000, "linger_s": 0.1})
    hoarder = await bench.send(post(b"x" * 900)[:-1])
    await eventually(lambda: bench.gateway.listener.budget.used == 899)
    response = await bench.ask(post(b"y" * 200, b"/v1/messages"))
    assert response.status == 503 and response.json()["error"]["type"] == "overloaded_error"
    assert response.get(b"retry-after") is not None
    assert (await bench.ask(post(b"{}"))).status == 200
    hoarder.send(b"x")
    assert (await hoarder.receive()).status == 200
    assert (await bench.ask(post(b"y" * 200))).status == 200


async def test_a_body_that_would_take_too_long_passes_unread(start):
    bench = await start()
    body = b'{"model":"m","messages":[%s]}' % b",".join([b"{}"] * 2**20)
    assert (await bench.ask(post(body))).status == 200
    assert bench.backend.seen[0].body == body
    metrics = await bench.control(get(b"/metrics"))
    assert b'turnpike_requests_unread_total{reason="oversized"} 1.0' in metrics.body


async def test_between_slices_of_work_others_are_served(start):
    bench = await start()
    loop, seen = asyncio.get_running_loop(), []

    def work():
        for number in range(3):
            seen.append(f"slice {number}")
            loop.call_soon(seen.append, "another")
            yield
        return "result"

    async def handler():
        seen.append(await bench.gateway.driver.in_slices(work()))

    over = loop.create_future()
    Run(handler(), lambda: over.set_result(None)).go_on()
    await over
    assert seen == ["slice 0", "another", "slice 1", "another", "slice 2", "another", "result"]
