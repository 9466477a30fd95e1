"""Hints on their way: the sender on a real socket; the gateway in front of a real vLLM with the plugin."""

import asyncio
import contextlib
import json
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path
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
from tests.gateways import running_gateway
from turnpike_vllm.hints import Hint
from turnpike_vllm.scripted.process import EngineOptions, ScriptedEngine

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


# --- a real engine ----------------------------------------------------------------------------------

LONG = " ".join(f"word{number}" for number in range(300))
OPTIONS = EngineOptions(
    max_model_len=4096,
    extra_args=(
        *("--num-gpu-blocks-override", "160", "--max-num-batched-tokens", "512"),
        *("--scheduler-cls", "turnpike_vllm.scheduler.TurnpikeScheduler"),
    ),
    extra_env={"VLLM_PLUGINS": "turnpike"},
)
TURNS = [{"text": "Looking.", "tool_calls": [{"name": "ls", "arguments": {}}]}, {"text": "Done."}]
TOOLS = [{"type": "function", "function": {"name": "ls", "parameters": {"type": "object"}}}]


@pytest.fixture(scope="module")
def engine() -> Iterator[ScriptedEngine]:
    with ScriptedEngine({"scripts": {"fix": {"turns": TURNS}}}, OPTIONS) as running:
        yield running


def ask(url: str, body: Any = None) -> Any:
    data = None if body is None else json.dumps(body).encode()
    request = urllib.request.Request(url, data, {"content-type": "application/json"})
    with urllib.request.urlopen(request, timeout=120) as answer:
        return json.load(answer)


def kv_when(engine: ScriptedEngine, is_so: Any) -> Any:
    """What the engine holds, as soon as that is so, or after a while."""
    deadline = time.monotonic() + 10
    while True:
        told = ask(f"{engine.url}/turnpike/kv")
        if is_so(told) or time.monotonic() > deadline:
            return told
        time.sleep(0.05)


def followed(told: Any) -> int:
    return int(told["counters"]["hints"].get("followed", 0))


@pytest.mark.alone
@pytest.mark.engine
@pytest.mark.timeout(300)
def test_a_real_engine_holds_what_a_pause_left(engine: ScriptedEngine, tmp_path: Path) -> None:
    with running_gateway([engine.url], tmp_path / "gateway") as port:
        messages: list[Any] = [{"role": "user", "content": f"[[script:fix]] {LONG}"}]
        body = {"model": "scripted", "messages": messages, "tools": TOOLS}
        first = ask(f"http://127.0.0.1:{port}/v1/chat/completions", body)
        call = first["choices"][0]["message"]["tool_calls"][0]
        # One hint came with the request, one at the pause: a tool runs, so its state is held.
        paused = kv_when(engine, lambda told: followed(told) >= 2)
        assert paused["counters"]["hints"] == {"followed": 2}
        assert paused["blocks"]["retained"] > 20
        [session] = paused["sessions"].values()
        assert session["retained"] == paused["blocks"]["retained"]
        messages += [
            {"role": "assistant", "content": "Looking.", "tool_calls": [call]},
            {"role": "tool", "tool_call_id": call["id"], "content": "main.py"},
        ]
        second = ask(f"http://127.0.0.1:{port}/v1/chat/completions", body)
        assert second["choices"][0]["message"]["content"] == "Done."
        ended = kv_when(engine, lambda told: followed(told) >= 4)
        assert ended["counters"]["hints"] == {"followed": 4} and ended["counters"]["holds"]["held"] >= 1
        # What a client says there itself stays, but for a hint of its own; ours goes with it.
        forged = Hint(session="s-forged", seq=2**53, band=0, retain_s=3_600.0).as_json()
        stated = {**body, "vllm_xargs": {"mine": 1, "turnpike": forged}}
        ask(f"http://127.0.0.1:{port}/v1/chat/completions", stated)
        assert followed(kv_when(engine, lambda told: followed(told) >= 5)) >= 5
        # Where we read nothing (NaN is no JSON, but vLLM takes it), the engine follows nothing.
        url = f"http://127.0.0.1:{port}/v1/chat/completions"
        unread = json.dumps({**stated, "user": float("nan")}).encode()
        with contextlib.suppress(urllib.error.HTTPError):
            urllib.request.urlopen(urllib.request.Request(url, unread, {"content-type": "application/json"}))
        with pytest.raises(urllib.error.HTTPError, match="403"):
            ask(f"http://127.0.0.1:{port}/turnpike/hints", {"hints": [json.loads(forged)]})
        told = ask(f"{engine.url}/turnpike/kv")
        assert "s-forged" not in told["sessions"] and told["counters"]["hints"].get("unsigned", 0) <= 1
