"""A picker behind a real Envoy: the same decisions as the proxy's, and what happens when something breaks."""

import asyncio
import contextlib
import hashlib
import json
from functools import partial
from typing import Any

import pytest

from gateway.config.load import ConfigError, load_config
from gateway.server.auth.client_keys import hash_key
from gateway.server.picker.checking import check_picker
from lab.simulator.replay import replay
from tests.envoy import DESTINATION, envoy
from tests.server.bench import (
    CHAT,
    CHAT_ANSWER,
    DELTA,
    DONE,
    STREAM_HEAD,
    Bench,
    Client,
    answer,
    chunk,
    eventually,
    get,
    pauses,
    post,
    sends,
)

pytestmark = pytest.mark.slow
KEY = "tp-secret"
KEY_HASH = hash_key(KEY)
ONE_AT_A_TIME = {"max_running_per_replica": 1}


class PickerBench(Bench):
    """Clients come through Envoy."""

    is_picker = True
    port = 0

    async def connect(self, **options) -> Client:
        reader, writer = await asyncio.open_connection("127.0.0.1", self.port, limit=1 << 24, **options)
        client = Client(reader, writer)
        self._clients.append(client)
        return client


def counted(bench: Bench) -> dict:
    return {labels[1:]: count for labels, count in bench.gateway.listener.requests.items()}


async def finish(bench: PickerBench) -> None:
    await bench.finish(is_last=False)
    assert not bench._complaints and not bench._logs.lines, (bench._complaints, bench._logs.lines)


@pytest.fixture
async def picked(tmp_path):
    async with contextlib.AsyncExitStack() as open_things:

        async def start(*, replicas: int = 2, ways: dict | None = None, **settings) -> PickerBench:
            bench = PickerBench()
            picker = {"listen": "127.0.0.1:0", **settings.pop("picker", {})}
            recording = {"path": str(tmp_path / "events-of-the-picker")}
            await bench.start(replicas=replicas, picker=picker, recording=recording, **settings)
            open_things.push_async_callback(finish, bench)
            ports = [backend.port for backend in bench.backends]
            bench.port = await open_things.enter_async_context(
                envoy(tmp_path, bench.gateway.picker_port, ports, **(ways or {}))
            )
            return bench

        yield start
    assert replay(tmp_path / "events-of-the-picker").events > 0, "the brain decides the same again"


async def test_a_request_goes_where_the_brain_says(picked):
    bench = await picked()
    told = await bench.ask(post())
    assert told.status == 200 and told.body == CHAT_ANSWER
    name = told.get(b"x-turnpike-replica").decode()
    backend = bench.backends[int(name.rpartition("-")[2])]
    (seen,) = backend.seen
    assert seen.body == CHAT and seen.get(DESTINATION.encode()) == b"127.0.0.1:%d" % backend.port
    assert told.get(b"x-turnpike-source") == b"none" or told.get(b"x-turnpike-session")
    await eventually(lambda: counted(bench) == {(200, False): 1})


@pytest.mark.parametrize("duplex", [False, True])
async def test_an_answer_goes_by_in_pieces_and_the_brain_sees_it(picked, duplex):
    ways = {"request_body": "FULL_DUPLEX_STREAMED", "response_body": "FULL_DUPLEX_STREAMED"} if duplex else {}
    go_on, sent = asyncio.Event(), []

    async def script(exchange):
        sent.append(exchange.request.body or await chunked(exchange.reader))
        await exchange.send(STREAM_HEAD + chunk(DELTA))
        await go_on.wait()
        await exchange.send(chunk(DELTA) + chunk(DONE) + b"0\r\n\r\n")

    bench = await picked(ways=ways, script=script)
    large = json.dumps(
        {"model": "m", "stream": True, "messages": [{"role": "user", "content": "x" * 200_000}]}
    )
    client = await bench.send(post(large.encode()))
    head = await client.reader.readuntil(b"\r\n\r\n")
    assert b"x-turnpike-replica" in head
    first = await client.reader.readuntil(DELTA)
    assert first.count(DELTA) == 1
    (request,) = bench.gateway.driver.tickets
    await eventually(lambda: bench.brain.live.get(request).saw_first_token)
    go_on.set()
    await client.reader.readuntil(DONE)
    assert sent == [large.encode()]
    await eventually(bench.is_quiet)


async def chunked(reader) -> bytes:
    """A body in chunks, as Envoy sends one that may change on its way."""
    body = b""
    while size := int(await reader.readuntil(b"\r\n"), 16):
        body += await reader.readexactly(size)
        await reader.readexactly(2)
    await reader.readexactly(2)
    return body


@pytest.mark.parametrize("has_certificate", [True, False])
async def test_it_is_asked_by_tls_and_by_nobody_without_a_certificate(picked, certificates, has_certificate):
    _, picker = certificates
    bench = await picked(picker=picker, ways={"certificate": picker} if has_certificate else {})
    assert (await bench.ask(post())).status == (200 if has_certificate else 500)


# --- as the proxy ---------------------------------------------------------------------------------------


def session(number: int, turns: int):
    """Bodies of an agent's chat, each with all that was said before; answers call a tool."""
    messages: list[dict[str, Any]] = [
        {"role": "system", "content": "You are an agent."},
        {"role": "user", "content": f"task {number}"},
    ]
    for turn in range(turns):
        body = json.dumps({"model": "m", "messages": messages, "tools": [TOOL]}).encode()
        call = {
            "id": f"call_{hashlib.sha256(b'%d %d' % (number, turn)).hexdigest()[:24]}",
            "type": "function",
            "function": {"name": "run", "arguments": "{}"},
        }
        said = {"role": "assistant", "content": None, "tool_calls": [call]}
        reply = {
            "id": f"chatcmpl-{number}-{turn}",
            "object": "chat.completion",
            "choices": [{"index": 0, "message": said, "finish_reason": "tool_calls"}],
            "usage": {"prompt_tokens": 100 * (turn + 1), "completion_tokens": 10},
        }
        yield body, json.dumps(reply).encode()
        messages += [said, {"role": "tool", "tool_call_id": call["id"], "content": f"done {number} {turn}"}]


TOOL = {"type": "function", "function": {"name": "run", "parameters": {"type": "object"}}}


async def decisions(bench) -> list[tuple]:
    """Of eight sessions, whose turns come in turn; four of them run at a time."""
    replies: dict[bytes, tuple[bytes, asyncio.Event]] = {}
    came: list[bytes] = []

    async def script(exchange):
        reply, may_end = replies[exchange.request.body]
        came.append(exchange.request.body)
        await may_end.wait()
        await exchange.send(answer(reply))

    for backend in bench.backends:
        backend.script = script
    sessions = [list(session(number, 5)) for number in range(8)]
    running: list[tuple[bytes, asyncio.Task]] = []
    told: list[tuple] = []
    names: dict[bytes, int] = {}

    async def end_the_first() -> None:
        body, asking = running.pop(0)
        reply, may_end = replies[body]
        may_end.set()
        got = await asking
        assert got.status == 200 and got.body == reply
        number = names.setdefault(got.get(b"x-turnpike-session"), len(names))
        told.append((number, *(got.get(b"x-turnpike-" + each) for each in DECIDED)))

    for turn in range(5):
        for each in sessions:
            body, reply = each[turn]
            replies[body] = reply, asyncio.Event()
            running.append((body, asyncio.create_task(bench.ask(post(body)))))
            await eventually(partial(came.__contains__, body))
            if len(running) == 4:
                await end_the_first()
    while running:
        await end_the_first()
    return told


DECIDED = (b"source", b"confidence", b"replica", b"reason")


async def test_its_decisions_are_those_of_the_proxy(start, picked):
    proxy = await start(replicas=2)
    as_proxy = await decisions(proxy)
    as_picker = await decisions(await picked())
    # Where a new session goes depends on how long turns took before: the same only until one has ended.
    assert as_picker[:4] == as_proxy[:4] and len({each[3] for each in as_picker[:4]}) == 2
    assert [each[:3] for each in as_picker] == [each[:3] for each in as_proxy]
    assert [each[4] for each in as_picker] == [each[4] for each in as_proxy]
    for told in (as_proxy, as_picker):
        assert len({each[0] for each in told}) == 8
        assert len({(each[0], each[3]) for each in told}) == 8, "each session stays where its KV cache is"


async def test_what_goes_out_is_what_the_proxy_sends(start, picked):
    hints = {"turnpike": True, "session": True}
    tenants = [{"name": "a", "key_hashes": [KEY_HASH]}]
    headers = b"Authorization: Bearer %s\r\nX-Turnpike-Session: mine\r\nX-Own: 1\r\n" % KEY.encode()
    sent = []
    for begin in (start, picked):
        bench = await begin(replicas=1, hints=hints, tenants=tenants)
        bench.backend.kv = b'{"sessions":[],"key":"k"}'
        told = await bench.ask(post(headers=headers))
        assert told.status == 200
        (seen,) = bench.backend.seen
        own = {name.lower(): value for name, value in seen.headers}
        for of_envoy in (
            b"x-forwarded-for",
            b"x-forwarded-proto",
            b"x-request-id",
            DESTINATION.encode(),
            b"host",
        ):
            own.pop(of_envoy, None)
        own = {name: value for name, value in own.items() if not name.startswith(b"x-envoy-")}
        session_id = own.pop(b"x-session-id", None)
        sent.append((own, session_id is not None, seen.body))
    assert sent[0] == sent[1]
    assert b"authorization" not in sent[1][0] and b"x-turnpike-session" not in sent[1][0]


async def test_a_body_of_megabytes_passes(picked):
    bench = await picked(replicas=1)
    large = json.dumps({"model": "m", "messages": [{"role": "user", "content": "x" * 3_000_000}]}).encode()
    assert (await bench.ask(post(large))).status == 200
    assert bench.backend.seen[0].body == large
    await eventually(bench.is_quiet)


async def test_a_list_of_models_passes_without_a_body(picked):
    bench = await picked()
    told = await bench.ask(get(b"/v1/models"))
    assert told.status == 200 and sum(len(backend.seen) for backend in bench.backends) == 1


@pytest.mark.parametrize(
    ("settings", "what"),
    [
        ("[prefill_ahead]\nenabled = true\n", "prefill_ahead.enabled"),
        ('[[mcp]]\nname = "a"\nurl = "http://a:1/mcp"\n', "mcp"),
    ],
)
def test_what_a_picker_cannot_do_is_said_before_it_starts(settings, what):
    config = load_config(None, {}, {}, text='[[pools]]\nreplicas = [{ url = "http://a:1" }]\n' + settings)
    with pytest.raises(ConfigError, match=f"picker: cannot go with {what}"):
        check_picker(config)


def test_a_picker_for_everybody_asks_for_keys():
    text = '[[pools]]\nreplicas = [{ url = "http://a:1" }]\n[picker]\nlisten = "0.0.0.0:9002"\n'
    with pytest.raises(ConfigError, match=r"picker\.listen: .* is reachable from elsewhere"):
        load_config(None, {}, {}, text=text)


# --- refusals -------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("path", "shape"), [(b"/v1/chat/completions", {"error"}), (b"/v1/messages", {"type", "error"})]
)
async def test_who_has_no_key_is_refused_in_the_protocols_shape(picked, path, shape):
    bench = await picked(tenants=[{"name": "a", "key_hashes": [KEY_HASH]}])
    told = await bench.ask(post(path=path))
    assert told.status == 401 and set(told.json()) == shape
    assert told.get(b"content-type") == b"application/json" and told.get(b"www-authenticate") == b"Bearer"
    assert not any(backend.seen for backend in bench.backends)
    await eventually(lambda: counted(bench) == {(401, False): 1})


async def test_nobody_names_the_endpoint_but_the_picker(picked):
    bench = await picked()
    told = await bench.ask(post(headers=b"%s: 127.0.0.1:%d\r\n" % (DESTINATION.encode(), bench.backend.port)))
    assert told.status == 403 and not any(backend.seen for backend in bench.backends)


async def test_a_body_that_is_too_large_is_refused(picked):
    bench = await picked(limits={"max_body_bytes": 1000})
    told = await bench.ask(post(b'{"model": "m", "messages": "%s"}' % (b"x" * 5000)))
    assert told.status == 413 and told.json()["error"]["code"] == "body_too_large"


async def test_who_may_not_go_on_waits_and_no_longer_than_is_said(picked):
    bench = await picked(replicas=1, admission=ONE_AT_A_TIME, picker={"max_wait_s": 0.3})
    release = asyncio.Event()
    bench.backend.script = pauses(b"", release, answer())
    first = asyncio.create_task(bench.ask(post(headers=b"x-turnpike-session: one\r\n")))
    await eventually(lambda: bench.backend.seen)
    told = await bench.ask(post(headers=b"x-turnpike-session: two\r\n"))
    assert told.status == 503 and told.json()["error"]["code"] == "queue_timeout"
    assert told.get(b"retry-after") == b"5"
    third = asyncio.create_task(bench.ask(post(headers=b"x-turnpike-session: three\r\n")))
    await eventually(lambda: len(bench.brain.waiting_room) == 1)
    release.set()
    assert (await first).status == (await third).status == 200


async def test_a_client_that_leaves_while_it_waits_is_forgotten(picked):
    bench = await picked(replicas=1, admission=ONE_AT_A_TIME, script=sends(b"", then="hang"))
    first = await bench.arrive(post(headers=b"x-turnpike-session: one\r\n"))
    second = await bench.send(post(headers=b"x-turnpike-session: two\r\n"))
    await eventually(lambda: len(bench.brain.waiting_room) == 1)
    second.reset()
    await eventually(lambda: len(bench.brain.waiting_room) == 0)
    first.reset()
    await eventually(bench.is_quiet)


# --- what breaks ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("then", ["close", "reset"])
async def test_an_engine_that_dies_in_the_midst_cuts_the_answer(picked, then):
    bench = await picked(script=sends(STREAM_HEAD + chunk(DELTA), then=then))
    told = await bench.ask(post())
    # As long as Envoy holds the head back, it answers by itself.
    assert (not told.is_whole and told.body in (b"", DELTA)) or told.status in (502, 503)
    await eventually(bench.is_quiet)


async def test_a_client_that_leaves_in_the_midst_ends_the_request(picked):
    bench = await picked(script=sends(STREAM_HEAD + chunk(DELTA), then="hang"))
    client = await bench.send(post())
    await client.reader.readuntil(DELTA)
    client.reset()
    await eventually(bench.is_quiet)


@pytest.mark.parametrize(("fails_open", "status"), [(True, 200), (False, 500)])
async def test_without_a_picker_envoy_does_as_it_was_told(picked, fails_open, status):
    bench = await picked(ways={"fails_open": fails_open})
    assert (await bench.ask(post())).status == 200
    await bench.gateway._picker.stop(0)
    assert (await bench.ask(post())).status == status


@pytest.mark.parametrize(("fails_open", "statuses"), [(True, {200}), (False, {500, 504})])
async def test_a_wait_beyond_envoys_own_patience_ends(picked, fails_open, statuses):
    ways = {"fails_open": fails_open, "message_timeout_s": 0.3}
    release = asyncio.Event()

    async def script(exchange):
        if exchange.request.get(b"x-own") is None:
            await release.wait()
        await exchange.send(answer())

    bench = await picked(replicas=1, admission=ONE_AT_A_TIME, ways=ways, script=script)
    first = asyncio.create_task(bench.ask(post(headers=b"x-turnpike-session: one\r\n")))
    await eventually(lambda: bench.backend.seen)
    told = await bench.ask(post(headers=b"x-turnpike-session: two\r\nx-own: 1\r\n"))
    assert told.status in statuses
    await eventually(lambda: len(bench.brain.waiting_room) == 0)
    release.set()
    assert (await first).status == 200


async def test_a_stopped_session_ends_in_the_midst(picked):
    bench = await picked(script=sends(STREAM_HEAD + chunk(DELTA), then="hang"))
    client = await bench.send(post(headers=b"x-turnpike-session: mine\r\n"))
    await client.reader.readuntil(DELTA)
    (live,) = bench.gateway.driver.tickets.values()
    from gateway.core import refusals

    live.on_cancel(None, refusals.internal())
    rest, _ = await client.rest()
    assert b"0\r\n\r\n" not in rest
    await eventually(bench.is_quiet)
