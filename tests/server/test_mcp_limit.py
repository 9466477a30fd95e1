"""As many calls as a server may get at a time, and the others in their order."""

import asyncio
import json

import pytest

from gateway.mcp.calls import Outcome
from gateway.server.tenants import hash_key
from tests.server.bench import Client, Exchange, eventually
from tests.server.mcp_bench import Agent, answers, call, counted, result, rpc, settings, tool_server

TENANTS = [
    {"name": "person", "key_hashes": [hash_key("person-key")]},
    {"name": "batch", "key_hashes": [hash_key("batch-key")], "quota": {"service_class": "proactive"}},
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
    trusted = [{"name": "t", "key_hashes": [hash_key("t-key")], "trust": ["scheduling"]}]
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
