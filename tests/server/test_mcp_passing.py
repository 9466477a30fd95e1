"""MCP traffic passes byte for byte, as it comes, and breaks off where it breaks off."""

import asyncio
import json

import pytest

from gateway.server.tenants import hash_key
from tests.server.bench import Exchange, answer, chunk, eventually, get, hangs, pauses, sends
from tests.server.mcp_bench import (
    PATH,
    STREAM,
    answers,
    call,
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
