"""Whatever clients do, a tool that writes is called as often as they call it, and never before.

A real MCP server counts. Models' answers end, break off or are given up; agents make the calls that these ask
for, or not, give some up, and ask again.
"""

import asyncio
import json
import random
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from tests.server.bench import eventually
from tests.server.mcp_bench import Agent, call, counted, early_calls, rpc
from tests.server.mcp_programs import SdkServer, sdk_server
from tests.server.test_mcp_early import Model

pytestmark = [pytest.mark.agents, pytest.mark.timeout(300)]

ROUNDS = 12
SEEDS = (1, 2)
_PREFIX = "mcp__t__"


class Sdk(Agent):
    """An agent whose MCP session is one of a real server's."""

    async def connect(self) -> "Sdk":
        version = {"protocolVersion": "2025-11-25", "capabilities": {}}
        hello = rpc("initialize", "hello", **version, clientInfo={"name": "t", "version": "1"})
        line = b"Mcp-Session-Id: %s\r\n" % self.mcp_session.encode()
        opened = await self.bench.ask(self.tell(hello).replace(line, b""))
        session = opened.get(b"mcp-session-id")
        assert opened.status == 200 and session is not None
        self.mcp_session = session.decode()
        assert (await self.bench.ask(self.tell(rpc("notifications/initialized", None)))).status == 202
        assert (await self.bench.ask(self.tell(rpc("tools/list", "list")))).status == 200
        await self.ask(first7a9x3=_PREFIX + 'read {"path": "first"}')
        assert (await self.bench.ask(self.tell(call("read", "first", path="first")))).status == 200
        self.results("first7a9x3")
        return self


class Chaos:
    """One agent's life. `asked` and `called` count calls by tool and arguments."""

    def __init__(self, agent: Sdk, rng: random.Random) -> None:
        self.agent, self.rng = agent, rng
        self.asked: Counter[tuple[str, str]] = Counter()
        self.called: Counter[tuple[str, str]] = Counter()
        self._numbers = 0

    def number(self) -> int:
        self._numbers += 1
        return self._numbers

    def calls(self) -> list[tuple[str, dict[str, Any]]]:
        """What the next answer asks for; now and then the same several times."""
        found: list[tuple[str, dict[str, Any]]] = []
        for _ in range(self.rng.randint(1, 4)):
            tool = self.rng.choice(("read", "read", "read", "write"))
            takes_s = self.rng.choice((0.0, 0.05, 0.3))
            arguments = {"path": f"{id(self)}-{self.number()}", "takes_s": takes_s}
            found += [(tool, arguments)] * self.rng.choice((1, 1, 1, 3))
        return found

    async def turn(self, server: SdkServer) -> None:
        calls = self.calls()
        model = Model(self.agent.bench, self.agent)
        asked = {
            f"c{self.number()}f7a9x3{n}": f"{_PREFIX}{tool} {json.dumps(arguments)}"
            for n, (tool, arguments) in enumerate(calls)
        }
        self.asked.update(key_of(*each) for each in calls)
        fate = self.rng.choice(("ends", "ends", "ends", "dies", "is left"))
        model.dies = fate == "dies"
        await model.asks(**asked)
        self.no_write_was_made_that_nobody_made(server)
        if fate == "is left":
            model.client.close()
            await asyncio.sleep(0.05)
            model.is_over()
        else:
            await model.ends()
        if self.rng.random() < 0.8:
            await asyncio.gather(*(self.call(*each) for each in calls if self.rng.random() < 0.9))
        if fate == "ends":
            self.agent.results(*asked)
        else:
            self.agent.messages.append({"role": "user", "content": f"again {self.number()}"})
        self.no_write_was_made_that_nobody_made(server)

    async def call(self, tool: str, arguments: dict[str, Any]) -> None:
        request_id = f"own-{self.number()}"
        self.called[key_of(tool, arguments)] += 1
        client = await self.agent.bench.connect()
        meta = self.rng.choice((None, {"progressToken": request_id}))
        client.send(self.agent.tell(call(tool, request_id, meta, **arguments)))
        what = self.rng.choice(("waits", "waits", "waits", "leaves", "cancels"))
        if what == "waits":
            answer = await client.receive()
            said = [json.loads(line[6:]) for line in answer.body.split(b"\n") if line.startswith(b"data: {")]
            assert answer.status == 200 and said[-1]["id"] == request_id, answer.body
            assert arguments["path"] in said[-1]["result"]["content"][0]["text"]
        else:
            await asyncio.sleep(0.02)
            if what == "cancels":
                await self.agent.bench.ask(
                    self.agent.tell(rpc("notifications/cancelled", None, requestId=request_id))
                )
        client.close()

    def no_write_was_made_that_nobody_made(self, server: SdkServer) -> None:
        for key, count in begun(server, "write").items():
            assert key not in self.asked or count <= self.called[key], (key, count)


def key_of(tool: str, arguments: dict[str, Any]) -> tuple[str, str]:
    return tool, json.dumps(arguments, sort_keys=True)


def begun(server: SdkServer, tool: str) -> Counter[tuple[str, str]]:
    return Counter(
        key_of(note["tool"], note["arguments"])
        for note in server.notes()
        if (note["tool"], note["what"]) == (tool, "begun")
    )


@pytest.mark.parametrize("seed", SEEDS)
async def test_a_write_is_made_as_often_as_its_agent_makes_it_and_a_read_at_most_once_more(
    start: Any, tmp_path: Path, seed: int
) -> None:
    rng = random.Random(seed)
    async with sdk_server(tmp_path) as server:
        limit = rng.choice((0, 3))
        mcp = {"name": "tools", "url": server.url, "early_tools": ["read", "write"], "early_keep_s": 0.5}
        bench = await start(mcp=[{**mcp, "max_concurrent_calls": limit}])
        lives = [
            Chaos(await Sdk(bench, f"agent {n}", mcp_session=f"none-{n}").connect(), rng) for n in range(2)
        ]
        for _ in range(ROUNDS):
            for each in lives:  # one after the other: the backend answers one script at a time
                await each.turn(server)
        await eventually(lambda: not early_calls(bench))
        await asyncio.sleep(0.5)
        asked: Counter[tuple[str, str]] = sum((each.asked for each in lives), Counter())
        called: Counter[tuple[str, str]] = sum((each.called for each in lives), Counter())
        writes, reads = begun(server, "write"), begun(server, "read")
        assert writes and all(count <= called[key] for key, count in writes.items())
        late = {key: (count, asked[key], called[key]) for key, count in reads.items() if key in asked}
        assert all(count <= asked_ + called_ for count, asked_, called_ in late.values())
        early = await counted(bench, "turnpike_mcp_early_total")
        made = sum(count for labels, count in early.items() if "no_room" not in labels)
        own = sum(called[key] for key in late)
        claimed = sum(count for labels, count in early.items() if "claimed" in labels and "un" not in labels)
        assert claimed > 5 and sum(count for count, _, _ in late.values()) <= own + made - claimed
        print(early, "writes", writes.total(), "of", sum(c for k, c in called.items() if k[0] == "write"))
