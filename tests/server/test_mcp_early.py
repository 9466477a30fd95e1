"""Calls that the gateway makes early: who gets them, and what is never called.

The server counts what it is asked for. The model's answer goes on until the test lets it end.
"""

import asyncio
import contextlib
import json
from collections import Counter
from collections.abc import AsyncIterator
from typing import Any

import pytest

from tests.server.bench import Bench, Exchange, Message, chunk, eventually, get
from tests.server.mcp_bench import (
    PATH,
    STREAM,
    Agent,
    answers,
    call,
    counted,
    early_calls,
    event,
    result,
    rpc,
    settings,
    timed,
    tool_server,
)

EARLY = ("read", "seek", "other")
CALLED = {"claimed": 1.0}


class Tools:
    """The MCP server: two tools that read and some that may not."""

    def __init__(self) -> None:
        self.calls: list[dict[str, Any]] = []
        """Params of the calls, with the id as `id`."""
        self.cancelled: list[Any] = []
        self.heads: list[Message] = []
        self.streams = False
        self.may_answer = asyncio.Event()
        self.may_answer.set()
        self.reply: bytes | None = None
        """What every call is answered with, if not with its arguments."""
        self.left = 0
        self.reads = ["read", "seek"]

    async def script(self, exchange: Exchange) -> None:
        request = exchange.request
        if not request.body:
            await exchange.send(b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n")
            return
        message = json.loads(request.body)
        match message["method"]:
            case "tools/list":
                listed = [
                    {"name": name, "annotations": {"readOnlyHint": True}}
                    if name in self.reads
                    else {"name": name}
                    for name in ("read", "seek", "write", "other")
                ]
                body = {"jsonrpc": "2.0", "id": message["id"], "result": {"tools": listed}}
                await exchange.send(answers(json.dumps(body).encode()))
            case "notifications/cancelled":
                self.cancelled.append(message["params"]["requestId"])
                await exchange.send(b"HTTP/1.1 202 Accepted\r\nContent-Length: 0\r\n\r\n")
            case "tools/call":
                self.calls.append({**message["params"], "id": message["id"]})
                self.heads.append(request)
                await self._answer(exchange, message)
            case _:
                raise AssertionError(message)

    async def _answer(self, exchange: Exchange, message: dict[str, Any]) -> None:
        params = message["params"]
        if self.streams:
            await exchange.send(STREAM + chunk(event(b"", "e1")))
            if token := params.get("_meta", {}).get("progressToken"):
                progress = rpc("notifications/progress", None, progressToken=token, progress=1)
                await exchange.send(chunk(event(progress, "e2")))
            await exchange.send(chunk(event(rpc("elicitation/create", "their-id"))))
        waiting = asyncio.ensure_future(self.may_answer.wait())
        left = asyncio.ensure_future(exchange.reader.read(1))
        await asyncio.wait((waiting, left), return_when=asyncio.FIRST_COMPLETED)
        if left.done():
            waiting.cancel()
            self.left += 1
            exchange.close()
            return
        left.cancel()
        await asyncio.gather(left, return_exceptions=True)
        said = result(message["id"], f"{params['name']} {json.dumps(params['arguments'])}")
        if self.reply is not None:
            await exchange.send(self.reply)
        elif self.streams:
            await exchange.send(chunk(event(said, "e3")) + chunk(b""))
        else:
            await exchange.send(answers(said))

    def counts(self) -> Counter[str]:
        return Counter(f"{each['name']} {json.dumps(each['arguments'])}" for each in self.calls)


@pytest.fixture
def tools() -> Tools:
    return Tools()


class Model:
    """A streamed answer that asks for calls and goes on."""

    def __init__(self, bench: Bench, agent: Agent) -> None:
        self._bench, self._agent = bench, agent
        self._may_end = asyncio.Event()
        self._asked: list[dict[str, Any]] = []
        self.dies = False

    async def asks(self, **calls: str) -> None:
        """As `Agent.ask`, but the answer does not end; returns when the client has the calls."""
        self._asked = [
            {
                "id": each,
                "type": "function",
                "function": dict(zip(("name", "arguments"), said.split(" ", 1), strict=True)),
            }
            for each, said in calls.items()
        ]
        self._bench.backend.script = self._script
        self.client = await self._bench.connect()
        self.client.send(self._agent.request(stream=True))
        await self.client.reader.readuntil(next(reversed(calls)).encode())
        await asyncio.sleep(0.05)

    async def ends(self) -> None:
        self._may_end.set()
        if not self.dies:
            await self.client.reader.readuntil(b"[DONE]")
        message = {"role": "assistant", "content": None, "tool_calls": self._asked}
        self._agent.messages.append(message)
        await asyncio.sleep(0.05)

    def is_over(self) -> None:
        """Nobody hears the rest of the answer."""
        self._may_end.set()

    async def _script(self, exchange: Exchange) -> None:
        await exchange.send(STREAM.replace(b"Mcp-Session-Id: s1\r\n", b""))
        for number, asked in enumerate(self._asked):
            delta = {"choices": [{"index": 0, "delta": {"tool_calls": [{"index": number, **asked}]}}]}
            await exchange.send(chunk(b"data: " + json.dumps(delta).encode() + b"\n\n"))
        await self._may_end.wait()
        if self.dies:
            exchange.reset()
            return
        end = {"choices": [{"index": 0, "delta": {}, "finish_reason": "tool_calls"}]}
        await exchange.send(
            chunk(b"data: " + json.dumps(end).encode() + b"\n\ndata: [DONE]\n\n") + chunk(b"")
        )


class Scene:
    """An agent whose MCP session is known: it listed its tools, and made a call that its model asked for."""

    def __init__(self, bench: Bench, tools: Tools, **agent: Any) -> None:
        self.bench, self.tools = bench, tools
        self.agent = Agent(bench, **agent)

    async def begin(self, *, meta: Any = None) -> "Scene":
        assert (await self.bench.ask(self.agent.tell(rpc("tools/list", 0)))).status == 200
        await self.agent.ask(c0f7a9x3='mcp__t__read {"n": 0}')
        await self.bench.ask(self.agent.tell(call("read", "own-0", meta, n=0)))
        self.agent.results("c0f7a9x3")
        self.tools.calls.clear()
        self.tools.heads.clear()
        return self

    async def asks(self, **calls: str) -> Model:
        """An answer that asks for them and goes on."""
        model = Model(self.bench, self.agent)
        await model.asks(**calls)
        return model

    async def own(
        self, tool: str = "read", request_id: Any = "own", meta: Any = None, **arguments: Any
    ) -> Message:
        return await self.bench.ask(self.agent.tell(call(tool, request_id, meta, **arguments)))

    async def outcomes(self) -> dict[str, float]:
        found = await counted(self.bench, "turnpike_mcp_early_total")
        return {labels.split('outcome="')[1].split('"')[0]: count for labels, count in found.items()}


async def staged(start: Any, tools: Tools, server: Any, **more: Any) -> Scene:
    bench = await start(mcp=settings(server, early_tools=EARLY, **{"early_keep_s": 2.0, **more}))
    return await Scene(bench, tools).begin()


@contextlib.asynccontextmanager
async def scene(start: Any, tools: Tools, **more: Any) -> AsyncIterator[Scene]:
    async with tool_server(tools.script) as server:
        yield await staged(start, tools, server, **more)


def text_of(message: dict[str, Any]) -> str:
    text: str = message["result"]["content"][0]["text"]
    return text


def messages(response: Message) -> list[dict[str, Any]]:
    """Those in an event stream."""
    lines = [
        line.removeprefix(b"data: ") for line in response.body.split(b"\n") if line.startswith(b"data: ")
    ]
    return [json.loads(line) for line in lines if line]


async def test_a_call_begins_while_the_answer_goes_on_and_its_agent_gets_the_result(start, tools):
    async with scene(start, tools) as it:
        model = await it.asks(c1f7a9x3='mcp__t__read {"n":  1.0}')
        assert tools.counts() == {'read {"n": 1.0}': 1}, "before the answer's end"
        head = tools.heads[0]
        assert head.get(b"mcp-session-id") == b"s1" and head.get(b"accept-encoding") == b"identity"
        assert "_meta" not in tools.calls[0]
        await model.ends()
        before = len(timed(it.bench))
        response = await it.own(n=1)
        assert response.status == 200 and response.get(b"mcp-session-id") == b"s1"
        assert response.json()["id"] == "own" and text_of(response.json()) == 'read {"n": 1.0}'
        assert len(tools.calls) == 1 and await it.outcomes() == CALLED
        assert len(timed(it.bench)) == before + 1
        found = await counted(it.bench, "turnpike_mcp_calls_total")
        assert found == {'outcome="ok",server="tools"': 2.0}


@pytest.mark.parametrize("streams", [False, True], ids=["json", "events"])
async def test_a_result_that_comes_later_is_passed_on_as_it_comes(start, tools, streams):
    tools.streams = streams
    async with scene(start, tools) as it:
        tools.may_answer.clear()
        model = await it.asks(c1f7a9x3='mcp__t__read {"n": 1}')
        await model.ends()
        client = await it.bench.send(it.agent.tell(call("read", 77, n=1)))
        if streams:  # what the server asks comes before its result
            assert b"elicitation/create" in await client.reader.readuntil(b'"their-id"}')
        await asyncio.sleep(0.05)
        tools.may_answer.set()
        if streams:
            rest = await client.reader.readuntil(b"0\r\n\r\n")
            assert b'"id":77' in rest and b"own" not in rest and b"id: e" not in rest
        else:
            assert (await client.receive()).json()["id"] == 77
        assert len(tools.calls) == 1 and await it.outcomes() == CALLED
        # The connection serves on.
        assert (await client.ask(it.agent.tell(rpc("tools/list", 5)))).status == 200


async def test_progress_goes_to_the_token_of_who_asked(start, tools):
    tools.streams = True
    async with tool_server(tools.script) as server:
        bench = await start(mcp=settings(server, early_tools=EARLY))
        it = await Scene(bench, tools).begin(meta={"progressToken": 3, "claudecode/toolUseId": "x"})
        for number, meta in enumerate(({"progressToken": "mine"}, None), 1):
            model = await it.asks(**{f"c{number}f7a9x3": f'mcp__t__read {{"n": {number}}}'})
            call_id = {"claudecode/toolUseId": "c1f7a9x3"} if meta else {}
            assert tools.calls[-1]["_meta"] == {"progressToken": tools.calls[-1]["id"], **call_id}
            await model.ends()
            told = messages(await it.own(meta=meta, n=number))
            progress = [
                each["params"]["progressToken"]
                for each in told
                if each.get("method", "").endswith("progress")
            ]
            assert progress == (["mine"] if meta else [])
            assert told[-1]["id"] == "own" and told[-2]["id"] == "their-id"
            it.agent.results(f"c{number}f7a9x3")
        assert len(tools.calls) == 2


async def test_equal_calls_are_made_as_often_as_they_are_asked_for(start, tools):
    async with scene(start, tools) as it:
        tools.may_answer.clear()
        model = await it.asks(**{f"c{n}f7a9x3": 'mcp__t__read {"n": 1}' for n in range(1, 4)})
        assert tools.counts() == {'read {"n": 1}': 3}
        own = [asyncio.ensure_future(it.own(request_id=n, n=1)) for n in range(3)]
        await asyncio.sleep(0.05)
        tools.may_answer.set()
        assert [(await each).json()["id"] for each in own] == [0, 1, 2]
        assert len(tools.calls) == 3
        await model.ends()
        assert (await it.own(n=1)).status == 200 and len(tools.calls) == 4, "a fourth is the agent's own"
        assert await it.outcomes() == {"claimed": 3.0}


NEVER = {
    "a tool that writes": 'mcp__t__write {"n": 1}',
    "one that the operator allows and its server does not call read-only": 'mcp__t__other {"n": 1}',
    "another server's": 'mcp__else__read {"n": 1}',
    "the agent's own": 'read {"n": 1}',
    "one that is not there": 'mcp__t__more {"n": 1}',
    "arguments that are no object": "mcp__t__read [1]",
}


@pytest.mark.parametrize("asked", NEVER.values(), ids=NEVER.keys())
async def test_what_is_never_called_early(start, tools, asked):
    async with scene(start, tools) as it:
        model = await it.asks(c1f7a9x3=asked)
        assert not tools.calls
        await model.ends()
        assert not tools.calls and await it.outcomes() == {}


async def test_what_the_operator_does_not_name_is_not_called_early(start, tools):
    async with tool_server(tools.script) as server:
        bench = await start(mcp=settings(server, early_tools=["seek"]))
        it = await Scene(bench, tools).begin()
        model = await it.asks(c1f7a9x3='mcp__t__read {"n": 1}')
        assert not tools.calls
        await model.ends()


async def test_behind_a_call_that_may_write_nothing_is_called_early(start, tools):
    """The agent runs its calls in their order: this one may be to read what that one wrote."""
    async with scene(start, tools, early_keep_s=0.2) as it:
        for number, first in enumerate(
            ('bash {"x": 1}', 'mcp__t__write {"n": 1}', f'write {{"t": "{"x" * 70_000}"}}')
        ):
            reads = {f"r{number}f7a9x3": 'mcp__t__read {"n": 1}', f"s{number}f7a9x3": 'mcp__t__seek {"n": 2}'}
            model = await it.asks(**{f"w{number}f7a9x3": first, **reads})
            assert not tools.calls, first
            await model.ends()
        model = await it.asks(
            a1f7a9x3='mcp__t__read {"n": 1}',
            a2f7a9x3='mcp__t__write {"n": 1}',
            a3f7a9x3='mcp__t__read {"n": 2}',
        )
        assert tools.counts() == {'read {"n": 1}': 1}
        await model.ends()


async def test_nothing_is_called_before_the_mcp_session_is_known_to_be_the_agent_s(start, tools):
    async with scene(start, tools) as it:
        stranger = Scene(it.bench, tools, prompt="another agent", mcp_session="s2")
        await stranger.bench.ask(stranger.agent.tell(rpc("tools/list", 0)))
        model = await stranger.asks(c1f7a9x3='mcp__t__read {"n": 1}')
        assert not tools.calls
        await model.ends()
        # Nor does anybody get what was called for another.
        model = await it.asks(d1f7a9x3='mcp__t__read {"n": 5}')
        await model.ends()
        await stranger.own(n=5)
        assert [head.get(b"mcp-session-id") for head in tools.heads] == [b"s1", b"s2"]
        await it.own(n=5)
        assert len(tools.calls) == 2


async def test_hints_hold_until_the_server_says_that_its_tools_changed(start, tools):

    async def script(exchange: Exchange) -> None:
        if exchange.request.first_line.startswith(b"GET"):
            await exchange.send(
                STREAM + chunk(event(rpc("notifications/tools/list_changed", None))) + chunk(b"")
            )
        else:
            await tools.script(exchange)

    async with tool_server(script) as server:
        it = await staged(start, tools, server, early_keep_s=0.2)
        await it.bench.ask(get(PATH, b"Mcp-Session-Id: s1\r\n"))
        model = await it.asks(c1f7a9x3='mcp__t__read {"n": 1}')
        assert not tools.calls
        await model.ends()
        tools.reads = ["seek"]
        await it.bench.ask(it.agent.tell(rpc("tools/list", 1)))
        model = await it.asks(c2f7a9x3='mcp__t__seek {"n": 1}', c3f7a9x3='mcp__t__read {"n": 1}')
        assert tools.counts() == {'seek {"n": 1}': 1}
        await model.ends()


@pytest.mark.parametrize("how", ["its backend dies", "its client leaves"])
async def test_if_the_answer_breaks_off_the_call_is_cancelled(start, tools, how):
    async with scene(start, tools) as it:
        tools.may_answer.clear()
        model = await it.asks(c1f7a9x3='mcp__t__read {"n": 1}')
        model.dies = how == "its backend dies"
        [made] = tools.calls
        if model.dies:
            await model.ends()
        else:
            model.client.close()
        await eventually(lambda: tools.cancelled == [made["id"]] and tools.left == 1)
        assert await it.outcomes() == {"cancelled": 1.0}
        model.is_over()
        tools.may_answer.set()
        assert (await it.own(n=1)).status == 200 and len(tools.calls) == 2, (
            "the agent may call it all the same"
        )


async def test_what_nobody_wants_is_dropped_and_after_some_times_not_done_again(start, tools):
    async with scene(start, tools, early_keep_s=0.1) as it:
        for number in range(5):
            model = await it.asks(**{f"c{number}f7a9x3": f'mcp__t__read {{"n": {number}}}'})
            await model.ends()
            await eventually(lambda: not early_calls(it.bench))
        assert len(tools.calls) == 3 and await it.outcomes() == {"unclaimed": 3.0}
        assert not tools.cancelled, "it was over"
        response = await it.own(n=0)
        assert response.status == 200 and len(tools.calls) == 4, "too late: the agent's own call goes its way"
        model = await it.asks(d1f7a9x3='mcp__t__seek {"n": 1}')
        assert len(tools.calls) == 5, "another tool is another matter"
        await model.ends()


async def test_one_that_still_runs_when_nobody_wants_it_is_cancelled(start, tools):
    async with scene(start, tools, early_keep_s=0.1) as it:
        tools.may_answer.clear()
        model = await it.asks(c1f7a9x3='mcp__t__read {"n": 1}')
        await model.ends()
        await eventually(lambda: tools.cancelled == [tools.calls[0]["id"]])
        found = await counted(it.bench, "turnpike_mcp_calls_running")
        assert found == {'server="tools"': 0.0}


async def test_too_large_a_result_is_not_held(start, tools):
    async with scene(start, tools, early_result_bytes=1000) as it:
        model = await it.asks(c1f7a9x3='mcp__t__read {"n": "%s"}' % ("x" * 2000))
        await eventually(lambda: not early_calls(it.bench))
        assert await it.outcomes() == {"oversized": 1.0}
        assert text_of((await it.own(n="x" * 2000)).json()).endswith('xx"}') and len(tools.calls) == 2
        await model.ends()


FAILURES = {
    "the server refuses": (b"HTTP/1.1 400 Bad Request\r\nContent-Length: 0\r\n\r\n", 2),
    "the server fails": (b"HTTP/1.1 500 Oops\r\nContent-Length: 0\r\n\r\n", 2),
    "it is not MCP": (b"HTTP/1.1 200 OK\r\nContent-Type: text/html\r\nContent-Length: 0\r\n\r\n", 2),
    "no result": (STREAM + chunk(b""), 2),
}


@pytest.mark.parametrize(("reply", "calls"), FAILURES.values(), ids=FAILURES.keys())
async def test_a_failure_that_nobody_saw_is_nobody_s(start, tools, reply, calls):
    async with scene(start, tools) as it:
        tools.reply = reply
        model = await it.asks(c1f7a9x3='mcp__t__read {"n": 1}')
        await eventually(lambda: not early_calls(it.bench))
        tools.reply = None
        assert (await it.own(n=1)).status == 200 and len(tools.calls) == calls
        assert await it.outcomes() == {"failed": 1.0}
        await model.ends()


@pytest.mark.parametrize("streams", [False, True], ids=["json", "events"])
async def test_a_failure_of_a_claimed_call_is_its_client_s_and_it_is_not_made_again(start, tools, streams):
    tools.streams = streams
    async with tool_server(tools.script) as server:
        it = await staged(start, tools, server)
        tools.may_answer.clear()
        model = await it.asks(c1f7a9x3='mcp__t__read {"n": 1}')
        client = await it.bench.send(it.agent.tell(call("read", 77, n=1)))
        await asyncio.sleep(0.1)
        await server.close()
        if streams:
            assert (await client.rest())[1] == "reset"
        else:
            told = await client.receive()
            assert told.status == 502 and told.json()["id"] == 77
        assert len(tools.calls) == 1 and await it.outcomes() == {"failed": 1.0}
        await model.ends()


async def test_a_server_that_refuses_a_claimed_call_gets_the_client_s_own(start, tools):
    async with scene(start, tools) as it:
        tools.may_answer.clear()
        tools.reply = b"HTTP/1.1 401 Unauthorized\r\nContent-Length: 0\r\n\r\n"
        model = await it.asks(c1f7a9x3='mcp__t__read {"n": 1}')
        own = asyncio.ensure_future(it.own(n=1))
        await asyncio.sleep(0.1)
        tools.may_answer.set()
        await eventually(lambda: len(tools.calls) == 2)
        assert (await own).status == 401 and await it.outcomes() == {"failed": 1.0}
        await model.ends()


async def test_a_client_that_cancels_or_leaves_ends_the_call_that_it_was_given(start, tools):
    tools.streams = True
    async with scene(start, tools) as it:
        tools.may_answer.clear()
        model = await it.asks(c1f7a9x3='mcp__t__read {"n": 1}', c2f7a9x3='mcp__t__read {"n": 2}')
        clients = []
        for number in (1, 2):
            client = await it.bench.send(it.agent.tell(call("read", f"own-{number}", n=number)))
            await client.reader.readuntil(b"their-id")
            clients.append(client)
        await it.bench.ask(it.agent.tell(rpc("notifications/cancelled", None, requestId="own-1", reason="x")))
        assert tools.cancelled == [tools.calls[0]["id"]]
        for client in clients:
            client.close()
        await eventually(lambda: tools.left == 2)
        found = await counted(it.bench, "turnpike_mcp_calls_total")
        assert found['outcome="cancelled",server="tools"'] == found['outcome="lost",server="tools"'] == 1.0
        await model.ends()


async def test_a_client_that_leaves_with_the_result_in_hand_was_given_it(start, tools):
    """Some close a stream when they have what they came for."""

    async def script(exchange: Exchange) -> None:
        if b"tools/call" in exchange.request.body and b'"turnpike-' in exchange.request.body:
            made = json.loads(exchange.request.body)
            await exchange.send(STREAM + chunk(event(result(made["id"]))))
            await exchange.until_left()
        else:
            await tools.script(exchange)

    async with tool_server(script) as server:
        it = await staged(start, tools, server)
        model = await it.asks(c1f7a9x3='mcp__t__read {"n": 1}')
        await model.ends()
        before = len(timed(it.bench))
        client = await it.bench.send(it.agent.tell(call("read", 77, n=1)))
        await client.reader.readuntil(b'"done"')
        client.close()
        await eventually(lambda: len(timed(it.bench)) == before + 1)
        assert await it.outcomes() == CALLED and not tools.calls


@pytest.mark.parametrize(
    "more",
    [{"meta": {"x": 1}}, {"params": {"task": {"ttl": 1}}}, {"arguments": {"n": 2}}, {"tool": "seek"}],
    ids=["other metadata", "a task", "other arguments", "another tool"],
)
async def test_what_is_not_the_same_call_is_the_agent_s_own(start, tools, more):
    async with scene(start, tools, early_keep_s=0.2) as it:
        model = await it.asks(c1f7a9x3='mcp__t__read {"n": 1}')
        meta = {"_meta": more["meta"]} if "meta" in more else {}
        params = {"name": more.get("tool", "read"), "arguments": more.get("arguments", {"n": 1})}
        await it.bench.ask(
            it.agent.tell(rpc("tools/call", "own", **params, **meta, **more.get("params", {})))
        )
        assert [each["id"] for each in tools.calls][1:] == ["own"]
        await model.ends()


async def test_an_early_call_takes_one_of_the_server_s_places_and_waits_for_none(start, tools):
    async with scene(start, tools, max_concurrent_calls=1) as it:
        tools.may_answer.clear()
        model = await it.asks(c1f7a9x3='mcp__t__read {"n": 1}', c2f7a9x3='mcp__t__read {"n": 2}')
        assert len(tools.calls) == 1 and await it.outcomes() == {"no_room": 1.0}
        own = [asyncio.ensure_future(it.own(request_id=n, n=n)) for n in (2, 1)]
        await asyncio.sleep(0.1)
        assert len(tools.calls) == 1
        tools.may_answer.set()
        assert [(await each).status for each in own] == [200, 200] and len(tools.calls) == 2
        await model.ends()


async def test_the_end_of_the_mcp_session_ends_its_early_calls(start, tools):
    async with scene(start, tools) as it:
        tools.may_answer.clear()
        model = await it.asks(c1f7a9x3='mcp__t__read {"n": 1}')
        deleted = await it.bench.ask(b"DELETE %s HTTP/1.1\r\nHost: gw\r\nMcp-Session-Id: s1\r\n\r\n" % PATH)
        assert deleted.status == 200
        await eventually(lambda: tools.left == 1)
        await model.ends()
        model = await it.asks(c2f7a9x3='mcp__t__read {"n": 2}')
        assert len(tools.calls) == 1
        await model.ends()


async def test_a_gateway_that_stops_leaves_nothing_behind(start, tools):
    async with scene(start, tools) as it:
        tools.may_answer.clear()
        model = await it.asks(c1f7a9x3='mcp__t__read {"n": 1}')
        await model.ends()
        await it.bench.gateway.stop()
        await eventually(lambda: tools.left == 1)


async def test_a_bug_of_ours_costs_neither_the_answer_nor_the_call(start, tools, monkeypatch):
    async with scene(start, tools) as it:
        it.bench.may_log_errors = True

        def fails(*_: Any, **__: Any) -> Any:
            raise AssertionError("a bug")

        for broken in ("gateway.server.mcp_calls.arguments_key", "gateway.server.mcp_proxy.AnswerWatch.feed"):
            monkeypatch.setattr(broken, fails)
        model = await it.asks(c1f7a9x3='mcp__t__read {"n": 1}')
        await model.ends()
        monkeypatch.undo()
        monkeypatch.setattr("gateway.server.mcp_proxy.AnswerWatch.feed", fails)
        assert text_of((await it.own(n=1)).json()) == 'read {"n": 1}' and len(tools.calls) == 1
        client = await it.bench.connect()
        for number in (2, 3):
            assert (await client.ask(it.agent.tell(call("read", number, n=number)))).status == 200
