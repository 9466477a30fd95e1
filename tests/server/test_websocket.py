"""Responses over WebSocket, through the gateway to a backend that speaks it; both ends are aiohttp."""

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import aiohttp
import pytest
import pytest_asyncio
from aiohttp import WSMsgType, WSServerHandshakeError

from gateway.domain import records as rec
from gateway.domain.decision import PlacementReason, SessionSource
from gateway.server.tenants import hash_key
from tests.server.bench import Bench, eventually, post, sends
from tests.server.test_auth import ALICE, BOB, TENANTS
from tests.server.websocket_bench import CALL, NOT_FOUND, RESULT, Caller, Speaker, create, events, records_of

Connect = Callable[..., Awaitable[Caller]]


@pytest_asyncio.fixture
async def connect() -> AsyncIterator[Connect]:
    """Opens WebSockets as a client of the gateway's."""
    async with aiohttp.ClientSession() as session:

        async def call(bench: Bench, *, query: str = "", **options: Any) -> Caller:
            headers = {"User-Agent": "test", **options.pop("headers", {})}
            url = f"http://127.0.0.1:{bench.gateway.listener.port}/v1/responses{query}"
            options = {"max_msg_size": 0, "timeout": aiohttp.ClientWSTimeout(ws_close=2), **options}
            return Caller(await session.ws_connect(url, headers=headers, **options))

        yield call


def speaker_of(bench: Bench) -> Speaker:
    assert isinstance(bench.backend, Speaker)
    return bench.backend


async def test_turns_of_one_connection_are_turns_of_one_session(start, connect):
    bench = await start(backend=Speaker)
    records, backend = records_of(bench), speaker_of(bench)
    client = await connect(bench)
    first = await client.ask()
    assert first == events("resp_1", {**CALL, "arguments": '{"item":"pear"}'})
    assert bench.brain.sessions.tools.active_sessions == 1, "its tool runs"
    second = await client.ask(previous_response_id="resp_1", input=[RESULT])
    assert second == events("resp_2", text="Twelve.")
    assert backend.asked == [create(), create(previous_response_id="resp_1", input=[RESULT])]
    arrived = [each for each in records if isinstance(each, rec.TurnArrived)]
    assert len({each.session for each in arrived}) == 1 and len(arrived) == 2
    assert [each.source for each in arrived] == [SessionSource.NEW, SessionSource.STATE_ID]
    assert [each.names for each in records if isinstance(each, rec.ToolEnd)] == [("price",)]
    placed = [each for each in records if isinstance(each, rec.Routed)]
    assert [each.reason for each in placed] == [PlacementReason.STATE_LIVES_THERE] * 2
    ended = [each for each in records if isinstance(each, rec.GpuEnd)]
    assert [(each.outcome, each.status, each.usage.prompt_tokens) for each in ended] == [
        ("finished", 200, 7)
    ] * 2
    assert len([each for each in records if isinstance(each, rec.GpuFirstToken)]) == 2
    await client.socket.close()


async def test_messages_are_passed_byte_for_byte(start, connect):
    bench = await start(backend=Speaker)
    backend, client = speaker_of(bench), await connect(bench)
    odd = '{ "type" :"response.steer", "x":1e400,\n"y": "\\u00e9é" }'
    large = '{"type":"' + "x" * 300_000 + '"}'
    for said in (odd, large, '{"type":"a"}', '{"type":' + '"b"}'):
        await client.socket.send_str(said)
        heard = await client.socket.receive(timeout=10)
        assert heard.data == json.dumps({"type": "heard", "what": json.loads(said)})
        assert backend.raw[-1].data == said
    await client.socket.send_bytes(b"\x00\xff" * 40_000)
    echoed = await client.socket.receive(timeout=10)
    assert echoed.type is WSMsgType.BINARY and echoed.data == b"\x00\xff" * 40_000
    binary = json.dumps(create()).encode()  # whoever takes it for a question gets it as a turn
    await client.socket.send_bytes(binary)
    echoed = await client.socket.receive(timeout=10)
    assert echoed.type is WSMsgType.BINARY and echoed.data == binary
    assert len(bench.brain.live) == 1
    await backend.sockets[0].send_json(events("resp_0", text="x")[-1])
    await client.turn()
    spaced = json.dumps(create("é" * 100), indent=2, ensure_ascii=False)
    await client.socket.send_str(spaced)
    await client.turn()
    assert backend.raw[-1].data == spaced
    await client.socket.close()


async def test_the_handshake_is_the_clients_for_this_hop(start, connect):
    bench = await start(backend=Speaker)
    backend = speaker_of(bench)
    backend.headers = {"X-Codex-Turn-State": "sticky", "OpenAI-Model": "m-1"}
    asked = {
        "OpenAI-Beta": "responses_websockets=2026-02-06",
        "Session-Id": "s",
        "X-Turnpike-Class": "reactive",
    }
    client = await connect(bench, headers=asked, query="?a=b", protocols=("p",), compress=15)
    seen = backend.handshakes[0].headers
    assert seen["OpenAI-Beta"] == asked["OpenAI-Beta"] and seen["Session-Id"] == "s"
    assert backend.handshakes[0].query_string == "a=b"
    assert "X-Turnpike-Class" not in seen and "Sec-WebSocket-Extensions" not in seen
    assert seen["Sec-WebSocket-Protocol"] == "p" and len(seen.getall("Connection")) == 1
    answered = client.socket._response.headers
    assert answered["X-Codex-Turn-State"] == "sticky" and answered["OpenAI-Model"] == "m-1"
    assert answered["X-Turnpike-Replica"] and "Sec-WebSocket-Extensions" not in answered
    assert client.socket.compress == 0
    await client.socket.close()


async def test_an_error_is_the_backends_and_the_connection_goes_on(start, connect):
    bench = await start(backend=Speaker)
    records, client = records_of(bench), await connect(bench)
    assert await client.ask(previous_response_id="resp_other") == [NOT_FOUND]
    assert (await client.ask())[-1]["type"] == "response.completed"
    ended = [each for each in records if isinstance(each, rec.GpuEnd)]
    assert [each.status for each in ended] == [400, 200]
    await client.socket.close()


async def test_streams_of_one_connection_run_side_by_side(start, connect):
    """Their events come interleaved, and each turn gets its own."""
    bench = await start(backend=Speaker)
    records, backend = records_of(bench), speaker_of(bench)
    held: dict[str, list[Any]] = {}
    may_answer = asyncio.Event()

    async def together(speaker: Speaker, socket: Any, asked: Any) -> None:
        name = asked["stream_id"]
        held[name] = events(f"resp_{name}", {**CALL, "call_id": f"call_{name}_5b1f09d2"}, stream=name)
        if len(held) == 3:
            await may_answer.wait()
            for turn in zip(*held.values(), strict=True):
                for event in turn:
                    await socket.send_json(event)

    backend.turn = together
    client = await connect(bench)
    for name in "abc":
        await client.socket.send_json(create(name, stream_id=name))
    await eventually(lambda: len(held) == 3)
    assert len(bench.brain.live) == 3
    may_answer.set()
    found = [await client.socket.receive_json(timeout=10) for _ in range(sum(map(len, held.values())))]
    for name in "abc":
        assert [event for event in found if event["stream_id"] == name] == held[name]
    await eventually(lambda: not bench.brain.live)
    ended = [each for each in records if isinstance(each, rec.GpuEnd)]
    assert [each.outcome for each in ended] == ["finished"] * 3
    await client.socket.close()


async def test_a_turn_waits_for_its_place_and_pings_do_not(start, connect):
    bench = await start(backend=Speaker, admission={"max_running_per_replica": 1})
    backend, may_end = speaker_of(bench), asyncio.Event()
    backend.speaks_at(may_end)
    first, second = await connect(bench), await connect(bench, autoping=False)
    await first.socket.send_json(create("one"))
    await eventually(lambda: len(backend.asked) == 1)
    await second.socket.send_json(create("two"))
    await second.socket.send_json({"type": "response.steer"})
    await eventually(lambda: len(bench.brain.waiting_room) == 1)
    await second.socket.ping(b"there?")
    pong = await second.socket.receive(timeout=10)
    assert pong.type is WSMsgType.PONG and pong.data == b"there?"
    assert len(backend.asked) == 1, "what stands behind a turn that waits waits, too"
    may_end.set()
    assert (await first.turn())[-1]["type"] == "response.completed"
    assert (await second.turn())[-1]["type"] == "response.completed"
    heard = await second.socket.receive_json(timeout=10)
    assert heard == {"type": "heard", "what": {"type": "response.steer"}}
    for client in (first, second):
        await client.socket.close()


async def test_a_turn_that_is_refused_is_told_so_and_the_next_may_run(start, connect):
    bench = await start(
        backend=Speaker, admission={"max_running_per_replica": 1, "max_waiting": 1}, core={"max_held_s": 0.2}
    )
    backend, may_end = speaker_of(bench), asyncio.Event()
    backend.speaks_at(may_end)
    first, second = await connect(bench), await connect(bench)
    await first.socket.send_json(create("one"))
    await eventually(lambda: len(backend.asked) == 1)
    [told] = await second.ask(stream_id="s")
    assert told["status"] == 503 and told["error"]["code"] == "queue_timeout"
    assert told["stream_id"] == "s" and int(told["headers"]["retry-after"]) > 0
    may_end.set()
    await first.turn()
    assert (await second.ask())[-1]["type"] == "response.completed"
    for client in (first, second):
        await client.socket.close()


async def test_codex_is_told_that_it_waits(start, connect):
    bench = await start(
        backend=Speaker,
        admission={"max_running_per_replica": 1},
        server={"holding": {"quiet_s": 0.05, "period_s": 0.05}},
    )
    backend, may_end = speaker_of(bench), asyncio.Event()
    backend.speaks_at(may_end)
    first = await connect(bench)
    codex = await connect(bench, headers={"User-Agent": "codex_exec/0.169.0"})
    other = await connect(bench, autoping=False)
    await first.socket.send_json(create("one"))
    await eventually(lambda: len(backend.asked) == 1)
    await codex.socket.send_json(create("two"))
    await other.socket.send_json(create("three"))
    for _ in range(2):
        assert await codex.socket.receive_json(timeout=10) == {"type": "keepalive"}
    assert (await other.socket.receive(timeout=10)).type is WSMsgType.PING
    may_end.set()
    for client in (first, codex):
        assert (await client.turn())[-1]["type"] == "response.completed"
    while (await other.socket.receive(timeout=10)).type is WSMsgType.PING:
        pass
    for client in (first, codex, other):
        await client.socket.close()


# --- where it is spoken -----------------------------------------------------------------------------


async def refused(bench: Bench, connect: Connect, **options: Any) -> WSServerHandshakeError:
    with pytest.raises(WSServerHandshakeError) as error:
        await connect(bench, **options)
    return error.value


@pytest.mark.parametrize("status", [404, 405, 426, 400])
async def test_a_backend_that_does_not_speak_it_is_asked_once(start, connect, status):
    bench = await start(backend=Speaker)
    backend = speaker_of(bench)
    backend.status = status
    for _ in range(3):
        assert (await refused(bench, connect)).status == 426
    assert len(backend.handshakes) == 1
    # After a while it may be another one.
    backend.status = 101
    replicas = bench.gateway.replica_watch.replicas.values()
    for replica in replicas:
        replica._showed_s -= 3600
    await eventually(lambda: all(r.speaks_websocket is None for r in replicas))
    client = await connect(bench)
    assert (await client.ask())[-1]["type"] == "response.completed"
    await client.socket.close()


@pytest.mark.parametrize("status", [401, 403, 429, 500, 503])
async def test_what_it_says_of_the_moment_is_not_remembered(start, connect, status):
    bench = await start(backend=Speaker)
    backend = speaker_of(bench)
    backend.status = status
    assert (await refused(bench, connect)).status == 426
    backend.status = 101
    client = await connect(bench)
    await client.socket.close()


async def test_a_raw_backend_that_never_heard_of_it_is_asked_once_and_http_goes_on(start, connect):
    bench = await start()
    bench.backend.script = sends(b"HTTP/1.1 404 Not Found\r\nContent-Length: 0\r\n\r\n")
    for _ in range(2):
        assert (await refused(bench, connect)).status == 426
    assert [message.target for message in bench.backend.seen] == [b"/v1/responses"]
    assert (await bench.ask(post())).status == 404


async def test_the_one_that_speaks_it_is_found(start, connect):
    bench = await start(backend=Speaker, replicas=3)
    backends = [each for each in bench.backends if isinstance(each, Speaker)]
    for mute in backends[:2]:
        mute.status = 404
    clients = [await connect(bench) for _ in range(3)]
    for client in clients:
        assert (await client.ask())[-1]["type"] == "response.completed"
    assert len(backends[2].handshakes) == 3 and all(len(each.handshakes) <= 1 for each in backends[:2])
    for client in clients:
        await client.socket.close()


async def test_connections_are_spread_and_a_session_comes_back_to_its_replica(start, connect):
    bench = await start(backend=Speaker, replicas=2)
    clients = [await connect(bench, headers={"Session-Id": f"s-{at}"}) for at in range(4)]
    homes = [client.socket._response.headers["X-Turnpike-Replica"] for client in clients]
    assert sorted(homes.count(each) for each in set(homes)) == [2, 2]
    for client in clients:
        await client.ask()
        await client.socket.close()
    await eventually(lambda: not len(bench.gateway.serving.websockets))
    for at in (3, 2, 1, 0):
        client = await connect(bench, headers={"Session-Id": f"s-{at}"})
        assert client.socket._response.headers["X-Turnpike-Replica"] == homes[at]
        await client.ask()
    assert len(bench.brain.sessions.sessions) == 4


async def test_of_several_pools_the_query_says_which(start, connect):
    def listing(model: str) -> bytes:
        return json.dumps({"object": "list", "data": [{"id": model}]}).encode()

    pools = [{"name": name, "backends": 1, "listing": listing(name)} for name in ("a", "b")]
    bench = await start(backend=Speaker, pools=pools)
    assert (await refused(bench, connect)).status == 426, "nobody can say what its turns will ask for"
    assert (await refused(bench, connect, query="?model=c")).status == 426
    client = await connect(bench, query="?model=b")
    await client.ask(model="b")
    assert bench.backends[1].asked and not bench.backends[0].handshakes
    await client.socket.close()


async def test_a_name_of_the_operators_is_replaced(start, connect):
    bench = await start(backend=Speaker, models=[{"name": "house", "targets": [{"model": "m"}]}])
    client = await connect(bench)
    await client.ask(model="house")
    assert speaker_of(bench).asked == [create()]
    await client.socket.close()


async def test_a_page_in_a_browser_may_not(start, connect):
    """It could read what it is answered; where keys are asked for, it has none to send."""
    bench = await start(backend=Speaker)
    assert (await refused(bench, connect, origin="https://elsewhere.example")).status == 426
    assert not speaker_of(bench).handshakes


# --- who may ----------------------------------------------------------------------------------------


async def test_who_has_no_key_gets_a_401_and_the_key_stays_here(start, connect):
    bench = await start(backend=Speaker, tenants=TENANTS)
    assert (await refused(bench, connect)).status == 401
    client = await connect(bench, headers={"Authorization": f"Bearer {ALICE}"})
    await client.ask()
    assert "Authorization" not in speaker_of(bench).handshakes[0].headers
    await client.socket.close()


async def test_anothers_response_is_not_found(start, connect):
    bench = await start(backend=Speaker, tenants=TENANTS)
    alice = await connect(bench, headers={"Authorization": f"Bearer {ALICE}"})
    await alice.ask()
    bob = await connect(bench, headers={"Authorization": f"Bearer {BOB}"})
    [told] = await bob.ask(previous_response_id="resp_1")
    assert told["status"] == 400 and told["error"]["code"] == "previous_response_not_found"
    assert len(speaker_of(bench).asked) == 1
    named = '"type":"response.create","previous_response_id":"resp_1"'
    for unread in ("{" + named + ',"x":NaN}', "{" + named + ',"tools":7}', "{"):
        await bob.socket.send_str(unread)
        assert (await bob.turn())[-1]["error"]["code"] == "malformed_http"
    assert len(speaker_of(bench).raw) == 1
    for client in (alice, bob):
        await client.socket.close()


async def test_a_tenant_may_have_so_many(start, connect):
    bench = await start(backend=Speaker, tenants=TENANTS, server={"websocket": {"max_per_tenant": 1}})
    alice = {"Authorization": f"Bearer {ALICE}"}
    client = await connect(bench, headers=alice)
    assert (await refused(bench, connect, headers=alice)).status == 426
    other = await connect(bench, headers={"Authorization": f"Bearer {BOB}"})
    await client.socket.close()
    await eventually(lambda: len(bench.gateway.serving.websockets) == 1)
    again = await connect(bench, headers=alice)
    for each in (again, other):
        await each.socket.close()


ROUTER = {"name": "router", "key_hashes": [hash_key("tp-router")], "trust": ["kv-transfer"]}


@pytest.mark.parametrize(
    "message",
    [
        json.dumps(create(kv_transfer_params={"remote_host": "10.0.0.1"})),
        json.dumps(create(vllm_xargs={"kv_transfer_params": "x"})),
        '{"type":"response.other","kv_transfer_params":{"a":1}}',
        '{"type":"response.create","a":NaN,"kv\\u005ftransfer_params":{"a":1}}',
    ],
)
async def test_where_kv_caches_are_gets_to_no_backend(start, connect, message):
    bench = await start(backend=Speaker)
    backend, client = speaker_of(bench), await connect(bench)
    await client.socket.send_str(message)
    told = json.loads((await client.socket.receive(timeout=10)).data)
    assert told["type"] == "error" and "kv_transfer_params" in json.dumps(told) and not backend.raw
    assert await client.ask() and len(backend.raw) == 1, "the connection goes on"
    await client.socket.close()


async def test_who_is_trusted_may_say_where_kv_caches_are(start, connect):
    bench = await start(backend=Speaker, tenants=[ROUTER])
    client = await connect(bench, headers={"Authorization": "Bearer tp-router"})
    await client.ask(kv_transfer_params={"remote_host": "10.0.0.1"})
    assert speaker_of(bench).asked == [create(kv_transfer_params={"remote_host": "10.0.0.1"})]
    await client.socket.close()


async def test_a_turn_of_a_connection_has_no_prefill_leg(start, connect):
    pool = {"transfer": "shared_storage", "roles": ["both", "both"], "backends": 2}
    bench = await start(backend=Speaker, pools=[pool], disaggregation={"threshold_tokens": 1})
    client = await connect(bench)
    assert await client.ask(input="word " * 500, store=False)
    asked = [each for backend in bench.backends for each in backend.asked]
    assert len(asked) == 1 and not any(backend.seen for backend in bench.backends)
    await client.socket.close()
