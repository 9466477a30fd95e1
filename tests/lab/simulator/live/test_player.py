"""Sessions are played as they stand in the workload; what happened is told as a simulation tells it."""

import asyncio

import aiohttp
import msgspec
import pytest

from gateway.__main__ import main
from lab.simulator.driver import ClientConfig
from lab.simulator.live.endpoint import Endpoint, TurnedAwayError
from lab.simulator.live.player import play
from lab.simulator.results import Ignore
from lab.workload.trace.format import Session, Thread, Tool, Turn, TurnRef
from tests import virtual_time
from tests.lab.simulator.live.server import Server, running
from tests.lab.simulator.worlds import Recorder


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
