"""WebSockets as tunnels: who gets one, and what passes."""

import asyncio
import os
from typing import Any, cast

import aiohttp
import pytest
from aiohttp import web

from gateway.domain import records as rec
from tests.server.bench import Backend, answer, bearer, eventually, get, listing, post, sends
from tests.server.test_auth import ALICE, BACKEND_KEY, BOB, ENVIRON, POOL, TENANTS
from tests.server.tunnels import KEY, agrees, echo, handshake, none_left, open_tunnel, switched

RESPONSES = b"/v1/responses"
TAKER = [{"backends": 1, "replica": {"responses_websocket": True}}]


def records_of(bench) -> list[rec.Record]:
    found: list[rec.Record] = []
    inner = bench.gateway.driver._on_records

    def on_records(records: list[rec.Record]) -> None:
        found.extend(records)
        inner(records)

    bench.gateway.driver._on_records = on_records
    return found


# --- what passes -------------------------------------------------------------------------------------


async def test_bytes_pass_both_ways_as_they_are(start):
    bench = await start(script=agrees(echo))
    client = await open_tunnel(bench)
    for data in (b"\x81\x85\x01\x02\x03\x04hello", b"no frame at all\r\n\r\n", os.urandom(3_000_000)):
        client.send(data)
        assert await client.reader.readexactly(len(data)) == data
    client.writer.write_eof()
    assert await client.rest() == (b"", "eof")
    await none_left(bench)


async def test_the_handshake_is_the_clients_and_so_is_the_answer(start):
    told = b"Sec-WebSocket-Protocol: realtime\r\nX-Of-Replica: 1\r\n"
    bench = await start(script=sends(switched(KEY, told), then="hang"))
    fields = (
        b"Sec-WebSocket-Protocol: realtime\r\nSec-WebSocket-Extensions: permessage-deflate\r\nX-Own: 1\r\n"
    )
    client = await bench.connect()
    fields += b"Keep-Alive: 5\r\nContent-Length: 0\r\n"
    response = await client.ask(handshake(b"/v1/realtime?model=m", fields))
    [seen] = bench.backend.seen
    assert seen.get(b"content-length") is None
    assert seen.first_line == b"GET /v1/realtime?model=m HTTP/1.1"
    assert seen.get(b"sec-websocket-key") == KEY and seen.get(b"sec-websocket-version") == b"13"
    assert seen.get(b"sec-websocket-extensions") == b"permessage-deflate" and seen.get(b"x-own") == b"1"
    assert seen.all(b"upgrade") == [b"websocket"] and seen.all(b"connection") == [b"Upgrade"]
    assert seen.get(b"host") != b"gw" and seen.get(b"keep-alive") is None
    assert response.status == 101 and response.get(b"x-of-replica") == b"1"
    assert response.all(b"upgrade") == [b"websocket"] and response.all(b"connection") == [b"Upgrade"]
    assert response.get(b"sec-websocket-protocol") == b"realtime"
    assert response.get(b"x-turnpike-replica") == b"default-0" and response.get(b"x-turnpike-session")


async def test_nothing_leaves_before_the_replica_has_switched_and_nothing_is_lost(start):
    may_switch, came = asyncio.Event(), bytearray()

    async def script(exchange) -> None:
        early = asyncio.ensure_future(exchange.reader.read(1 << 16))
        await may_switch.wait()
        assert not early.done()
        await exchange.send(switched(KEY) + b"at once")
        came.extend(await early)
        await exchange.until_left()

    bench = await start(script=script)
    client = await bench.send(handshake() + b"behind the ")
    client.send(b"handshake")
    await asyncio.sleep(0.1)
    may_switch.set()
    assert (await client.receive()).status == 101
    assert await client.reader.readexactly(7) == b"at once"
    await eventually(lambda: bytes(came) == b"behind the handshake")


@pytest.mark.parametrize("is_switched", [True, False])
async def test_a_request_behind_the_handshake_is_none(start, is_switched):
    """A second request is bytes for the replica that switched, and nobody's if it did not."""
    bench = await start(limits={"drain_rejected_body_s": 0.1})
    smuggled = post(path=b"/sleep")
    bench.backend.script = agrees() if is_switched else sends(answer(status=b"400 Bad Request"))
    client = await bench.connect()
    response = await client.ask(handshake() + smuggled)
    if not is_switched:
        assert response.status == 400 and response.get(b"connection") == b"close"
        assert (await client.rest())[0] == b""
    await asyncio.sleep(0.1)
    assert len(bench.backend.seen) == 1


@pytest.mark.parametrize("status", [b"400 Bad Request", b"404 Not Found", b"200 OK", b"503 Busy"])
async def test_any_other_answer_is_an_ordinary_one(start, status):
    bench = await start(script=sends(answer(b'{"detail":"no"}', status=status, headers=b"X-Own: 1\r\n")))
    records = records_of(bench)
    response = await bench.ask(handshake())
    assert response.first_line == b"HTTP/1.1 " + status and response.body == b'{"detail":"no"}'
    assert response.get(b"x-own") == b"1" and response.get(b"connection") == b"close"
    assert response.get(b"upgrade") is None and len(bench.backend.seen) == 1
    [end] = [each for each in records if isinstance(each, rec.GpuEnd)]
    assert end.outcome == "finished" and end.status == int(status[:3])


OTHER = {
    "another key's": switched(b"AAAAAAAAAAAAAAAAAAAAAA=="),
    "another protocol": switched(KEY).replace(b"Upgrade: websocket", b"Upgrade: h2c"),
    "no Upgrade": switched(KEY).replace(b"Upgrade: websocket\r\n", b""),
    "no Connection": switched(KEY).replace(b"Connection: Upgrade\r\n", b""),
    "a body": switched(KEY, b"Content-Length: 5\r\n") + b"hello",
    "chunks": switched(KEY, b"Transfer-Encoding: chunked\r\n"),
    "an endless head": b"HTTP/1.1 101 Switching Protocols\r\nX: " + b"y" * (1 << 19),
}


@pytest.mark.parametrize("told", OTHER.values(), ids=OTHER)
async def test_a_replica_that_switches_to_something_else_is_a_502(start, told):
    bench = await start(script=sends(told, then="hang"))
    response = await bench.ask(handshake())
    assert response.status == 502 and response.json()["error"]["code"] == "upstream_broken"


async def test_nobody_switches_without_being_asked(start):
    bench = await start(script=sends(switched(KEY), then="hang"))
    assert (await bench.ask(post())).status == 502
    plain = handshake().replace(b"Connection: Upgrade\r\n", b"")
    assert (await bench.ask(plain)).status == 502, "without Connection it is a plain request"
    assert bench.backend.seen[-1].get(b"upgrade") is None


class Sockets(Backend):
    """A replica by aiohttp, with compression and pings."""

    async def open(self, tls=None) -> None:
        self._tls = tls
        app = web.Application()
        for path, body in {"/health": b"", "/version": self.version, "/v1/models": self.models}.items():
            app.router.add_get(path, _answers(body))
        app.router.add_get("/v1/realtime", self._talk)
        self._runner = web.AppRunner(app, access_log=None, shutdown_timeout=0.1)
        await self._runner.setup()
        await web.TCPSite(self._runner, "127.0.0.1", self.port, ssl_context=tls).start()
        self.port = self._runner.addresses[0][1]
        self._server = cast(Any, self._runner.server)  # that there is one says that it is open

    async def close(self) -> None:
        await self._runner.cleanup()
        self._server = None

    async def _talk(self, request: web.Request) -> web.WebSocketResponse:
        socket = web.WebSocketResponse(compress=True, max_msg_size=0)
        await socket.prepare(request)
        async for message in socket:
            await socket.send_str(message.data.upper())
            if message.data == "bye":
                await socket.close(code=4001)
        return socket


def _answers(body: bytes) -> Any:
    async def answer(_: web.Request) -> web.Response:
        return web.Response(body=body, content_type="application/json")

    return answer


@pytest.mark.parametrize("is_tls", [False, True], ids=["plain", "TLS"])
@pytest.mark.parametrize("closes", ["client", "replica"])
async def test_real_websockets_converse(start, tls, tls_upstream, is_tls, closes):
    settings: dict[str, Any] = {"server": tls[0], **tls_upstream} if is_tls else {}
    trust = tls[1] if is_tls else True
    bench = await start(backend=Sockets, **settings)
    records = records_of(bench)
    url = f"{'wss' if is_tls else 'ws'}://127.0.0.1:{bench.gateway.listener.port}/v1/realtime"
    async with aiohttp.ClientSession() as session:
        socket = await session.ws_connect(url, ssl=trust, max_msg_size=0, compress=15)
        assert socket.compress
        for text in ("hi", "x" * 2_000_000):
            await socket.send_str(text)
            assert await socket.receive_str(timeout=10) == text.upper()
        await socket.ping(b"are you there")
        if closes == "client":
            await socket.close(code=4000)
        else:
            await socket.send_str("bye")
            assert await socket.receive_str(timeout=10) == "BYE"
            assert (await socket.receive(timeout=10)).type is aiohttp.WSMsgType.CLOSE
            assert socket.close_code == 4001
    await none_left(bench)
    [end] = [each for each in records if isinstance(each, rec.GpuEnd)]
    assert end.outcome in ("finished", "client_left") and end.outcome != "cut"


# --- who gets one ------------------------------------------------------------------------------------


@pytest.mark.parametrize("path", [RESPONSES, b"/v1/responses?model=m", b"/v1/responses/"])
async def test_responses_are_a_426_at_once(start, path):
    """By which Codex knows to ask by HTTP."""
    bench = await start()
    client = await bench.connect()
    response = await client.ask(handshake(path))
    assert response.status == 426 and response.get(b"upgrade") == b"HTTP/1.1"
    assert response.all(b"connection") == [b"Upgrade", b"close"]
    error = response.json()["error"]
    assert error["code"] == "unsupported_upgrade" and error["type"] == "invalid_request_error"
    assert await client.rest() == (b"", "eof") and not bench.backend.seen


async def test_where_each_tenant_has_a_salt_they_are_a_426_too(start):
    """None can be put into their messages."""
    bench = await start(pools=TAKER, hints={"cache_salt_secret": "0123456789abcdef"}, script=agrees())
    assert (await bench.ask(handshake(RESPONSES))).status == 426 and not bench.backend.seen


async def test_they_go_to_the_replicas_that_take_them(start):
    pools = [{"name": "a", "backends": 2}, {"name": "b", "backends": 1}]
    bench = await start(pools=pools, script=agrees())
    one, two, other = bench.backends
    other.models = listing("n")
    assert (await bench.ask(handshake(RESPONSES))).status == 426
    pool = bench.settings["pools"][0]
    pool["replicas"][1]["responses_websocket"] = True
    assert bench.gateway.settings is not None
    await bench.gateway.settings.reload()
    clients = [await open_tunnel(bench, handshake(RESPONSES)) for _ in range(3)]
    assert len(two.seen) == 3 and not one.seen
    assert len(clients) == 3
    await two.close()
    assert (await bench.ask(handshake(RESPONSES))).status == 502, "who takes them is down"
    assert not one.seen and not other.seen


async def test_found_replicas_take_them_if_their_discovery_says_so(start, tmp_path):
    file = tmp_path / "replicas"
    file.write_text("")
    discovery = {"file": str(file), "period_s": 0.05, "responses_websocket": True}
    bench = await start(pools=[{"backends": 0, "discovery": discovery}])
    assert (await bench.ask(handshake(RESPONSES))).status == 426
    found = await bench.another()
    found.script = agrees()
    file.write_text(found.url)
    await eventually(lambda: any(state.is_up for state in bench.brain.fleet))
    await open_tunnel(bench, handshake(RESPONSES))


async def test_of_several_pools_the_query_names_the_model(start):
    pools = [{"name": name, "backends": 1, "listing": listing(f"{name} x")} for name in ("a", "b")]
    bench = await start(pools=pools, script=agrees())
    await open_tunnel(bench, handshake(b"/v1/realtime?a=1&model=b+x"))
    assert len(bench.backends[1].seen) == 1
    await open_tunnel(bench)
    assert len(bench.backends[0].seen) == 1, "without a model it is the first"
    assert (await bench.ask(handshake(b"/v1/realtime?model=c"))).status == 404


WRONG = {
    "version": (b"Version: 13", b"Version: 8"),
    "two keys": (b"Host: gw\r\n", b"Host: gw\r\nSec-WebSocket-Key: " + KEY + b"\r\n"),
    "POST": (b"GET ", b"POST "),
    "a body": (b"Host: gw\r\n", b"Host: gw\r\nContent-Length: 1\r\n"),
    "chunks": (b"Host: gw\r\n", b"Host: gw\r\nTransfer-Encoding: chunked\r\n"),
}


@pytest.mark.parametrize("change", WRONG.values(), ids=WRONG)
async def test_a_handshake_that_is_none_is_a_426(start, change):
    bench = await start(pools=TAKER, limits={"drain_rejected_body_s": 0.1})
    for path in (RESPONSES, b"/v1/realtime"):
        response = await bench.ask(handshake(path).replace(*change))
        assert response.status == 426 and response.get(b"upgrade") == b"HTTP/1.1"
    assert not bench.backend.seen


async def test_a_page_in_a_browser_gets_none_where_no_key_is_required(start):
    """It could read what comes; where keys are required, it has none to send."""
    bench = await start()
    response = await bench.ask(handshake(headers=b"Origin: https://elsewhere.example\r\n"))
    assert response.status == 426 and "browsers" in response.json()["error"]["message"]
    assert not bench.backend.seen


async def test_a_library_that_states_the_address_it_connects_to_is_no_page(start):
    bench = await start(script=agrees(echo))
    for origin, host in (
        (b"https://gw", b"gw"),  # a name that may lead here today
        (b"http://127.0.0.1:8080", b"127.0.0.1:9000"),
        (b"null", b"127.0.0.1:8080"),
        (b"http://127.0.0.1.evil.example", b"127.0.0.1.evil.example"),
    ):
        page = handshake(headers=b"Origin: %b\r\n" % origin).replace(b"Host: gw", b"Host: %b" % host)
        assert (await bench.ask(page)).status == 426, origin
    for host in (b"127.0.0.1:8080", b"[::1]:8080", b"localhost"):
        ours = handshake(headers=b"Origin: http://%b\r\n" % host).replace(b"Host: gw", b"Host: %b" % host)
        await open_tunnel(bench, ours)


async def test_a_tool_server_gets_none(start):
    bench = await start(mcp=[{"name": "tools", "url": "http://127.0.0.1:9/mcp"}])
    response = await bench.ask(handshake(b"/mcp/tools"))
    assert response.status == 426, response.head


async def test_the_clients_key_stays_here_and_the_replicas_is_put_in(start):
    bench = await start(tenants=TENANTS, pools=POOL, environ=ENVIRON, script=agrees(echo))
    assert (await bench.ask(handshake())).status == 401
    assert (await bench.ask(handshake(headers=bearer("wrong")))).status == 401
    assert (await bench.ask(handshake(b"/metrics", bearer(ALICE)))).status == 403
    assert not bench.backend.seen
    await open_tunnel(bench, handshake(headers=bearer(ALICE) + b"Origin: https://a.example\r\n"))
    [seen] = bench.backend.seen
    assert seen.all(b"authorization") == [b"Bearer " + BACKEND_KEY.encode()] and b"tp-" not in seen.head


ALICES = {**TENANTS[0], "quota": {"tokens_per_minute": 1000}}
DAY = {"scope": "tenant", "period": "day"}


@pytest.mark.parametrize(
    ("settings", "is_refused"),
    [
        ({"tenants": [ALICES, TENANTS[1]]}, True),
        ({"bounds": [{"name": "x", "tokens": 1000}]}, True),
        ({"bounds": [{"name": "x", "tokens": 1000, "agents": ["00000000000000ab"]}]}, True),
        ({"bounds": [{"name": "x", "cost": 1.0, "tenants": ["alice"], **DAY}]}, True),
        ({"bounds": [{"name": "x", "tokens": 1000, "tenants": ["bob"], **DAY}]}, False),
        ({"bounds": [{"name": "x", "tokens": 1000, "shadow": True}]}, False),
        ({"bounds": [{"name": "x", "turns": 10, "max_duration_s": 60.0}]}, False),
    ],
)
async def test_who_has_limits_of_tokens_gets_none(start, tmp_path, settings, is_refused):
    state = {"state_path": str(tmp_path / "state")}
    prices = [{"model": "*", "input": 1.0}]
    bench = await start(**{"tenants": TENANTS, "server": state, "prices": prices, **settings})
    bench.backend.script = agrees()
    response = await bench.ask(handshake(headers=bearer(ALICE)))
    assert response.status == (426 if is_refused else 101)
    if is_refused:
        assert "limit of tokens" in response.json()["error"]["message"] and not bench.backend.seen


async def test_a_bound_of_turns_counts_it_as_one(start):
    bench = await start(bounds=[{"name": "short", "turns": 1}], script=agrees())
    of_one = handshake(headers=b"x-turnpike-session: s\r\n")
    await open_tunnel(bench, of_one)
    response = await bench.ask(of_one)
    assert response.status == 403 and response.json()["error"]["code"] == "bound_reached"


async def test_it_takes_a_place_of_its_tenants_sessions(start):
    tenants = [{**each, "quota": {"max_sessions": 1}} for each in TENANTS]
    bench = await start(tenants=tenants, core={"max_wait_s": 0.1}, script=agrees())
    alices = handshake(headers=bearer(ALICE))
    client = await open_tunnel(bench, alices)
    late = await bench.ask(alices)
    assert late.status == 429 and late.json()["error"]["code"] == "tenant_quota"
    assert (await bench.ask(post(headers=bearer(ALICE)))).status == 429
    await open_tunnel(bench, handshake(headers=bearer(BOB)))
    client.close()
    await eventually(lambda: len(bench.brain.live) == 1)


async def test_it_takes_a_place_on_its_replica(start):
    bench = await start(admission={"max_running_per_replica": 1}, script=agrees())
    client = await open_tunnel(bench)
    waits = await bench.send(handshake())
    await eventually(lambda: len(bench.brain.waiting_room) == 1)
    assert len(bench.backend.seen) == 1
    client.close()
    assert (await waits.receive()).status == 101


async def test_it_is_a_turn_of_a_session_from_which_nothing_is_learned(start):
    bench = await start(replicas=2, script=agrees(echo))
    records = records_of(bench)
    client = await open_tunnel(bench, handshake(headers=b"x-turnpike-session: s\r\n"))
    client.writer.write_eof()
    await client.rest()
    await eventually(lambda: not bench.brain.live)
    [end] = [each for each in records if isinstance(each, rec.GpuEnd)]
    [submitted] = [each for each in records if isinstance(each, rec.GpuSubmit)]
    assert end.outcome == "finished" and end.status == 101 and end.usage.prompt_tokens is None
    assert submitted.expected is None and end.session is not None
    again = await open_tunnel(bench, handshake(headers=b"x-turnpike-session: s\r\n"))
    [session] = bench.brain.sessions.sessions.newest_first()
    assert session.live_turns == 1 and session.turns == 2
    again.close()


async def test_a_relay_has_them_too(start):
    bench = await start(server={"mode": "relay"}, script=agrees(echo))
    client = await open_tunnel(bench)
    client.send(b"hello")
    assert await client.reader.readexactly(5) == b"hello"
    assert not len(bench.brain.sessions.sessions)


async def test_they_are_counted(start):
    bench = await start(script=agrees())
    client = await open_tunnel(bench)
    await bench.ask(handshake(RESPONSES))
    told = (await bench.control(get(b"/metrics"))).body.decode()
    assert "turnpike_tunnels 1.0" in told
    assert 'turnpike_tunnel_requests_total{outcome="opened"} 1.0' in told
    assert 'turnpike_tunnel_requests_total{outcome="refused"} 1.0' in told
    client.close()
    await none_left(bench)
    assert "turnpike_tunnels 0.0" in (await bench.control(get(b"/metrics"))).body.decode()
