"""Requests that two parsers could read in two ways, and bodies that nobody should send."""

import asyncio

import pytest

from gateway.requests import facts
from gateway.upstream.one_shot import Run
from tests.server.bench import answer, chunk, eventually, get, post, sends

SECOND = b"GET /smuggled HTTP/1.1\r\nHost: gw\r\n\r\n"
CHUNKS = b"5\r\nhello\r\n0\r\n\r\n"


def posted(
    *lines: bytes, body: bytes = b"hello", version: bytes = b"1.1", target: bytes = b"/v1/completions"
):
    head = b"POST %s HTTP/%s\r\nHost: gw\r\n" % (target, version)
    return head + b"".join(line + b"\r\n" for line in lines) + b"\r\n" + body


def headed(head: bytes) -> bytes:
    return head.replace(b"\n", b"\r\n") + b"\r\n\r\n"


LENGTH, CODING = b"Content-Length: 5", b"Transfer-Encoding: chunked"
BAD = {
    "length and coding": posted(LENGTH, CODING, body=CHUNKS),
    "coding and length": posted(CODING, LENGTH, body=CHUNKS),
    "two equal lengths": posted(LENGTH, LENGTH),
    "two lengths": posted(LENGTH, b"Content-Length: 6"),
    "a list of lengths": posted(b"Content-Length: 5, 5"),
    "a signed length": posted(b"Content-Length: +5"),
    "a negative length": posted(b"Content-Length: -5"),
    "a hexadecimal length": posted(b"Content-Length: 0x5"),
    "an empty length": posted(b"Content-Length:"),
    "a length with a space inside": posted(b"Content-Length: 5 0"),
    "a length in other digits": posted("Content-Length: \u0665".encode()),
    "another coding": posted(b"Transfer-Encoding: xchunked", body=CHUNKS),
    "chunked, identity": posted(b"Transfer-Encoding: chunked, identity", body=CHUNKS),
    "gzip, chunked": posted(b"Transfer-Encoding: gzip, chunked", body=CHUNKS),
    "identity": posted(b"Transfer-Encoding: identity"),
    "chunked twice": posted(CODING, CODING, body=CHUNKS),
    "a vertical tab before chunked": posted(b"Transfer-Encoding: \x0bchunked", body=CHUNKS),
    "a folded coding": posted(b"Transfer-Encoding:", b" chunked", body=CHUNKS),
    "a folded field": posted(b"X: a", b" b", LENGTH),
    "a space before the colon": posted(b"Content-Length : 5"),
    "a space in front of a name": posted(b" X: y", LENGTH),
    "no colon": posted(b"X", LENGTH),
    "an empty name": posted(b": y", LENGTH),
    "line feeds alone": posted(LENGTH).replace(b"\r\n", b"\n"),
    "one line feed alone": posted(b"X: y\nContent-Length: 5"),
    "a carriage return in a value": posted(b"X: y\rContent-Length: 5"),
    "NUL in a value": posted(b"X: y\x00", LENGTH),
    "NUL in a name": posted(b"X\x00: y", LENGTH),
    "chunk size overflow": posted(CODING, body=b"1" + b"0" * 17 + b"\r\nhello\r\n0\r\n\r\n"),
    "a signed chunk size": posted(CODING, body=b"+5\r\nhello\r\n0\r\n\r\n"),
    "a negative chunk size": posted(CODING, body=b"-5\r\nhello\r\n0\r\n\r\n"),
    "a prefixed chunk size": posted(CODING, body=b"0x5\r\nhello\r\n0\r\n\r\n"),
    "a chunk size with a space": posted(CODING, body=b"5 \r\nhello\r\n0\r\n\r\n"),
    "a chunk longer than its size": posted(CODING, body=b"4\r\nhello\r\n0\r\n\r\n"),
    "a chunk that ends in a line feed": posted(CODING, body=b"5\r\nhello\n0\r\n\r\n"),
    "a chunk size that ends in a line feed": posted(CODING, body=b"5\nhello\r\n0\r\n\r\n"),
    "a line feed in a chunk extension": posted(CODING, body=b"5;a\nb\r\nhello\r\n0\r\n\r\n"),
    "a coding in HTTP/1.0": posted(CODING, body=CHUNKS, version=b"1.0"),
    "HTTP/1.2": posted(LENGTH, version=b"1.2"),
    "HTTP/2.0": posted(LENGTH, version=b"2.0"),
    "HTTP/0.9": b"GET /\r\n\r\n",
    "HTTP/2's preface": b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
    "a TLS hello": b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03",
    "a name and a password": headed(b"GET http://a:b@gw/v1/models HTTP/1.1\nHost: gw"),
    "another scheme": headed(b"GET ftp://gw/v1/models HTTP/1.1\nHost: gw"),
    "no server": headed(b"GET http:///v1/models HTTP/1.1\nHost: gw"),
    "a byte order mark": b"\xef\xbb\xbf" + posted(LENGTH),
    "carriage returns alone": posted(LENGTH).replace(b"\r\n", b"\r"),
    "a chunk that ends in a carriage return": posted(CODING, body=b"5\r\nhello\r0\r\n\r\n"),
    "a byte order mark before a chunk size": posted(CODING, body=b"\xef\xbb\xbf" + CHUNKS),
    "CONNECT": headed(b"CONNECT gw:443 HTTP/1.1\nHost: gw"),
    "an asterisk": headed(b"GET * HTTP/1.1\nHost: gw"),
    "two hosts": headed(b"GET /v1/models HTTP/1.1\nHost: gw\nHost: gw"),
    "no host": headed(b"GET /v1/models HTTP/1.1"),
    "a control character in the target": headed(b"GET /v1/mod\x01els HTTP/1.1\nHost: gw"),
    "a raw byte in the target": headed(b"GET /v1/mod\xffels HTTP/1.1\nHost: gw"),
    "a space in the target": headed(b"GET /v1/mod els HTTP/1.1\nHost: gw"),
    "a made-up method": headed(b"SMUGGLE /v1/models HTTP/1.1\nHost: gw"),
}


@pytest.mark.parametrize("bad", BAD.values(), ids=BAD)
async def test_it_is_a_400_and_the_end_of_the_connection(start, bad):
    bench = await start(limits={"drain_rejected_body_s": 0.05})
    for good in (0, 2):  # so many good ones before it: then their head is known
        client = await bench.connect()
        for _ in range(good):
            assert (await client.ask(posted(LENGTH))).status == 200
        response = await client.ask(bad + SECOND)
        assert response.status == 400 and response.json()["error"]["code"] == "malformed_http"
        assert response.get(b"connection") == b"close"
        assert await client.rest() == (b"", "eof")
        assert [seen.body for seen in bench.backend.seen] == [b"hello"] * good


@pytest.mark.parametrize(
    "target",
    [b"//v1/models", b"/v1/%2e%2e/metrics", b"/v1/models/a%2f..%2f..%2fmetrics", b"/v1/%252e%252e/metrics"],
)
async def test_an_ambiguous_path_is_a_400(start, target):
    bench = await start()
    client = await bench.connect()
    assert (await client.ask(get(target))).status == 400
    assert not bench.backend.seen


async def test_an_escaped_slash_in_a_models_name_is_not_ambiguous(start):
    bench = await start()
    assert (await bench.ask(get(b"/v1/models/org%2Fname"))).status == 200
    assert bench.backend.seen[0].target == b"/v1/models/org%2Fname"


@pytest.mark.parametrize("coding", [False, True], ids=["length", "chunked"])
async def test_an_upgrade_is_ignored_and_a_body_stays_a_body(start, coding):
    """llhttp takes what follows for the other protocol; as HTTP/1.1 it would be a request of its own."""
    bench = await start()
    upgrade = b"Connection: Upgrade, HTTP2-Settings\r\nUpgrade: h2c\r\nHTTP2-Settings: AAMAAABk\r\n"
    framing = CODING + b"\r\n" if coding else b"Content-Length: %d\r\n" % len(SECOND)
    body = chunk(SECOND) + b"0\r\n\r\n" if coding else SECOND
    head = b"POST /v1/completions HTTP/1.1\r\nHost: gw\r\n%s%s\r\n" % (upgrade, framing)
    client = await bench.send(head)
    client.send(body + post())
    assert (await client.receive()).status == (await client.receive()).status == 200
    first, second = bench.backend.seen
    assert first.body == SECOND and first.target == b"/v1/completions"
    assert second.target == b"/v1/chat/completions"
    for name in (b"connection", b"upgrade", b"http2-settings"):
        assert first.get(name) is None


@pytest.mark.parametrize(
    "name", [b"authorization", b"content-length", b"host", b"x-api-key", b"content-type", b"Content-Encoding"]
)
async def test_connection_does_not_take_away_what_we_judge_by(start, name):
    bench = await start()
    fields = (
        b"Connection: close, %s\r\nAuthorization: Bearer k\r\nX-Api-Key: k\r\nContent-Encoding: x\r\n" % name
    )
    await bench.ask(post(headers=fields))
    seen = bench.backend.seen[0]
    assert len(seen.all(name)) == 1 and seen.get(b"connection") is None


async def test_underscores_are_not_dashes(start):
    """They are passed on as they are, and nothing that we judge by is read from them."""
    bench = await start()
    fields = b"Content_Length: 3\r\nTransfer_Encoding: chunked\r\nX_Turnpike_Session: s\r\nHost_: a\r\n"
    response = await bench.ask(post(headers=fields))
    seen = bench.backend.seen[0]
    assert seen.get(b"content_length") == b"3" and seen.get(b"content-length") == b"%d" % len(seen.body)
    assert response.get(b"x-turnpike-source") == b"new"


@pytest.mark.parametrize(
    "name",
    [b"X-Turnpike-Replica", b"x-gateway-destination-endpoint", b"X-SMG-Target-Worker", b"x-worker-url"],
)
async def test_a_header_that_names_an_upstream_is_refused(start, name):
    bench = await start()
    response = await bench.ask(post(headers=name + b": http://elsewhere\r\n"))
    assert response.status == 403 and not bench.backend.seen


async def test_nothing_of_a_refused_request_is_kept(start):
    bench = await start(limits={"drain_rejected_body_s": 5.0})
    client = await bench.send(posted(CODING, body=chunk(b"x" * 10_000) + b"nonsense\r\n"))
    assert (await client.receive()).status == 400
    await eventually(lambda: bench.gateway.listener.budget.used == 0)
    client.send(SECOND)
    client.close()
    await eventually(lambda: bench.gateway.listener.connection_count == 0)
    assert not bench.backend.seen


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
    bench = await start(server={"debug_headers": False}, script=sends(answer(COMPLAINT, b"400 Bad Request")))
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
    bench = await start(limits={"max_body_bytes": 10, "drain_rejected_body_s": 0.1})
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
    bench = await start(limits={"drain_rejected_body_s": 0.1})
    response = await bench.ask(head)
    assert response.status == 431 and response.json()["error"]["code"] == "headers_too_large"
    assert not bench.backend.seen


async def test_bodies_have_a_common_budget(start):
    bench = await start(limits={"max_buffered_bytes": 2000, "drain_rejected_body_s": 0.1})
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
        seen.append(await bench.gateway.driver.parse_cooperatively(work()))

    over = loop.create_future()
    Run(handler(), lambda: over.set_result(None)).advance()
    await over
    assert seen == ["slice 0", "another", "slice 1", "another", "slice 2", "another", "result"]
