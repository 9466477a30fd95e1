"""The examples, unmodified: the backend ends its answer when the first tool has begun, and not before."""

import asyncio
import json
import os
import sys
from pathlib import Path
from typing import Any

import pytest

from demo.install import install_agents
from demo.processes import Children
from tests.clients.programs import FRAMEWORKS_KIT
from tests.project.layout import ROOT
from tests.server.bench import DONE, STREAM_HEAD, Bench, chunk, eventually

ITEMS = ("pear", "fig")
IDS = ("call_5b1f09d2c3a84e77", "call_9c04e1b7a26d4f13")
SAID = "Twelve each."


def chat(delta: Any, finish: str | None = None) -> Any:
    choice = {"index": 0, "delta": delta, "finish_reason": finish}
    return {"id": "x", "object": "chat.completion.chunk", "created": 1, "model": "m", "choices": [choice]}


def chat_call(at: int, text: str, **more: Any) -> Any:
    return chat({"tool_calls": [{"index": at, **more, "function": {"arguments": text, **_named(more)}}]})


def _named(more: Any) -> Any:
    return {"name": "price"} if more else {}


class Chat:
    """Events up to the end of the first call, those behind it, and an answer without calls."""

    begins = (
        chat({"role": "assistant", "content": ""}),
        chat_call(0, "", id=IDS[0], type="function"),
        chat_call(0, '{"item": "pe'),
        chat_call(0, 'ar"}'),
    )
    goes_on = (
        chat_call(1, '{"item"', id=IDS[1], type="function"),
        chat_call(1, ': "fig"}'),
        chat({}, "tool_calls"),
    )
    ends = (chat({"role": "assistant", "content": SAID}), chat({}, "stop"))


def response(output: list[Any], status: str = "completed") -> Any:
    return {
        "id": "r1", "object": "response", "created_at": 1, "model": "m", "output": output, "status": status,
        "parallel_tool_calls": True, "tool_choice": "auto", "tools": [], "usage": None,
    }  # fmt: skip


def asked(at: int, text: str) -> Any:
    call = {"type": "function_call", "id": f"f{at}", "call_id": IDS[at], "name": "price"}
    return {**call, "arguments": text}


def event(kind: str, at: int | None = None, **more: Any) -> Any:
    place = {} if at is None else {"output_index": at}
    return {"type": f"response.{kind}", "sequence_number": 1, **place, **more}


def delta(at: int, text: str) -> Any:
    return event("function_call_arguments.delta", at, item_id=f"f{at}", delta=text)


_BOTH = [asked(at, json.dumps({"item": item})) for at, item in enumerate(ITEMS)]
_TEXT = {"type": "output_text", "text": SAID, "annotations": []}
_MESSAGE = {"type": "message", "id": "m1", "role": "assistant", "status": "completed", "content": [_TEXT]}


class Responses:
    begins = (
        event("created", response=response([], "in_progress")),
        event("output_item.added", 0, item=asked(0, "")),
        delta(0, '{"item": "pe'),
        delta(0, 'ar"}'),
    )
    goes_on = (
        event("output_item.done", 0, item=_BOTH[0]),
        event("output_item.added", 1, item=asked(1, "")),
        delta(1, '{"item": "fig"}'),
        event("output_item.done", 1, item=_BOTH[1]),
        event("completed", response=response(_BOTH)),
    )
    ends = (
        event("created", response=response([], "in_progress")),
        event("output_item.added", 0, item={**_MESSAGE, "content": []}),
        event("content_part.added", 0, item_id="m1", content_index=0, part={**_TEXT, "text": ""}),
        event("output_text.delta", 0, item_id="m1", content_index=0, delta=SAID, logprobs=[]),
        event("output_item.done", 0, item=_MESSAGE),
        event("completed", response=response([_MESSAGE])),
    )


def block(at: int, kind: str, **more: Any) -> Any:
    return {"type": "content_block_start", "index": at, "content_block": {"type": kind, **more}}


def part(at: int, kind: str, **more: Any) -> Any:
    return {"type": "content_block_delta", "index": at, "delta": {"type": kind, **more}}


def stop(at: int) -> Any:
    return {"type": "content_block_stop", "index": at}


def end(reason: str) -> tuple[Any, Any]:
    told = {"stop_reason": reason, "stop_sequence": None}
    return {"type": "message_delta", "delta": told, "usage": {"output_tokens": 9}}, {"type": "message_stop"}


_START = {
    "type": "message_start",
    "message": {
        "id": "m1", "type": "message", "role": "assistant", "model": "m", "content": [], "stop_reason": None,
        "stop_sequence": None, "usage": {"input_tokens": 3, "output_tokens": 0},
    },
}  # fmt: skip


class Messages:
    begins = (
        _START,
        block(0, "tool_use", id=IDS[0], name="price", input={}),
        part(0, "input_json_delta", partial_json='{"item": "pe'),
        part(0, "input_json_delta", partial_json='ar"}'),
    )
    goes_on = (
        stop(0),
        block(1, "tool_use", id=IDS[1], name="price", input={}),
        part(1, "input_json_delta", partial_json='{"item": "fig"}'),
        stop(1),
        *end("tool_use"),
    )
    ends = (_START, block(0, "text", text=""), part(0, "text_delta", text=SAID), stop(0), *end("end_turn"))


def encoded(*events: Any) -> bytes:
    lines = (
        (b"event: %s\n" % each["type"].encode() if "type" in each else b"")
        + b"data: %s\n\n" % json.dumps(each).encode()
        for each in events
    )
    return b"".join(map(chunk, lines))


async def play(bench: Bench, python: Path, example: str, answers: Any) -> None:
    lines: list[str] = []

    async def script(exchange: Any) -> None:
        tail = (chunk(DONE) if answers is Chat else b"") + b"0\r\n\r\n"
        if len(bench.backend.seen) > 1:
            await exchange.send(STREAM_HEAD + encoded(*answers.ends) + tail)
            return
        await exchange.send(STREAM_HEAD + encoded(*answers.begins))
        await eventually(lambda: lines, "no tool began before its answer ended")
        await exchange.send(encoded(*answers.goes_on) + tail)

    bench.backend.script = script
    url = f"http://127.0.0.1:{bench.gateway.listener.port}"
    urls = {"OPENAI_BASE_URL": f"{url}/v1", "ANTHROPIC_BASE_URL": url}
    keys = {"OPENAI_API_KEY": "any", "ANTHROPIC_API_KEY": "any"}
    program = await asyncio.create_subprocess_exec(
        python,
        ROOT / "examples" / f"{example}.py",
        "m",
        "What do a pear and a fig cost?",
        env={**os.environ, **urls, **keys, "PYTHONPATH": str(ROOT), "NO_PROXY": "*"},
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
    assert lines[2:] == [SAID]
    results = bench.backend.seen[1].body.decode()
    assert all(f"A {item} costs 12." in results for item in ITEMS)
    [session] = bench.brain.sessions.sessions.newest_first()
    assert session.turns == 2


@pytest.mark.slow
@pytest.mark.parametrize(
    ("example", "answers"),
    [("with_openai", Chat), ("with_openai_responses", Responses), ("with_anthropic", Messages)],
)
async def test_a_tool_begins_before_its_answer_ends(start, monkeypatch, example, answers):
    monkeypatch.setattr("tests.server.bench.PATIENCE_S", 60.0)
    await play(await start(), Path(sys.executable), example, answers)


@pytest.mark.nightly
@pytest.mark.agents
@pytest.mark.timeout(700)
@pytest.mark.parametrize("example", ["with_langgraph", "with_openai_agents"])
async def test_so_it_does_in_frameworks(start, monkeypatch, tmp_path, example):
    monkeypatch.setattr("tests.server.bench.PATIENCE_S", 60.0)
    await install_agents(Children(f"test-{tmp_path}"), tmp_path, print, FRAMEWORKS_KIT)
    await play(await start(), FRAMEWORKS_KIT.venv / "bin/python", example, Chat)
