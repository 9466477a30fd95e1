"""Calls that pass are those that models ask for: what they took is known exactly, of the right session."""

import asyncio
import time

import pytest

from gateway.server.auth.client_keys import hash_key
from gateway.server.mcp import calls as mcp_calls
from tests.server.bench import Bench, Exchange, chunk, eventually, get, pauses, sends
from tests.server.mcp_bench import (
    PATH,
    STREAM,
    Agent,
    answers,
    call,
    counted,
    event,
    result,
    rpc,
    settings,
    tool_server,
)

TENANTS = [{"name": name, "key_hashes": [hash_key(f"{name}-key")]} for name in ("alice", "bob")]


def answers_after(seconds: float, **more):
    async def script(exchange: Exchange) -> None:
        await asyncio.sleep(seconds)
        await exchange.send(answers(result(**more)))

    return script


async def outcomes(bench: Bench) -> dict[str, float]:
    found = await counted(bench, "turnpike_mcp_calls_total")
    return {labels.partition('outcome="')[2].partition('"')[0]: count for labels, count in found.items()}


async def timed(bench: Bench) -> tuple[int, float]:
    """How many calls came to a result, and the seconds that they took together."""
    name = "turnpike_mcp_call_duration_seconds"
    count, total = [sum((await counted(bench, f"{name}_{of}")).values()) for of in ("count", "sum")]
    return int(count), total


async def joined(bench: Bench) -> int:
    return int(sum((await counted(bench, "turnpike_mcp_calls_joined_total")).values()))


async def test_a_call_is_timed_and_known_to_be_what_a_model_asked_for(start):
    async with tool_server(answers_after(0.1, text="x" * 1000)) as server:
        bench = await start(mcp=settings(server))
        agent = Agent(bench)
        await agent.ask(c1f7a9x3='mcp__t__read {"path": "a", "n": 1.0}')
        before_s = time.monotonic()
        assert (await bench.ask(agent.tell(call("read", n=1, path="a")))).status == 200
        count, took_s = await timed(bench)
        assert count == 1 and 0.1 <= took_s <= time.monotonic() - before_s
        assert await outcomes(bench) == {"ok": 1.0}
        assert await counted(bench, "turnpike_mcp_calls_running") == {'server="tools"': 0.0}
        assert await joined(bench) == 1


@pytest.mark.parametrize(
    ("reply", "outcome"),
    [
        (answers(result(isError=True)), "tool_error"),
        (answers(b'{"jsonrpc":"2.0","id":1,"error":{"code":-32602,"message":"no"}}'), "error"),
        (b"HTTP/1.1 400 Bad Request\r\nContent-Length: 2\r\n\r\nno", "error"),
    ],
)
async def test_a_failure_is_told_as_one(start, reply, outcome):
    async with tool_server(sends(reply)) as server:
        bench = await start(mcp=settings(server))
        agent = Agent(bench)
        await agent.ask(c1f7a9x3="read {}")
        await bench.ask(agent.tell(call("read")))
        assert await outcomes(bench) == {outcome: 1.0}


async def test_a_result_in_a_stream_ends_the_call_when_it_comes(start):
    async def script(exchange: Exchange) -> None:
        await exchange.send(STREAM + chunk(event(rpc("notifications/message", None))))
        await exchange.send(chunk(event(result())))
        await asyncio.sleep(0.5)
        await exchange.send(chunk(b""))

    async with tool_server(script) as server:
        bench = await start(mcp=settings(server))
        agent = Agent(bench)
        await agent.ask(c1f7a9x3="read {}")
        began_s = time.monotonic()
        await bench.ask(agent.tell(call("read")))
        assert (await timed(bench))[1] + 0.3 < time.monotonic() - began_s


async def test_parallel_calls_are_told_apart(start):
    has_begun, may_end = asyncio.Event(), asyncio.Event()

    async def script(exchange: Exchange) -> None:
        is_slow = b"slow" in exchange.request.body
        if is_slow:
            has_begun.set()
            await may_end.wait()
        await exchange.send(answers(result(1 if is_slow else 2)))

    async with tool_server(script) as server:
        bench = await start(mcp=settings(server))
        agent = Agent(bench)
        await agent.ask(c1f7a9x3='read {"p": "slow"}', c2f7a9x3='read {"p": "fast"}', c3f7a9x3="bash {}")
        slow, fast = call("read", 1, p="slow"), call("read", 2, p="fast")
        async with asyncio.TaskGroup() as calls:
            calls.create_task(bench.ask(agent.tell(slow)))
            await has_begun.wait()
            await asyncio.sleep(0.2)
            await bench.ask(agent.tell(fast))
            await asyncio.sleep(0.2)
            may_end.set()
        # The slow one began 0.2 s before the fast one and ended 0.2 s after it, however slow the machine.
        count, took_s = await timed(bench)
        assert count == await joined(bench) == 2 and took_s >= 0.4


async def test_a_call_is_its_own_tenant_s_and_nobody_s_if_two_agents_may_mean_it(start):
    async with tool_server(sends(answers(result()))) as server:
        bench = await start(mcp=settings(server), tenants=TENANTS)
        alice, bob = Agent(bench, "a", "alice-key"), Agent(bench, "b", "bob-key")
        await alice.ask(call_0="read {}")
        await bench.ask(bob.tell(call("read")))
        assert await joined(bench) == 0
        other = Agent(bench, "another agent of hers", "alice-key", "s2")
        await other.ask(call_0="read {}", call_1='read {"p": 1}')
        await bench.ask(alice.tell(call("read")))
        assert await joined(bench) == 0
        await bench.ask(other.tell(call("read", p=1)))
        assert await joined(bench) == 1
        await bench.ask(other.tell(call("read")))  # this MCP session is known to be the other's
        assert await joined(bench) == 2
        await bench.ask(alice.tell(call("read")))  # only hers is left
        assert await joined(bench) == 3


async def test_calls_that_no_model_asked_for_are_counted_and_tell_nothing(start):
    async with tool_server(sends(answers(result()))) as server:
        bench = await start(mcp=settings(server))
        agent = Agent(bench)
        await bench.ask(agent.tell(call("read")))
        await bench.ask(agent.tell(b"[1, 2"))
        await bench.ask(agent.tell(rpc("tools/list")))
        assert await joined(bench) == 0 and await outcomes(bench) == {"ok": 1.0, "lost": 1.0}


async def test_a_call_whose_stream_breaks_off_ends_where_it_is_resumed(start):
    async def script(exchange: Exchange) -> None:
        if exchange.request.first_line.startswith(b"GET"):
            await asyncio.sleep(0.2)
            await exchange.send(STREAM + chunk(event(result(9), "e2")) + chunk(b""))
        else:
            await exchange.send(STREAM + chunk(event(b"", "e1")) + chunk(b""))

    async with tool_server(script) as server:
        bench = await start(mcp=settings(server))
        agent = Agent(bench)
        await agent.ask(c1f7a9x3="read {}")
        await bench.ask(agent.tell(call("read", 9)))
        assert (await timed(bench))[0] == 0 and await outcomes(bench) == {}
        assert await counted(bench, "turnpike_mcp_calls_running") == {'server="tools"': 1.0}
        await bench.ask(get(PATH, b"Mcp-Session-Id: s1\r\nLast-Event-ID: e1\r\n"))
        assert (await timed(bench))[1] >= 0.2 and await outcomes(bench) == {"ok": 1.0}


@pytest.mark.parametrize("event_id", ["", "e1"], ids=["at once", "if it is not resumed"])
async def test_a_call_whose_result_nobody_saw_is_lost(start, monkeypatch, event_id):
    monkeypatch.setattr(mcp_calls, "_RESUMED_WITHIN_S", 0.1)
    async with tool_server(sends(STREAM + chunk(event(b"{}", event_id)), then="hang")) as server:
        bench = await start(mcp=settings(server))
        agent = Agent(bench)
        await agent.ask(c1f7a9x3="read {}")
        client = await bench.send(agent.tell(call("read")))
        await client.reader.readuntil(b"{}")
        client.close()
        await eventually(lambda: bench.gateway.serving.mcp.calls._counts.calls["tools", "lost"])
        assert (await timed(bench))[0] == 0 and not bench.gateway.serving.mcp.calls._running


async def test_a_call_that_its_client_cancels_is_over(start):
    async def script(exchange: Exchange) -> None:
        if b"cancelled" in exchange.request.body:
            await exchange.send(b"HTTP/1.1 202 Accepted\r\nContent-Length: 0\r\n\r\n")
        else:
            await exchange.send(STREAM)
            await exchange.until_left()

    async with tool_server(script) as server:
        bench = await start(mcp=settings(server))
        agent = Agent(bench)
        client = await bench.send(agent.tell(call("read", "c")))
        await client.reader.readuntil(b"\r\n\r\n")
        other = Agent(bench, mcp_session="s2")
        cancel = rpc("notifications/cancelled", None, requestId="c")
        await bench.ask(other.tell(cancel))
        assert await outcomes(bench) == {}
        assert (await bench.ask(agent.tell(cancel))).status == 202
        assert await outcomes(bench) == {"cancelled": 1.0} and len(server.seen) == 3
        client.close()


async def test_a_server_that_is_not_there_is_told_apart(start):
    async with tool_server() as server:
        bench = await start(mcp=settings(server))
        await server.close()
        assert (await bench.ask(Agent(bench).tell(call("read")))).status == 502
        assert await outcomes(bench) == {"unreached": 1.0}


async def test_a_call_that_is_over_before_the_answer_that_asks_for_it(start):
    go_on = asyncio.Event()
    call_ = b'{"index":0,"id":"c1f7a9x3","type":"function","function":{"name":"read","arguments":"{}"}}'
    delta = b'data: {"choices":[{"index":0,"delta":{"tool_calls":[%s]}}]}\n\n' % call_
    end = b'data: {"choices":[{"index":0,"delta":{},"finish_reason":"tool_calls"}]}\n\ndata: [DONE]\n\n'
    async with tool_server(sends(answers(result()))) as server:
        bench = await start(mcp=settings(server))
        agent = Agent(bench)
        bench.backend.script = pauses(STREAM + chunk(delta), go_on, chunk(end) + chunk(b""))
        client = await bench.send(agent.request(stream=True))
        await client.reader.readuntil(b"c1f7a9x3")
        await bench.ask(agent.tell(call("read")))
        assert await joined(bench) == 1
        go_on.set()
        await client.reader.readuntil(b"[DONE]")
        asked = {"id": "c1f7a9x3", "type": "function", "function": {"name": "read", "arguments": "{}"}}
        agent.messages.append({"role": "assistant", "content": None, "tool_calls": [asked]})
        agent.results("c1f7a9x3")
        await agent.ask()
        assert await outcomes(bench) == {"ok": 1.0}
