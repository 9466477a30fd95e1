"""A call is complete before its answer: who is told, and the examples, which begin their tools then."""

import asyncio
import json
import os
import sys
from pathlib import Path
from typing import Any

import pytest

from demo.install import install_agents
from demo.processes import Children
from gateway.server.proxy import ticket
from tests.clients.programs import FRAMEWORKS_KIT
from tests.project.layout import ROOT
from tests.server.bench import DONE, STREAM_HEAD, Bench, answer, chunk, eventually, get, post, sends
from tests.server.mcp_model import Calls, ScriptedModel

STREAMED = b'{"model":"m","stream":true,"messages":[{"role":"user","content":"hi"}]}'


def event(delta: dict[str, Any], finish: str | None = None) -> bytes:
    choice = {"index": 0, "delta": delta, "finish_reason": finish}
    return chunk(b"data: %s\n\n" % json.dumps({"choices": [choice]}).encode())


def piece(arguments: str, index: int, **more: Any) -> bytes:
    function = {"name": "bash", "arguments": arguments} if more else {"arguments": arguments}
    return event({"tool_calls": [{"index": index, **more, "function": function}]})


class Handed:
    """What whoever asked is told."""

    def __init__(self, bench: Any) -> None:
        self.calls: list[tuple[str, str, bytes]] = []
        self._brain = bench.brain
        bench.gateway.driver.on_call = self._take

    def _take(self, request: Any, call: Any, arguments: bytes) -> None:
        assert self._brain.live[request].session is not None
        self.calls.append((call.id, call.name, arguments))


async def test_calls_are_told_while_their_answer_goes_on(start):
    bench = await start()
    handed, may_end = Handed(bench), asyncio.Event()

    async def script(exchange: Any) -> None:
        await exchange.send(STREAM_HEAD + piece("", 0, id="c1") + piece('{"x":', 0))
        await exchange.send(piece("1}", 0) + piece("{", 1, id="c2"))
        await may_end.wait()
        await asyncio.sleep(0.05)
        await exchange.send(piece("}", 1) + event({}, "tool_calls") + chunk(DONE) + b"0\r\n\r\n")

    bench.backend.script = script
    client = await bench.send(post(STREAMED))
    await eventually(lambda: handed.calls)
    [live] = bench.brain.live.values()
    assert handed.calls == [("c1", "bash", b'{"x":1}')]
    assert [call.id for call in bench.brain.sessions.tools.ready_calls(live.session_id)] == ["c1"]
    assert bench.brain.sessions.tools.active_sessions == 0
    may_end.set()
    assert (await client.receive()).is_whole
    await eventually(lambda: not bench.brain.live)
    assert handed.calls[1:] == [("c2", "bash", b"{}")]
    assert bench.brain.sessions.tools.active_sessions == 1
    metrics = (await bench.control(get(b"/metrics"))).body.decode()
    lines = dict(line.rsplit(" ", 1) for line in metrics.splitlines() if "decode_after_call" in line[:40])
    assert float(lines["turnpike_decode_after_call_seconds_count"]) == 2
    assert 0.05 <= float(lines["turnpike_decode_after_call_seconds_sum"]) < 5


@pytest.mark.parametrize("is_streamed", [True, False])
async def test_an_answer_that_comes_at_once_hands_over_its_calls(start, is_streamed, monkeypatch):
    monkeypatch.setattr(ticket, "MAX_ARGUMENTS_BYTES", 10)
    bench = await start()
    handed = Handed(bench)
    calls = {"c1": "{}", "c2": '{"long": "arguments"}', "c3": '{"is": "cut'}
    if is_streamed:
        pieces = [piece(text, at, id=each) for at, (each, text) in enumerate(calls.items())]
        bench.backend.script = sends(STREAM_HEAD + b"".join(pieces) + event({}, "length") + b"0\r\n\r\n")
    else:
        asked = [{"id": e, "function": {"name": "bash", "arguments": text}} for e, text in calls.items()]
        choice = {"message": {"tool_calls": asked}, "finish_reason": "length"}
        bench.backend.script = sends(answer(json.dumps({"choices": [choice]}).encode()))
    await bench.ask(post(STREAMED))
    await eventually(lambda: not bench.brain.live)
    assert handed.calls == [("c1", "bash", b"{}")]


async def test_of_an_answer_that_is_no_stream_nobody_can_tell_when_a_call_was_complete(start):
    call = {"id": "c1", "function": {"name": "bash", "arguments": "{}"}}
    body = json.dumps({"choices": [{"message": {"tool_calls": [call]}, "finish_reason": "tool_calls"}]})
    whole = answer(body.encode())

    async def script(exchange: Any) -> None:
        await exchange.send(whole[:-20])
        await asyncio.sleep(0.1)
        await exchange.send(whole[-20:])

    bench = await start(script=script)
    handed = Handed(bench)
    assert (await bench.ask(post())).is_whole
    await eventually(lambda: bench.brain.sessions.tools.active_sessions)
    assert handed.calls == [("c1", "bash", b"{}")]
    metrics = (await bench.control(get(b"/metrics"))).body.decode()
    assert "turnpike_decode_after_call_seconds_count 0.0" in metrics


async def test_what_is_no_turns_answer_hands_over_nothing(start):
    call = {"type": "function_call", "id": "f", "call_id": "c1", "name": "bash", "arguments": "{}"}
    stored = {"id": "resp_1", "object": "response", "status": "completed", "output": [call]}
    bench = await start(script=sends(answer(json.dumps(stored).encode())))
    handed = Handed(bench)
    await bench.ask(get(b"/v1/responses/resp_1"))
    assert not handed.calls
    body = json.dumps({"error": {}, "choices": [{"message": {"tool_calls": []}}]}).encode()
    bench.backend.script = sends(answer(body, b"500 Internal Server Error"))
    await bench.ask(post())
    assert not handed.calls


ITEMS = ("pear", "fig")


async def play(bench: Bench, python: Path, example: str) -> None:
    lines: list[str] = []
    steps: list[Calls] = [[{"item": item} for item in ITEMS]]
    model = ScriptedModel("price", steps)
    model.behind_first = lambda: eventually(lambda: lines, "no tool began before its answer ended")
    bench.backend.script = model.script
    url = f"http://127.0.0.1:{bench.gateway.listener.port}"
    urls = {"OPENAI_BASE_URL": f"{url}/v1", "ANTHROPIC_BASE_URL": url}
    keys = {"OPENAI_API_KEY": "any", "ANTHROPIC_API_KEY": "any"}
    program = await asyncio.create_subprocess_exec(
        python,
        ROOT / "examples" / f"{example}.py",
        "m",
        "What do a pear and a fig cost?",
        env={**os.environ, **urls, **keys, "NO_PROXY": "*"},
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )
    assert program.stdout is not None and program.stderr is not None
    complaints = asyncio.create_task(program.stderr.read())
    while line := await program.stdout.readline():
        lines.append(line.decode().strip())
    assert await program.wait() == 0, (await complaints).decode()
    await complaints
    assert sorted(lines[:2]) == sorted(f"looking for the price of {item}" for item in ITEMS)
    assert lines[2:] == ["done"]
    assert all(f"A {item} costs 12." in "".join(model.results) for item in ITEMS)
    [session] = bench.brain.sessions.sessions.newest_first()
    assert session.turns == 2


@pytest.mark.slow
@pytest.mark.parametrize("example", ["with_openai", "with_openai_responses", "with_anthropic"])
async def test_a_tool_begins_before_its_answer_ends(start, monkeypatch, example):
    monkeypatch.setattr("tests.server.bench.PATIENCE_S", 60.0)
    await play(await start(), Path(sys.executable), example)


@pytest.mark.nightly
@pytest.mark.agents
@pytest.mark.timeout(700)
@pytest.mark.parametrize("example", ["with_langgraph", "with_openai_agents"])
async def test_so_it_does_in_frameworks(start, monkeypatch, tmp_path, example):
    monkeypatch.setattr("tests.server.bench.PATIENCE_S", 60.0)
    await install_agents(Children(f"test-{tmp_path}"), tmp_path, print, FRAMEWORKS_KIT)
    await play(await start(), FRAMEWORKS_KIT.venv / "bin/python", example)
