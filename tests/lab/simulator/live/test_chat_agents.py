"""What agents that chat send, and what they make of answers."""

import asyncio
import json

import aiohttp
import pytest
from aiohttp import web
from aiohttp.test_utils import TestServer

from lab.simulator.live.chat_agents import NAMED_BY, ChatAgents, Talk, Turned, scripts, talk
from lab.simulator.live.endpoint import Question, TurnedAwayError
from lab.workload.trace.format import Session, Thread, Tool, Turn
from scripted_engine import script

WORDS = ["alpha", "beta", "gamma", "delta"]


def session_of(number: int) -> Session:
    tool = Tool(name="tool", duration_s=1.0)
    lengths = (6_000 + 100 * number, 6_800 + 100 * number, 8_000 + 100 * number)
    turns = [
        Turn(input_tokens=length, output_tokens=60, tools=(tool,) if at < 2 else ())
        for at, length in enumerate(lengths)
    ]
    return Session(
        id=f"s{number}", threads=(Thread(turns=tuple(turns), shared_key="agent", shared_tokens=500),)
    )


def words_of(talk: Talk) -> list[int]:
    told = sum(len(message["content"].split()) for message in talk.opening)
    counts = [told]
    for turn, result in zip(talk.turns, talk.results, strict=False):
        told += len(turn["text"].split()) + len(result.split())
        counts.append(told)
    return counts


def test_talks_are_as_long_as_the_workload_says_and_engines_can_play_them():
    sessions = [session_of(number) for number in range(5)]
    talks = {session.id: talk(session, WORDS) for session in sessions}
    for session in sessions:
        said = talks[session.id]
        wanted = [turn.input_tokens for turn in session.threads[0].turns]
        assert words_of(said) == pytest.approx(wanted, rel=0.05)
        assert len(said.results) == len(said.turns) - 1, "the last turn calls nothing"
        assert "tool_calls" not in said.turns[-1] and all("tool_calls" in turn for turn in said.turns[:-1])
    book = script.parse(scripts(talks))
    assert book.scripts.keys() == talks.keys()
    assert talks["s0"].opening[1]["content"].startswith("[[script:s0]] ")
    shared = {json.dumps(said.opening[0]) for said in talks.values()}
    assert len(shared) == 1 and len({said.opening[1]["content"] for said in talks.values()}) == 5
    assert talk(sessions[0], WORDS) == talks[sessions[0].id]


CHUNKS = (
    {"choices": [{"delta": {"role": "assistant", "content": ""}}]},
    {"choices": [{"delta": {"content": "I look"}}]},
    {"choices": [{"delta": {"tool_calls": [{"index": 0, "id": "call-1", "function": {"name": "run"}}]}}]},
    {"choices": [{"delta": {"tool_calls": [{"index": 0, "function": {"arguments": '{"command": '}}]}}]},
    {"choices": [{"delta": {"tool_calls": [{"index": 0, "function": {"arguments": '"ls"}'}}]}}]},
)


def test_the_next_turn_says_what_was_answered_and_brings_the_result():
    asked: list[tuple[dict[str, str], dict[str, object]]] = []

    async def answer(request: web.Request) -> web.StreamResponse:
        asked.append((dict(request.headers), await request.json()))
        if len(asked) == 1:
            return web.Response(status=503)
        response = web.StreamResponse(headers={"x-turnpike-queue-ms": "250"})
        await response.prepare(request)
        usage = {"prompt_tokens": 70, "completion_tokens": 9, "prompt_tokens_details": {"cached_tokens": 64}}
        for chunk in (*CHUNKS, {"choices": [], "usage": usage}):
            await response.write(b"data: " + json.dumps(chunk).encode() + b"\n\n")
        await response.write(b"data: [DONE]\n\n")
        return response

    async def run() -> ChatAgents:
        app = web.Application()
        app.router.add_post("/v1/chat/completions", answer)
        said = Talk([{"role": "user", "content": "go"}], [], ["a file"])
        async with TestServer(app) as listening, aiohttp.ClientSession() as client:
            agents = ChatAgents(
                client, f"http://127.0.0.1:{listening.port}", "m", {"s": said}, headers=NAMED_BY
            )
            question = Question(session="s", prompt=[], output_tokens=1, is_final=False)
            with pytest.raises(TurnedAwayError):
                await agents.ask(question)
            reply = await agents.ask(question)
            assert (reply.cached_tokens, reply.output_tokens, reply.queued_s) == (64, 9, 0.25)
            with pytest.raises(IndexError):  # the talk has one result only
                await agents.ask(question)
        return agents

    agents = asyncio.run(run())
    first, again, second = (body["messages"] for _, body in asked)
    assert first == again == [{"role": "user", "content": "go"}]
    call = {"type": "function", "id": "call-1", "function": {"name": "run", "arguments": '{"command": "ls"}'}}
    assert second == [
        *first,
        {"role": "assistant", "content": "I look", "tool_calls": [call]},
        {"role": "tool", "tool_call_id": "call-1", "content": "a file"},
    ]
    assert all(headers[name] == "s" for headers, _ in asked for name in NAMED_BY)
    assert agents.turns[:2] == [Turned("s", 0, 70, 64, 0), Turned("s", 1, 70, 64, 79)]
