"""MCP traffic passes byte for byte as it comes, so many calls at a time, the others in their order."""

import asyncio
import json

import pytest

from gateway.mcp.calls import Outcome
from gateway.server.auth.client_keys import hash_key
from tests.server.bench import Client, Exchange, answer, chunk, eventually, get, hangs, pauses, sends
from tests.server.mcp_bench import (
    PATH,
    STREAM,
    Agent,
    answers,
    call,
    counted,
    event,
    passing,
    result,
    rpc,
    settings,
    tell,
    tool_server,
)

ALICE, SERVER_KEY = "tp-alice-secret", "mcp-server-secret"


async def test_a_post_arrives_byte_for_byte_and_so_does_its_answer(start):
    body = b'{ "jsonrpc":"2.0","method":"tools/call" ,"id":"\\u0041", "params":{"name":"x"}}'
    reply = b'{"id":"A",  "result":{},"jsonrpc":"2.0"}'
    async with tool_server(sends(answers(reply))) as server:
        bench = await start(mcp=settings(server))
        more = b"MCP-Protocol-Version: 2025-11-25\r\nOrigin: http://x\r\nX-Own: a\r\n"
        more += b"Connection: x-hop\r\nX-Hop: 1\r\n"
        response = await bench.ask(tell(body, more + b"x-turnpike-session: s\r\n", PATH + b"?a=b%20c"))
        assert response.status == 200 and response.body == reply
        assert response.get(b"mcp-session-id") == b"s1"
        [seen] = server.seen
        assert seen.body == body and seen.first_line == b"POST /mcp?a=b%20c HTTP/1.1"
        assert seen.get(b"host") == b"localhost:%d" % server.port
        kept = {b"mcp-protocol-version": b"2025-11-25", b"origin": b"http://x", b"x-own": b"a"}
        assert {name: seen.get(name) for name in kept} == kept
        assert not seen.all(b"x-hop") and not seen.all(b"x-turnpike-session")
    assert not bench.backend.seen


async def test_a_path_keeps_its_slash_and_another_path_is_no_tool_server_s(start):
    async with tool_server(sends(answers(result()))) as server:
        bench = await start(mcp=[{"name": "tools", "url": server.url + "/a/mcp/"}])
        assert (await bench.ask(tell(call()))).status == 200
        assert server.seen[0].target == b"/a/mcp/"
        for path in (b"/mcp/tools/more", b"/mcp/other", b"/mcp/"):
            await bench.ask(tell(call(), path=path))
        assert len(server.seen) == 1 and len(bench.backend.seen) == 3


async def test_events_pass_as_they_come(start):
    go_on = asyncio.Event()
    first, last = event(b"", "e1"), event(result(), "e2")
    script = pauses(STREAM + chunk(first), go_on, chunk(last) + chunk(b""))
    async with tool_server(script) as server:
        bench = await start(mcp=settings(server))
        client = await bench.send(tell(call()))
        await client.reader.readuntil(b"\r\n\r\n")
        assert first in await client.reader.readuntil(first)
        go_on.set()
        assert last in await client.reader.readuntil(b"0\r\n\r\n")


async def test_who_only_listens_may_be_told_nothing_for_long_but_who_waits_may_not(start):
    async with tool_server(sends(STREAM, then="hang")) as server:
        bench = await start(mcp=settings(server, silence_s=0.3))
        listener = await bench.send(get(PATH, b"Accept: text/event-stream\r\nLast-Event-ID: e7\r\n"))
        asker = await bench.send(tell(call()))
        await eventually(lambda: passing(bench) == 2)
        assert (await asker.rest())[1] == "reset"
        await asyncio.sleep(0.3)
        assert passing(bench) == 1
        assert b"e7" in [each.get(b"last-event-id") for each in server.seen]
        listener.close()


async def test_a_server_that_dies_is_told_by_a_reset_not_by_an_end(start):
    async with tool_server(sends(STREAM + chunk(event(b"", "e1")), then="reset")) as server:
        bench = await start(mcp=settings(server))
        client = await bench.send(tell(call()))
        data, end = await client.rest()
        assert b"id: e1" in data and end == "reset"


async def test_the_server_sees_that_a_client_leaves(start):
    left = asyncio.Event()
    async with tool_server(hangs(left, STREAM)) as server:
        bench = await start(mcp=settings(server))
        client = await bench.send(get(PATH))
        await eventually(lambda: passing(bench))
        client.close()
        await asyncio.wait_for(left.wait(), 5)
        await eventually(lambda: not passing(bench))


@pytest.mark.parametrize(
    ("then", "status"),
    [("close", 502), ("hang", 504), ("gone", 502)],
    ids=["broken", "silent", "unreachable"],
)
async def test_what_the_gateway_answers_itself_is_a_json_rpc_error_with_the_request_s_id(start, then, status):
    async with tool_server(sends(b"", then=then)) as server:
        bench = await start(mcp=settings(server, silence_s=0.2))
        if then == "gone":
            await server.close()
        response = await bench.ask(tell(call(request_id="c-7")))
        error = response.json()
        assert response.status == status and error["id"] == "c-7" and error["jsonrpc"] == "2.0"
        assert error["error"]["code"] == -32000 and "MCP server" in error["error"]["message"]


async def test_a_call_is_never_sent_twice_though_a_harmless_question_is(start):
    async def script(exchange: Exchange) -> None:
        if len(server.seen) == 1:
            await exchange.send(answers(result()))
        else:
            exchange.reset() if exchange.number == 1 else await exchange.send(answers(result()))

    async with tool_server(script) as server:
        bench = await start(mcp=settings(server))
        assert (await bench.ask(tell(rpc("ping")))).status == 200
        assert (await bench.ask(tell(rpc("tools/list")))).status == 200
        assert [json.loads(seen.body)["method"] for seen in server.seen] == [
            "ping",
            "tools/list",
            "tools/list",
        ]
        server.seen.clear()
        server.script = sends(b"", then="reset")
        assert (await bench.ask(tell(call()))).status == 502
        assert (await bench.ask(tell(b"{", b""))).status == 502
        assert len(server.seen) == 2


async def test_keys_stay_between_the_client_and_the_gateway(start):
    tenants = [{"name": "alice", "key_hashes": [hash_key(ALICE)]}]
    async with tool_server(sends(answers(result()))) as server:
        with_key = settings(server, api_key_env="MCP_KEY")
        without = {"name": "open", "url": server.url}
        bench = await start(tenants=tenants, mcp=[*with_key, without], environ={"MCP_KEY": SERVER_KEY})
        refused = await bench.ask(tell(call()))
        assert refused.status == 401 and refused.json()["error"]["data"] == {"reason": "unauthenticated"}
        assert "id" in refused.json() and not server.seen
        key = b"Authorization: Bearer %s\r\n" % ALICE.encode()
        assert (await bench.ask(tell(call(), key))).status == 200
        assert (await bench.ask(tell(call(), key, b"/mcp/open"))).status == 200
        first, second = server.seen
        assert first.all(b"authorization") == [b"Bearer " + SERVER_KEY.encode()]
        assert second.all(b"authorization") == [] and ALICE.encode() not in second.head
        assert second.target == b"/"


async def test_without_keys_of_its_own_the_gateway_passes_the_client_s_on(start):
    async with tool_server(
        sends(answer(b"", status=b"401 Unauthorized", headers=b"WWW-Authenticate: x\r\n"))
    ) as server:
        bench = await start(mcp=settings(server))
        response = await bench.ask(tell(call(), b"Authorization: Bearer theirs\r\n"))
        assert response.status == 401 and response.get(b"www-authenticate") == b"x"
        assert server.seen[0].get(b"authorization") == b"Bearer theirs"


async def test_a_drain_ends_what_is_only_listened_to_and_waits_for_what_is_asked(start):
    go_on = asyncio.Event()

    async def script(exchange: Exchange) -> None:
        await exchange.send(STREAM)
        if exchange.request.first_line.startswith(b"GET"):
            await exchange.until_left()
        else:
            await go_on.wait()
            await exchange.send(chunk(event(result())) + chunk(b""))

    async with tool_server(script) as server:
        bench = await start(mcp=settings(server))
        listener, asker = await bench.send(get(PATH)), await bench.send(tell(call()))
        await eventually(lambda: passing(bench) == 2)
        draining = asyncio.create_task(bench.gateway.leaving.drain())
        heard = await listener.receive()
        assert heard.status == 200 and heard.is_whole and heard.body == b""
        go_on.set()
        assert event(result()) in (await asker.receive()).body
        await draining


TENANTS = [
    {"name": "person", "key_hashes": [hash_key("person-key")]},
    {"name": "batch", "key_hashes": [hash_key("batch-key")], "quota": {"service_class": "background"}},
]


class Tools:
    """A server that answers when it is told to, and knows how many calls it had at a time."""

    def __init__(self) -> None:
        self.begun: list[str] = []
        self.running = self.most = 0
        self._go_on = asyncio.Semaphore(0)

    async def script(self, exchange: Exchange) -> None:
        message = json.loads(exchange.request.body)
        if message["method"] != "tools/call":
            await exchange.send(answers(result(message.get("id"))))
            return
        self.begun.append(message["params"]["arguments"]["n"])
        self.running += 1
        self.most = max(self.most, self.running)
        await self._go_on.acquire()
        self.running -= 1
        await exchange.send(answers(result(message["id"])))

    def answer(self, count: int = 1) -> None:
        for _ in range(count):
            self._go_on.release()


class Callers:
    def __init__(self, bench) -> None:
        self.bench = bench
        self.person, self.batch = (Agent(bench, key, f"{key}-key", key) for key in ("person", "batch"))

    async def call(self, agent: Agent, n: str) -> Client:
        client = await self.bench.connect()
        before = self.waiting + self.running
        client.send(agent.tell(call(request_id=n, n=n)))
        await eventually(lambda: self.waiting + self.running > before)
        return client

    @property
    def waiting(self) -> int:
        return self.bench.gateway.serving.mcp.calls._counts.waiting["tools"]

    @property
    def running(self) -> int:
        return self.bench.gateway.serving.mcp.calls._counts.running["tools"]


@pytest.fixture
async def limited(start):
    """Begins with a server that gets one call at a time, or as many as is said."""
    tools = Tools()
    async with tool_server(tools.script) as server:

        async def begin(tenants=TENANTS, **limits) -> tuple[Callers, Tools]:
            tools_of = settings(server, **{"max_concurrent_calls": 1, **limits})
            return Callers(await start(mcp=tools_of, tenants=tenants)), tools

        yield begin


async def test_no_more_than_may_and_a_person_s_before_the_background_s(limited):
    callers, tools = await limited(max_concurrent_calls=2)
    order = [("batch", "b1"), ("batch", "b2"), ("batch", "b3"), ("person", "p1"), ("batch", "b4")]
    clients = [await callers.call(getattr(callers, who), n) for who, n in [*order, ("person", "p2")]]
    assert callers.waiting == 4 and callers.running == 2
    for number in range(6):
        await eventually(lambda: len(tools.begun) >= min(6, number + 2))  # noqa: B023 - awaited here
        tools.answer()
    for client in clients:
        assert (await client.receive()).status == 200
    assert tools.begun == ["b1", "b2", "p1", "p2", "b3", "b4"] and tools.most == 2
    assert (await counted(callers.bench, "turnpike_mcp_call_wait_seconds_count")) == {'server="tools"': 4.0}
    assert callers.waiting == callers.running == 0


async def test_an_agent_s_class_counts_where_its_session_is_known(limited):
    """The key says nothing of it; the session's first request did."""
    trusted = [{"name": "t", "key_hashes": [hash_key("t-key")], "permissions": ["scheduling"]}]
    callers, tools = await limited(tenants=trusted)
    background = Agent(callers.bench, "back", "t-key", "s-back", headers=b"x-turnpike-class: proactive\r\n")
    person = Agent(callers.bench, "front", "t-key", "s-front")
    await background.ask(c1f7a9x3='x_read {"n": "b1"}', c2f7a9x3='x_read {"n": "b2"}')
    await person.ask(c3f7a9x3='x_read {"n": "p1"}')
    clients = [await callers.call(background, n) for n in ("b1", "b2")]
    clients.append(await callers.call(person, "p1"))
    tools.answer(3)
    for client in clients:
        assert (await client.receive()).status == 200
    assert tools.begun == ["b1", "p1", "b2"]


async def test_other_messages_do_not_wait(limited):
    """A tool that asks its client something needs the answer."""
    callers, tools = await limited()
    client = await callers.call(callers.person, "p1")
    assert (await callers.bench.ask(callers.person.tell(rpc("ping", 5)))).status == 200
    tools.answer()
    assert (await client.receive()).status == 200


@pytest.mark.parametrize("how", ["leaves", "cancels"])
async def test_who_waits_no_more_is_never_sent(limited, how):
    callers, tools = await limited()
    first, second = await callers.call(callers.person, "p1"), await callers.call(callers.person, "p2")
    third = await callers.call(callers.person, "p3")
    if how == "leaves":
        second.close()
    else:
        cancel = rpc("notifications/cancelled", None, requestId="p2")
        await callers.bench.ask(callers.batch.tell(cancel))  # another tenant's, which has no such call
        assert callers.waiting == 2
        await callers.bench.ask(callers.person.tell(cancel))
        told = (await second.receive()).json()
        assert told["id"] == "p2" and "cancelled" in told["error"]["message"]
    await eventually(lambda: callers.waiting == 1)
    tools.answer(2)
    assert (await first.receive()).status == (await third.receive()).status == 200
    assert tools.begun == ["p1", "p3"]


async def test_one_that_is_cancelled_as_its_turn_comes_is_not_sent_either(limited):
    callers, tools = await limited()
    calls = callers.bench.gateway.serving.mcp.calls
    first, second = await callers.call(callers.person, "p1"), await callers.call(callers.person, "p2")
    [(waiting, _)] = calls._waits.values()
    running = next(each for each in calls._running.values() if each is not waiting)
    calls.over(running, Outcome.OK)
    assert waiting.place.may_run
    calls.over(waiting, Outcome.CANCELLED)
    assert (await second.receive()).status == 200
    tools.answer()
    assert (await first.receive()).status == 200 and tools.begun == ["p1"]


async def test_too_many_are_refused_and_so_is_who_waited_too_long(limited):
    callers, tools = await limited(max_waiting_calls=1, max_wait_s=0.3)
    first, second = await callers.call(callers.person, "p1"), await callers.call(callers.person, "p2")
    refused = await callers.bench.ask(callers.person.tell(call(request_id="p3", n="p3")))
    assert refused.status == 503 and refused.get(b"retry-after") == b"5"
    assert (refused.json()["id"], refused.json()["error"]["data"]["reason"]) == ("p3", "queue_full")
    late = await second.receive()
    assert late.status == 503 and late.json()["error"]["data"]["reason"] == "queue_timeout"
    tools.answer()
    assert (await first.receive()).status == 200 and tools.begun == ["p1"]
    found = await counted(callers.bench, "turnpike_mcp_calls_total")
    assert found == {'outcome="refused",server="tools"': 2.0, 'outcome="ok",server="tools"': 1.0}


async def test_what_cannot_be_read_counts_as_a_call(limited):
    callers, tools = await limited()
    first = await callers.call(callers.person, "p1")
    batch = await callers.bench.send(callers.person.tell(b"[" + call(n="x") + b"]"))
    await eventually(lambda: callers.waiting == 1)
    batch.close()
    tools.answer()
    assert (await first.receive()).status == 200
