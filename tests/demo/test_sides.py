"""The replayed conversations go where they are sent, and what engines count is told since a side began."""

import json
from contextlib import AsyncExitStack, asynccontextmanager

import msgspec
import pytest
from aiohttp import web

from benchmarks.processes import BenchmarkError
from demo.balancer import Balancer
from demo.replay import KIND, NAMED_BY, play_on, replay
from demo.sides import Counts

METRICS = """\
vllm:prefix_cache_queries_total{engine="0"} 100.0
vllm:prefix_cache_hits_total{engine="0"} 40.0
vllm:request_queue_time_seconds_sum{engine="0"} 1.5
vllm:request_queue_time_seconds_count{engine="0"} 9.0
vllm:num_preemptions_total{engine="0"} 2.0
"""


def test_engines_are_added_up_and_what_was_before_is_left_out():
    before = Counts.read([METRICS])
    now = Counts.read([METRICS, METRICS.replace("100.0", "300.0")])
    assert now.since(before) == Counts(prompt_tokens=300, cached_tokens=40, queued_s=1.5, preemptions=2)
    with pytest.raises(BenchmarkError, match="num_preemptions"):
        Counts.read([METRICS.replace("num_preemptions", "other")])


def test_both_sides_get_the_same():
    assert msgspec.json.encode(replay(3).sessions) == msgspec.json.encode(replay(3).sessions)
    assert replay(2).scripts.keys() == {"replayed-0", "replayed-1"}


class Server:
    """Answers each turn with a call, as many as the script has."""

    def __init__(self, scripts):
        self.scripts = scripts
        self.heard = []

    async def chat(self, request):
        session, said = request.headers[NAMED_BY], (await request.json())["messages"]
        turn = sum(message["role"] == "assistant" for message in said)
        self.heard.append((session, turn))
        calls = [
            {"index": at, "id": f"{session}-{turn}", "function": {"name": call["name"], "arguments": "{}"}}
            for at, call in enumerate(self.scripts[session]["turns"][turn].get("tool_calls", ()))
        ]
        usage = {"prompt_tokens": 70, "completion_tokens": 9, "prompt_tokens_details": {"cached_tokens": 32}}
        event = {"choices": [{"delta": {"content": "so", "tool_calls": calls}}], "usage": usage}
        return web.Response(text=f"data: {json.dumps(event)}\n\ndata: [DONE]\n\n")

    @asynccontextmanager
    async def serving(self):
        app = web.Application()
        app.router.add_post("/v1/chat/completions", self.chat)
        runner = web.AppRunner(app)
        await runner.setup()
        await web.TCPSite(runner, "127.0.0.1", 0).start()
        try:
            yield "http://{}:{}".format(*runner.addresses[0][:2])
        finally:
            await runner.cleanup()


async def test_every_turn_of_a_conversation_goes_where_it_lives(monkeypatch):
    monkeypatch.setattr("demo.replay.KIND", msgspec.structs.replace(KIND, tool_s=0.001, apart_s=0.001))
    played = replay(4)
    said: list[str] = []
    servers = [Server(played.scripts), Server(played.scripts)]
    async with AsyncExitStack() as stack:
        urls = [await stack.enter_async_context(each.serving()) for each in servers]
        found = await play_on(played, Balancer(urls).choose, "m", said.append)
    turns = {session.id: session.turns for session in played.sessions}
    for server in servers:
        homes = {session for session, _ in server.heard}
        assert len(homes) == 2
        assert sorted(server.heard) == [(home, at) for home in sorted(homes) for at in range(turns[home])]
    assert len(found.turned) == len(found.seen.turns) == sum(turns.values())
    assert found.seen.failed == 0
    assert said == ["all 4 replayed conversations done"]
