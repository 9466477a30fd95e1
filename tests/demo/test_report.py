"""The demo's parts: stripping, the hop, truth beside inference, and both sides beside each other."""

import asyncio
import json
from contextlib import asynccontextmanager
from pathlib import Path

import aiohttp
import pytest
from aiohttp import web
from aiohttp.test_utils import TestServer

from benchmarks.live import Completions
from demo import printing, records, report
from demo.agents import CLAUDE_CODE, MINI_SWE_AGENT
from demo.comparison import Comparison
from demo.hop import Exchange, Hop
from demo.identity import strip_body
from demo.records import Held
from demo.replay import Played
from demo.runs import AgentRun, Plan
from demo.sides import Counts, Side
from demo.telemetry import EngineTelemetry
from gateway.domain.decision import WaitReason
from lab.simulator.live.chat_agents import Turned
from tests.lab.simulator.measures import outcomes

COUNTERS = {"hints": {"followed": 9}, "holds": {"held": 4}, "releases": {"returned": 3}}
ENGINES = EngineTelemetry()
ENGINES.take({"engine": {"blocks": {"total": 4095, "retained": 70}, "counters": COUNTERS}})


def exchange(session, at_s=10.0, *, offers_tools=True, source="call-id", method="POST"):
    return Exchange(
        method=method,
        path="/v1/x",
        offers_tools=offers_tools,
        sent_at_s=at_s,
        answered_at_s=at_s + 0.5 if offers_tools else None,
        status=200,
        session=session,
        source=source,
        replica="r-1",
    )


def run(name, agent, exchanges, *, strip=False, is_done=True):
    return AgentRun(
        plan=Plan(name=name, agent=agent, strip=strip),
        exit_code=0,
        is_edited=is_done,
        does_test_pass=is_done,
        log=Path("log"),
        exchanges=exchanges,
    )


def turn(session, number, at_s):
    """What the gateway says of one turn, as it would stand in the file."""
    common = {"turn": f"{session}-{number}", "session": session}
    arrival = {"tenant": "t", "protocol": "chat", "model": "m", "source": "new", "confidence": 1.0}
    counts = {"body_bytes": 1, "message_count": 1, "tool_count": 1}
    end = {"replica": "r-1", "outcome": "finished", "status": 200, "finish_reason": "stop"}
    usage = {"prompt_tokens": 100, "cached_tokens": 40, "output_tokens": 5}
    return [
        {"type": "turn_arrive", "at_s": at_s, **common, **arrival, **counts},
        {"type": "gpu_end", "at_s": at_s + 0.49, **common, **end, "usage": usage, "duration_ms": 490.0},
    ]


@pytest.fixture
def stream(tmp_path):
    phase = {"type": "tool_end", "at_s": 10.9, "session": "s-1", "turn": "s-1-2", "duration_ms": 400.0}
    phase["names"] = ["bash"]
    lines = [*turn("s-1", 1, 10.002), phase, *turn("s-1", 2, 11.002), *turn("s-2", 1, 10.001)]
    path = tmp_path / "stream.jsonl"
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    return records.read(path)


@pytest.fixture
def runs():
    first = run("mini-1", MINI_SWE_AGENT, [exchange("s-1", 10.0, source="new"), exchange("s-1", 11.0)])
    title = exchange("s-9", 9.0, offers_tools=False)
    head = exchange(None, 9.0, method="HEAD", offers_tools=False)
    return [first, run("claude-2", CLAUDE_CODE, [head, title, exchange("s-2", 10.0)], strip=True)]


def test_every_run_one_session_is_good(runs, stream):
    made = report.make(runs, stream, ENGINES)
    assert made.is_good
    first, second = made.rows
    assert (first.identity, first.recognised_by) == ("none", "new, call-id")
    assert (first.turns, first.tool_phases) == (2, 1)
    assert (first.prompt_tokens, first.cached_tokens, first.tool_s) == (200, 80, 0.4)
    assert (second.identity, second.sessions, second.is_recognised) == ("stripped", 1, True)
    assert made.side_requests == 1
    assert made.added_ms == pytest.approx([10.0, 10.0, 10.0])


def test_a_run_taken_for_two_sessions_is_wrong(runs, stream):
    runs[0].exchanges[1].session = "s-3"
    made = report.make(runs, stream, ENGINES)
    assert [row.is_recognised for row in made.rows] == [False, True]
    assert not made.is_good
    assert "2 WRONG" in printing.as_text(made)


def test_a_body_without_identity_keeps_its_very_bytes():
    body = b'{ "model" : "m", "metadata": {"k": 1}, "messages":[] }'
    assert strip_body(body) == (body, [])
    assert strip_body(b"not json") == (b"not json", [])
    assert strip_body(b'["a"]') == (b'["a"]', [])
    assert strip_body(b"") == (b"", [])


def test_only_the_identity_is_taken_out_of_a_body():
    body = {
        "model": "m",
        "prompt_cache_key": None,
        "metadata": {"user_id": "u", "kept": 1},
        "client_metadata": {"session_id": "s"},
        "vllm_xargs": {"agentic_context": "{}", "other": 2},
        "input": [{"call_id": "call_1"}],
        "previous_response_id": "resp_1",
    }
    stripped, taken = strip_body(json.dumps(body).encode())
    assert json.loads(stripped) == {
        "model": "m",
        "metadata": {"kept": 1},
        "vllm_xargs": {"other": 2},
        "input": [{"call_id": "call_1"}],
        "previous_response_id": "resp_1",
    }
    assert taken == ["prompt_cache_key", "client_metadata", "metadata.user_id", "vllm_xargs.agentic_context"]


def outcome(session, at_s, *, waited_s=0.0, first_s, end_s):
    return outcomes.turn(
        session, arrival_s=at_s, waited_s=waited_s, began_s=at_s + waited_s, first_token_s=at_s + first_s,
        end_s=end_s, cached_tokens=64,
    )  # fmt: skip


def side(turns, *, turned=(), is_done=True, strangers=0.0, agent_s=10.0, **counts):
    seen = Completions()
    for turn in turns:
        seen.turn_done(turn)
        seen.session_done(
            outcomes.session(turn.session, arrival_s=turn.arrival_s, end_s=turn.end_s, isolated_s=0.0)
        )
    agent = AgentRun(
        plan=Plan(name="mini-1", agent=MINI_SWE_AGENT, strip=False),
        exit_code=0 if is_done else 1,
        duration_s=agent_s,
        is_edited=True,
        does_test_pass=True,
        log=Path("log"),
    )
    counted = {"prompt_tokens": 1000, "cached_tokens": 500, "queued_s": 7.0, "preemptions": 0} | counts
    return Side(
        took_s=max(turn.end_s for turn in turns),
        agents=[agent],
        played=Played(seen=seen, turned=list(turned)),
        counts=Counts(**counted),
        strangers=strangers,
    )


@pytest.fixture
def compared():
    """Turnpike is done earlier, but one first token comes late: it waited at the gateway."""
    stock = side(
        [outcome("a", 0.0, first_s=1.0, end_s=30.0), outcome("b", 1.0, first_s=2.0, end_s=41.0)],
        turned=[Turned("a", 1, 100, 32, 95), Turned("b", 1, 100, 64, 95)],
    )
    ours = side(
        [
            outcome("a", 0.0, first_s=0.5, end_s=10.0),
            outcome("b", 1.0, waited_s=8.0, first_s=9.0, end_s=21.0),
        ],
        turned=[Turned("a", 1, 100, 64, 95), Turned("b", 1, 100, 96, 95)],
        cached_tokens=800,
        agent_s=9.9,
        queued_s=0.0,
    )
    held = {WaitReason.KV_FULL: Held(sessions=1, seconds=8.0)}
    return Comparison(stock=stock, ours=ours, held=held, kv_tokens=64_000, peak_tokens=90_000)


def test_each_figure_is_counted(compared):
    found = {each.name: (each.stock, each.ours, each.verdict) for each in compared.measures}
    assert found == {
        "a conversation, mean": (35.0, 15.0, "better"),
        "a conversation, 90th percentile": (40.0, 20.0, "better"),
        "a real agent, mean": (10.0, 9.9, "same"),
        "everybody done after": (41.0, 21.0, "better"),
        "first token, mean": (1.5, 4.75, "worse"),
        "first token, median": (1.0, 0.5, "better"),
        "first token, 99th percentile": (2.0, 9.0, "worse"),
        "prompt tokens found in the prefix cache": (0.5, 0.8, "better"),
        "prompt tokens computed": (500, 200, "better"),
        "conversations' tokens computed again": (32, 0, "better"),
        "preemptions": (0, 0, "same"),
        "waited in the engines' queues, in all": (7.0, 0.0, ""),
        "waited at the gateway, in all": (0.0, 8.0, ""),
    }


def test_whoever_was_not_served_makes_it_bad(compared):
    assert compared.is_done
    turns = [outcome("a", 0.0, first_s=1.0, end_s=30.0)]
    lost = side(turns, is_done=False)
    assert not Comparison(stock=lost, ours=compared.ours, held={}, kv_tokens=1, peak_tokens=1).is_done


BODY = b'{ "messages": [], "tools": [1], "session_id": "mine" }'
EVENTS = [b"data: 1\n\n", b"data: 2\n\n"]
RECEIPT = {"x-turnpike-session": "s-1", "x-turnpike-source": "call-id", "x-turnpike-queue-ms": "1.5"}


class Upstream:
    """Answers with two events, the second only when told to go on."""

    def __init__(self):
        self.requests = []
        self.go_on = asyncio.Event()
        self.breaks_off = False

    async def handle(self, request):
        self.requests.append((request.method, request.raw_path, dict(request.headers), await request.read()))
        reply = web.StreamResponse(headers={"content-type": "text/event-stream", **RECEIPT})
        await reply.prepare(request)
        if request.method == "HEAD":
            return reply
        await reply.write(EVENTS[0])
        await self.go_on.wait()
        if self.breaks_off:
            request.transport.abort()
            return reply
        await reply.write(EVENTS[1])
        return reply

    @asynccontextmanager
    async def serving(self):
        app = web.Application()
        app.router.add_route("*", "/{path:.*}", self.handle)
        async with TestServer(app) as listening:
            yield f"http://127.0.0.1:{listening.port}"


@pytest.fixture
async def upstream():
    return Upstream()


@pytest.fixture
async def client():
    async with aiohttp.ClientSession() as session:
        yield session


async def test_a_stream_passes_as_it_comes_and_its_receipt_is_kept(upstream, client):
    async with upstream.serving() as url, Hop(url, strip=False) as hop:
        headers = {"Session-Id": "mine", "Content-Type": "application/json"}
        async with client.post(f"{hop.base_url}/v1/x%2Fy?beta=true", data=BODY, headers=headers) as answer:
            assert await answer.content.readany() == EVENTS[0]
            upstream.go_on.set()
            assert await answer.content.read() == EVENTS[1]
    [(method, path, sent, body)] = upstream.requests
    assert (method, path, body) == ("POST", "/v1/x%2Fy?beta=true", BODY)
    assert sent["Session-Id"] == "mine"
    assert sent["Host"] == url.removeprefix("http://")
    [exchange] = hop.exchanges
    assert (exchange.session, exchange.source, exchange.queue_ms) == ("s-1", "call-id", 1.5)
    assert (exchange.offers_tools, exchange.status, exchange.taken) == (True, 200, [])
    assert exchange.answered_at_s is not None


async def test_a_stripping_hop_takes_identity_out_and_says_what_it_took(upstream, client):
    upstream.go_on.set()
    async with upstream.serving() as url, Hop(url, strip=True) as hop:
        headers = {"Session-Id": "mine", "Content-Type": "application/json"}
        async with client.post(f"{hop.base_url}/v1/chat/completions", data=BODY, headers=headers) as answer:
            assert await answer.read() == b"".join(EVENTS)
    [(_, _, sent, body)] = upstream.requests
    assert "Session-Id" not in sent
    assert json.loads(body) == {"messages": [], "tools": [1]}
    assert hop.exchanges[0].taken == ["session-id", "session_id"]


async def test_an_answer_that_breaks_off_breaks_off_for_the_agent_too(upstream, client):
    upstream.breaks_off = True
    async with upstream.serving() as url, Hop(url, strip=False) as hop:
        answer = await client.post(f"{hop.base_url}/v1/responses", data=BODY)
        assert await answer.content.readany() == EVENTS[0]
        upstream.go_on.set()
        with pytest.raises(aiohttp.ClientError):
            await answer.content.read()
        answer.close()
    assert hop.exchanges[0].answered_at_s is None


async def test_an_agent_that_leaves_takes_the_request_with_it(upstream, client):
    async with upstream.serving() as url, Hop(url, strip=False) as hop:
        answer = await client.post(f"{hop.base_url}/v1/responses", data=BODY)
        await answer.content.readany()
        answer.close()
        upstream.go_on.set()
    assert hop.exchanges[0].answered_at_s is None
