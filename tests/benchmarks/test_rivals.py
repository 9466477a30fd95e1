"""What agents of a live comparison say, and what is made of what they saw, without anything live."""

import asyncio
import json

import aiohttp
import pytest
from aiohttp import web

from benchmarks.live import drawn
from benchmarks.rivals import COLD, KIND, LESS, OURS, WORSE, Run, Seen, judge
from benchmarks.verdict import Verdict
from lab.simulator.live.chat_agents import NAMED_BY, ChatAgents, Talk, Turned, scripts, talk
from lab.simulator.live.endpoint import Question, TurnedAwayError
from scripted_engine import script

WORDS = ["alpha", "beta", "gamma", "delta"]


def words_of(talk: Talk) -> list[int]:
    """In each turn's prompt."""
    told = sum(len(message["content"].split()) for message in talk.opening)
    counts = [told]
    for turn, result in zip(talk.turns, talk.results, strict=False):
        told += len(turn["text"].split()) + len(result.split())
        counts.append(told)
    return counts


def test_talks_are_as_long_as_the_workload_says_and_engines_can_play_them():
    sessions = drawn(KIND, 5)
    talks = {session.id: talk(session, WORDS) for session in sessions}
    for session in sessions:
        said = talks[session.id]
        wanted = [turn.input_tokens for turn in session.threads[0].turns]
        assert words_of(said) == pytest.approx(wanted, rel=0.05)
        assert len(said.results) == len(said.turns) - 1, "the last turn calls nothing"
        assert "tool_calls" not in said.turns[-1] and all("tool_calls" in turn for turn in said.turns[:-1])
    book = script.parse(scripts(talks))
    assert book.scripts.keys() == talks.keys()
    assert talks["round-0"].opening[1]["content"].startswith("[[script:round-0]] ")
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
        runner = web.AppRunner(app)
        await runner.setup()
        site = web.TCPSite(runner, "127.0.0.1", 0)
        await site.start()
        port = runner.addresses[0][1]
        said = Talk([{"role": "user", "content": "go"}], [], ["a file"])
        async with aiohttp.ClientSession() as client:
            agents = ChatAgents(client, f"http://127.0.0.1:{port}", "m", {"s": said}, headers=NAMED_BY)
            question = Question(session="s", prompt=[], output_tokens=1, is_final=False)
            with pytest.raises(TurnedAwayError):
                await agents.ask(question)
            reply = await agents.ask(question)
            assert (reply.cached_tokens, reply.output_tokens, reply.queued_s) == (64, 9, 0.25)
            with pytest.raises(IndexError):  # the talk has one result only
                await agents.ask(question)
        await runner.cleanup()
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


def run(seconds: float, cached: int, pace_s: float = 1.0, failed: int = 0) -> Run:
    turns = [Turned("s", 0, 1_000, 0, 0), Turned("s", 1, 2_000, cached, 1_500)]
    return Run(seconds=[seconds] * 9 + [2 * seconds], pace_s=pace_s, turns=turns, failed=failed)


def test_times_are_in_units_of_the_pace_and_no_more_is_reused_than_was_left():
    seen = Seen.of([run(10.0, 1_200), run(20.0, 1_800, pace_s=2.0)])
    assert (seen.mean, seen.p90) == (11.0, 10.0)
    assert seen.hit_rate == 3_000 / 6_000
    assert seen.reused == (1_200 + 1_500) / 3_000


@pytest.mark.parametrize(
    ("ours", "missed"),
    [
        (run(10.0, 1_500), []),
        (run(10.0 * WORSE * 1.01, 1_500), ["mean_to_best", "p90_to_best"]),
        (run(10.0, 1_500 - int(3_000 * LESS) - 1), ["hit_rate_less_best"]),
        (run(10.0, 1_500, failed=1), ["failed"]),
    ],
)
def test_what_counts_is_the_best_of_the_others_and_not_how_turnpike_began(ours, missed):
    verdict = Verdict()
    judge(
        {OURS: [ours], COLD: [run(1.0, 2_000)], "quick": [run(10.0, 0)], "slow": [run(30.0, 1_500)]}, verdict
    )
    assert verdict.missed == missed
    assert verdict.figures["mean_cold_to_best"].value == 0.1
