"""HTTP as browsers, proxies and other servers speak it, and bounds that hold for all of them."""

import asyncio
import email.utils
import os
import time

import pytest

from gateway.config.http_limits import HttpLimits
from gateway.config.load import ConfigError, read_api_key
from gateway.server.auth.client_keys import hash_key
from gateway.server.runtime import memory
from tests.server.bench import DELTA, DONE, STREAM_HEAD, Exchange, answer, chunk, eventually, get, post, sends
from tests.server.mcp_bench import answers, call, settings, tell, tool_server

KEYS = [{"name": "a", "key_hashes": [hash_key("sesame")]}]
PAGE = b"Origin: https://page.example\r\n"
PREFLIGHT = PAGE + b"Access-Control-Request-Method: POST\r\n"


def options(headers: bytes, path: bytes = b"/v1/chat/completions") -> bytes:
    return b"OPTIONS %s HTTP/1.1\r\nHost: gw\r\n%s\r\n" % (path, headers)


EMPTY = {
    "a length of zero": b"HTTP/1.1 202 Accepted\r\nContent-Length: 0\r\n\r\n",
    "no chunk": b"HTTP/1.1 202 Accepted\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
    "no content": b"HTTP/1.1 204 No Content\r\n\r\n",
}


@pytest.mark.parametrize("empty", EMPTY.values(), ids=EMPTY)
@pytest.mark.parametrize("method", [b"POST", b"HEAD", b"OPTIONS", b"DELETE"])
async def test_an_answer_without_a_body_ends_and_its_connection_serves_on(start, empty, method):
    async with tool_server(sends(empty)) as server:
        bench = await start(mcp=settings(server))
        client = await bench.connect()
        response = await client.ask(tell(call()).replace(b"POST", method, 1))
        assert response.status == int(empty.split()[1]) and response.is_whole and response.body == b""
        assert server.seen[0].first_line == method + b" /mcp HTTP/1.1"
        server.script = sends(answers(b"{}"))
        assert (await client.ask(tell(call()))).body == b"{}"


async def test_a_preflight_needs_no_key_and_runs_nothing(start):
    bench = await start(tenants=KEYS)
    bench.backend.script = sends(answer(b"", headers=b"Access-Control-Allow-Origin: *\r\n"))
    assert (await bench.ask(options(PREFLIGHT))).get(b"access-control-allow-origin") == b"*"
    assert bench.backend.seen[0].get(b"access-control-request-method") == b"POST"
    for other in (
        options(PAGE),
        options(PREFLIGHT + b"Content-Length: 2\r\n") + b"{}",
        post(headers=PREFLIGHT),
    ):
        assert (await bench.ask(other)).status == 401
    assert (await bench.ask(options(PREFLIGHT, b"/sleep"))).status == 403
    assert len(bench.backend.seen) == 1


@pytest.mark.parametrize(
    ("status", "reason", "sent"),
    [
        (401, b"Unauthorized", post(headers=PAGE)),
        (404, b"Not Found", get(b"/v1/responses/resp_1", PAGE + b"x-api-key: sesame\r\n")),
        (429, b"Too Many Requests", post(headers=PAGE + b"x-api-key: sesame\r\n")),
        (431, None, get(b"/", PAGE + b"X-A: %s\r\n" % (b"a" * 70_000))),
    ],
)
async def test_what_the_gateway_answers_itself_has_a_date_a_reason_and_can_be_read_by_a_page(
    start, status, reason, sent
):
    quota = {"tokens_per_minute": 10} if status == 429 else {}
    bench = await start(tenants=[{**KEYS[0], "quota": quota}], limits={"drain_rejected_body_s": 0.1})
    if status == 429:
        while (await bench.ask(sent)).status == 200:
            pass
    response = await bench.ask(sent)
    assert response.first_line.startswith(b"HTTP/1.1 %d %s" % (status, reason or b""))
    date = email.utils.parsedate_to_datetime(response.get(b"date").decode())
    assert abs(date.timestamp() - time.time()) < 60
    assert response.get(b"access-control-allow-origin") == b"*"
    assert response.get(b"access-control-expose-headers") == b"*"
    without = await bench.ask(sent.replace(PAGE, b""))
    assert without.status == status and not without.all(b"access-control-allow-origin")


@pytest.mark.parametrize(
    ("target", "path"),
    [
        (b"http://gw/v1/models/m?a=/b", b"/v1/models/m?a=/b"),
        (b"HTTPS://elsewhere:1/x", b"/x"),
        (b"http://[::1]:8080", b"/"),
        (b"http://gw?a", b"/?a"),
    ],
)
async def test_an_absolute_target_is_its_path(start, target, path):
    bench = await start()
    assert (await bench.ask(get(target))).status == 200
    assert bench.backend.seen[0].target == path


async def test_an_absolute_target_is_judged_by_its_path(start):
    bench = await start(limits={"drain_rejected_body_s": 0.1})
    refused = {b"http://gw/metrics": 403, b"http://gw//v1/models": 400, b"http://gw/v1/%2e%2e/sleep": 400}
    for target, status in refused.items():
        assert (await bench.ask(get(target))).status == status
    assert not bench.backend.seen


async def test_proxies_are_told_not_to_hold_events_back(start):
    bench = await start()
    yes = b"X-Accel-Buffering: yes\r\n"
    for told in (b"", yes, yes + b"Connection: close, x-accel-buffering\r\n"):
        head = STREAM_HEAD.replace(b"text/event-stream\r\n", b"Text/Event-Stream\r\n" + told)
        bench.backend.script = sends(head + chunk(DELTA + DONE) + b"0\r\n\r\n")
        response = await bench.ask(post())
        assert response.all(b"x-accel-buffering") == [b"yes" if told == yes else b"no"]
    bench.backend.script = sends(answer())
    assert not (await bench.ask(post())).all(b"x-accel-buffering")


@pytest.mark.parametrize(("code", "length"), [(204, None), (304, b"7"), (200, b"0")])
async def test_a_204_has_no_length(start, code, length):
    """RFC 9110 §8.6; a 304 may have that of what it stands for."""
    stated = length or b"7"
    bench = await start(script=sends(b"HTTP/1.1 %d X\r\nContent-Length: %s\r\n\r\n" % (code, stated)))
    client = await bench.connect()
    for _ in range(2):
        response = await client.ask(post())
        assert (response.status, response.get(b"content-length")) == (code, length)


@pytest.mark.parametrize("proxied", [False, True])
async def test_connections_beyond_the_bound_are_not_held(start, proxied):
    server = {"proxy_protocol": True, "trusted_proxies": ["127.0.0.0/8"]} if proxied else {}
    bench = await start(limits={"max_connections": 2, "drain_rejected_body_s": 30}, server=server)
    before = len(os.listdir("/proc/self/fd"))
    clients = [await bench.connect() for _ in range(100)]
    await eventually(lambda: bench.gateway.listener.connection_count <= 2 + 16)
    await asyncio.sleep(0.05)
    assert len(os.listdir("/proc/self/fd")) - before - len(clients) <= 2 + 16
    for client in clients:
        client.close()
    await eventually(lambda: bench.gateway.listener.connection_count == 0)


TINY = b"1\r\nz\r\n" * 100_000 + b"0\r\n\r\n"
MODELS = get(b"/v1/models") * 4000


async def test_tiny_chunks_and_small_requests_are_read_in_slices(start):
    """By how often others get a turn, since a busy machine's clock says nothing."""
    bench = await start(models=[{"name": "n", "targets": [{"model": "m"}]}])
    loop, turns = asyncio.get_running_loop(), 0

    def count() -> None:
        nonlocal turns
        turns += 1
        bystander.append(loop.call_soon(count))
        bystander.pop(0)

    client = await bench.connect()
    head = b"POST /v1/completions HTTP/1.1\r\nHost: gw\r\nTransfer-Encoding: chunked\r\n\r\n"
    connection = next(iter(bench.gateway.listener._connections))
    for data, least, answers_due in ((head + TINY, 100_000 // 2000, 1), (MODELS, 4000 // 8, 4000)):
        turns, bystander = 0, [loop.call_soon(count)]
        connection.data_received(data)  # one read, as large as it may be
        for _ in range(answers_due):
            await client.receive()
        bystander[0].cancel()
        assert turns >= least
    assert bench.backend.seen[0].body == b"z" * 100_000


async def test_an_answer_is_kept_to_be_read_within_the_room_for_bodies(start):
    bench = await start(limits={"max_buffered_bytes": 100_000})
    budget, used = bench.gateway.listener.budget, []

    async def script(exchange: Exchange) -> None:
        size = 30_000 if len(bench.backend.seen) == 1 else 90_000
        body = b'{"x":"%s"}' % (b"a" * size)
        await exchange.send(answer(body)[:-1])
        await asyncio.sleep(0.1)
        used.append(budget.used)
        await exchange.send(body[-1:])

    bench.backend.script = script
    for _ in range(2):
        assert (await bench.ask(post())).is_whole
    assert 30_000 < used[0] < 31_000 and used[1] <= 50_000 and budget.used == 0


@pytest.mark.parametrize("key", ["\ufeffsk-a", "sk-☃", "sk a", "sk\nb", "sk-\x7f"])
def test_a_key_that_no_header_can_hold_is_refused(tmp_path, key):
    file = tmp_path / "key"
    file.write_text(key, encoding="utf-8")
    with pytest.raises(ConfigError, match="KEY: no key can hold"):
        read_api_key("KEY", None, {"KEY": key})
    with pytest.raises(ConfigError, match=f"{file}: no key can hold"):
        read_api_key(None, str(file), {})


@pytest.mark.parametrize(
    ("text", "limit"), [("4000\n", 4000), ("max\n", None), (f"{1 << 62}", 1 << 62), (None, None)]
)
def test_the_room_for_bodies_is_a_quarter_of_the_containers_memory(tmp_path, monkeypatch, text, limit):
    if text is not None:
        (tmp_path / "b").write_text(text)
    monkeypatch.setattr(memory, "_LIMITS", (tmp_path / "a", tmp_path / "b"))
    assert memory.memory_limit() == limit
    for count in (1, 2):
        room = 1000 // count if limit == 4000 else 2 << 30
        assert memory.max_buffered_bytes(HttpLimits(), processes=count) == room
    assert memory.max_buffered_bytes(HttpLimits(max_buffered_bytes=9), processes=2) == 9
