"""A server with several data-parallel engines is told which is to run a session's turn."""

import json
import time
import urllib.request
from pathlib import Path
from typing import Any

import pytest

from gateway.telemetry.vllm_metrics import read_vllm_metrics
from scripted_engine.process import EngineOptions, ScriptedEngine
from tests.engines import MODEL
from tests.gateways import running_gateway
from tests.server.bench import Message, eventually, post

TWO = b"".join(b'vllm:num_requests_running{engine="%d",model_name="m"} 0.0\n' % rank for rank in range(2))


def told(request: Message) -> bytes | None:
    found: bytes | None = request.get(b"x-data-parallel-rank")
    return found


def of(session: bytes) -> bytes:
    return b"X-Turnpike-Session: %s\r\n" % session


@pytest.mark.parametrize("metrics", [TWO, b""], ids=["two ranks", "one"])
async def test_a_sessions_turns_go_to_the_same_rank(start: Any, metrics: bytes) -> None:
    bench = await start(upstream={"engine_period_s": 0.05})
    bench.backend.metrics = metrics
    if metrics:
        ranks = bench.brain.ranks
        await eventually(lambda: bool(ranks.sessions))
    for session in (b"a", b"b", b"a", b"b"):
        assert (await bench.ask(post(headers=of(session)))).status == 200
    said = [told(request) for request in bench.backend.seen]
    assert said == ([b"0", b"1", b"0", b"1"] if metrics else [None] * 4)


async def test_a_client_may_choose_the_rank_itself(start: Any) -> None:
    bench = await start(upstream={"engine_period_s": 0.05})
    bench.backend.metrics = TWO
    await eventually(lambda: bool(bench.brain.ranks.sessions))
    await bench.ask(post(headers=of(b"a") + b"X-Data-Parallel-Rank: 1\r\n"))
    (seen,) = bench.backend.seen
    assert told(seen) == b"1" and seen.head.lower().count(b"x-data-parallel-rank") == 1


@pytest.mark.nightly
@pytest.mark.engine
@pytest.mark.timeout(600)
def test_a_real_servers_ranks_find_what_their_sessions_left(tmp_path: Path) -> None:
    """Three sessions of three turns, two of them on the first of two engines: each turn finds the one before.
    By itself the server would take its engines in turn: each next turn would go to the other one."""
    options = EngineOptions(served_model_names=(MODEL,), extra_args=("--data-parallel-size", "2"))
    engine = ScriptedEngine({"scripts": {}}, options)
    try:
        engine.launch()
        engine.wait_healthy(400)
        with running_gateway([engine.url], tmp_path / "gateway") as port:
            time.sleep(2.5)  # until the engines' metrics have been read
            for turn in range(3):
                for session in range(3):
                    _ask(port, f"s{session}", " ".join(f"{session}-{at}" for at in range(200 * (turn + 1))))
        with urllib.request.urlopen(engine.url + "/metrics") as said:
            text = said.read().decode()
    finally:
        engine.stop()
    told = read_vllm_metrics(text)
    assert told.ranks == 2
    prompts = [float(line.split()[-1]) for line in text.splitlines() if line.startswith(_PROMPTS)]
    assert prompts[0] == pytest.approx(2 * prompts[1], rel=0.1)
    assert (told.prefix_hit or 0) > 0.4 * prompts[0], "of 6 parts of a prompt 3 were there"


_PROMPTS = "vllm:prompt_tokens_total{"


def _ask(port: int, session: str, prompt: str) -> None:
    said = {"model": MODEL, "max_tokens": 2, "messages": [{"role": "user", "content": prompt}]}
    headers = {"content-type": "application/json", "x-turnpike-session": session}
    url = f"http://127.0.0.1:{port}/v1/chat/completions"
    with urllib.request.urlopen(
        urllib.request.Request(url, json.dumps(said).encode(), headers), timeout=240
    ) as got:
        assert got.status == 200
