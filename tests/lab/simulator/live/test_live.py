"""Sessions played at real servers: their prompts, their agents, and what is told of it."""

import asyncio
import json

import aiohttp
import msgspec
import pytest
from aiohttp import web
from aiohttp.test_utils import TestServer

from gateway.__main__ import main
from lab.simulator.driver import ClientConfig
from lab.simulator.live.chat_agents import NAMED_BY, ChatAgents, Talk, Turned, scripts, talk
from lab.simulator.live.endpoint import Endpoint, Question, TurnedAwayError
from lab.simulator.live.player import play
from lab.simulator.live.prompts import TOKEN_IDS, Prompts
from lab.simulator.results import Ignore
from lab.workload.trace.format import Session, Thread, Tool, Turn, TurnRef
from scripted_engine import script
from tests import virtual_time
from tests.lab.simulator.live.server import Server, running
from tests.lab.simulator.worlds import Recorder

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


def one(**fields) -> Session:
    first = Turn(input_tokens=20, output_tokens=4, tools=(Tool(name="a", duration_s=0.2), Tool(name="b")))
    second = Turn(input_tokens=30, output_tokens=2, prefix_of=TurnRef(0, 0), prefix_tokens=24, pause_s=0.1)
    return Session(**{"id": "one", "threads": (Thread(turns=(first, second)),), **fields})


async def played(server: Server, *sessions: Session, retries: int = 10) -> Recorder:
    kept = Recorder()
    async with running(server) as url, aiohttp.ClientSession() as client:
        await play(sessions, Endpoint(client, url, "m"), kept, client=ClientConfig(max_retries=retries))
    return kept


def test_a_session():
    server = Server(takes_s=0.05)
    kept = virtual_time.run(played(server, one(arrival_s=0.1)))
    first, second = kept.turns
    assert [len(asked["prompt"]) for asked in server.asked] == [20, 30]
    assert server.asked[1]["prompt"][:24] == [*server.asked[0]["prompt"], 1000, 1001, 1002, 1003]
    assert [asked["max_tokens"] for asked in server.asked] == [4, 2]
    assert (server.sessions, server.finals) == (["one", "one"], [False, True])
    assert first.arrival_s == pytest.approx(0.1)
    assert first.first_token_s - first.arrival_s == pytest.approx(0.05)
    assert second.arrival_s - first.end_s == pytest.approx(0.3), "the slower tool, then the pause"
    assert (first.replica, first.cached_tokens, first.output_tokens) == ("r", 3, 4)
    assert first.waited_s == pytest.approx(0.007)
    (over,) = kept.sessions
    assert (over.turns, over.failed, over.end_s) == (2, False, second.end_s)
    assert over.final_first_token_s == second.first_token_s


async def test_a_sub_agent_is_waited_for_unless_it_was_sent_off():
    sub = Thread(turns=(Turn(input_tokens=9, output_tokens=1, pause_s=0.2),))
    for is_detached in (False, True):
        call = Tool(name="agent", starts_thread=1, is_detached=is_detached)
        turns = (
            Turn(input_tokens=20, output_tokens=1, tools=(call,)),
            Turn(input_tokens=30, output_tokens=1),
        )
        kept = await played(Server(), one(threads=(Thread(turns=turns), sub)))
        assert [turn.thread for turn in kept.turns] == ([0, 0, 1] if is_detached else [0, 1, 0])
        assert kept.sessions[0].turns == 3


async def test_tools_do_what_they_are_told_and_are_waited_for():
    done: list[str] = []

    async def work(tool: Tool) -> None:
        await asyncio.sleep(0.01)
        done.append(f"{tool.name}, {len(server.asked)} asked")

    server = Server()
    async with running(server) as url, aiohttp.ClientSession() as client:
        await play([one()], Endpoint(client, url, "m"), Ignore(), work=work)
    assert done == ["a, 1 asked", "b, 1 asked"] and len(server.asked) == 2


async def test_who_is_turned_away_comes_back():
    kept = await played(Server(refusals=2), one())
    assert kept.turns[0].refusals == 2 and kept.turns[0].waited_s > 0.02
    assert not kept.sessions[0].failed


async def test_who_is_turned_away_too_often_gives_up():
    kept = await played(Server(refusals=3), one(), retries=1)
    assert kept.sessions[0].failed and not kept.turns


async def test_a_request_that_is_wrong_ends_it_all():
    with pytest.raises(TurnedAwayError, match="400: not you"):
        await played(Server(refusals=1, status=400), one())


def test_the_command(tmp_path, capsys, monkeypatch):
    file = tmp_path / "w.jsonl"
    lines = [{"turnpike_workload": 1, "name": "w", "sources": [], "seed": None}, one()]
    file.write_bytes(b"\n".join(map(msgspec.json.encode, lines)))
    assert main(["play", str(file), "--url", "http://127.0.0.1:9", "--model", "m", "--max-retries", "0"]) == 1
    assert "completion_mean_s" in capsys.readouterr().out
    assert main(["play", str(file), "--url", "http://x", "--model", "m", "--key-file", "/none"]) == 1
    assert "api_key_file" in capsys.readouterr().err


FIRST, SECOND = TurnRef(0, 0), TurnRef(0, 1)


def session(name: str, **second) -> Session:
    turns = (Turn(input_tokens=40, output_tokens=5), Turn(input_tokens=60, output_tokens=5, **second))
    return Session(id=name, threads=(Thread(turns=turns, shared_key="agent", shared_tokens=30),))


def test_a_prompt_goes_on_where_the_answer_ended():
    prompts, one = Prompts(), session("one", prefix_of=FIRST, prefix_tokens=45)
    first = prompts.prompt(one, FIRST)
    assert len(first) == 40 and set(first) <= set(TOKEN_IDS)
    prompts.answered(one, FIRST, first, [1, 2, 3, 4, 5])
    second = prompts.prompt(one, SECOND)
    assert second[:45] == [*first, 1, 2, 3, 4, 5] and len(second) == 60


def test_what_is_shared_is_the_same_everywhere_and_nothing_else_is():
    prompts, others = Prompts(), Prompts()
    one, two = prompts.prompt(session("one"), FIRST), others.prompt(session("two"), FIRST)
    assert one[:30] == two[:30] and one[30:] != two[30:]
    assert one == others.prompt(session("one"), FIRST)


def test_nothing_is_kept_of_what_is_over():
    prompts, one = Prompts(), session("one")
    prompts.answered(one, FIRST, prompts.prompt(one, FIRST), [])
    assert len(prompts) == 1
    prompts.forget("one")
    assert len(prompts) == 0
