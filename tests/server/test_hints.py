"""Hints on their way: the sender on a real socket, and what is spliced into a request.

A real engine that follows them: `tests/project/test_shipped_engines.py`.
"""

import asyncio
import json
from typing import Any

import pytest
from aiohttp import web

from gateway.config.upstream import UpstreamConfig
from gateway.domain.ids import PoolId, ReplicaId
from gateway.server import hint_sender
from gateway.server.hint_sender import HintSender
from gateway.server.outbound import with_hint
from gateway.server.tasks import TaskGroup
from gateway.upstream.replica import Address, Replica
from gateway.wire.splice import splice_fields

A = ReplicaId("a")


class Engine:
    """Takes hints, one message at a time."""

    def __init__(self, status: int = 200) -> None:
        self.status = status
        self.bodies: list[Any] = []
        self.may_answer = asyncio.Event()

    async def take(self, request: web.Request) -> web.Response:
        self.bodies.append(await request.json())
        await self.may_answer.wait()
        return web.json_response({}, status=self.status)


async def told(engine: Engine, hints: list[str], *, waits: bool = True) -> HintSender:
    app = web.Application()
    app.router.add_post("/turnpike/hints", engine.take)
    runner = web.AppRunner(app)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    port = runner.addresses[0][1]
    address = Address.parse(f"http://127.0.0.1:{port}")
    replica = Replica(A, PoolId("p"), address, config=UpstreamConfig(), api_key="k", tls=None)
    tasks = TaskGroup()
    sender = HintSender({A: replica}, tasks)
    sender.send(ReplicaId("nobody"), "{}")
    for hint in hints:
        sender.send(A, hint)
    if waits:
        await asyncio.sleep(0.05)
    for hint in hints:
        sender.send(A, hint)
    engine.may_answer.set()
    async with asyncio.timeout(10):
        while len(tasks):
            await asyncio.sleep(0.01)
    await sender.close()
    await runner.cleanup()
    return sender


async def test_hints_gather_while_one_message_is_on_its_way() -> None:
    engine = Engine()
    sender = await told(engine, ['{"n":1}', '{"n":2}'])
    assert [len(body["hints"]) for body in engine.bodies] == [2, 2]
    assert (sender.sent, sender.dropped, sender.failed) == (4, 1, 0)


async def test_what_is_too_much_is_dropped(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hint_sender, "MAX_WAITING", 3)
    engine = Engine()
    sender = await told(engine, ["1", "2", "3", "4", "5"], waits=False)
    assert sender.sent == 3 and sender.dropped == 8
    assert engine.bodies == [{"hints": [3, 4, 5]}]


async def test_an_engine_that_refuses_costs_nothing_but_a_count() -> None:
    sender = await told(Engine(status=500), ["{}"])
    assert (sender.sent, sender.failed) == (0, 2)


@pytest.mark.parametrize(
    ("stated", "sent"),
    [
        ('{"mine": 1, "x": {}}', {"mine": 1, "x": {}, "turnpike": "{}"}),
        ("{ }", {"turnpike": "{}"}),
        ('{"turnpike": "its own", "x": 1}', {"turnpike": "{}", "x": 1}),
        ('{"turnp\\u0069ke": "its own"}', {"turnpike": "{}"}),
        ("[1]", [1]),
        ("null", None),
    ],
)
def test_what_a_client_says_where_a_hint_goes_stays(stated: str, sent: Any) -> None:
    body = b'{"messages": [{"content": "{}"}], "vllm_xargs": %s}' % stated.encode()
    whole = b"".join(splice_fields(body, with_hint(body, "{}")))
    assert whole.startswith(body[:-1]) and json.loads(whole)["vllm_xargs"] == sent


def test_a_hint_goes_where_a_prompt_only_mentions_such_fields() -> None:
    told = {"vllm_xargs": {"turnpike": "{}"}}
    assert with_hint(b'{"x": {"vllm_xargs": 1}}', "{}") == told == with_hint(b'{"x": 1}', "{}")
    assert with_hint(b'{"vllm_xargs": {"x": 1}', "{}") == {}  # which is no JSON


def test_what_a_client_says_under_an_escaped_name_stays_beside_the_hint() -> None:
    body = b'{"vllm\\u005fxargs": {"mine": 1}, "vllm_xargs": {"x": 1}, "\\u0076llm_xargs": {"y": 2}}'
    whole = b"".join(splice_fields(body, with_hint(body, "{}")))
    assert json.loads(whole)["vllm_xargs"] == {"y": 2, "turnpike": "{}"}
