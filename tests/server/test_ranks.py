"""A server with several data-parallel engines is told which is to run a session's turn."""

from typing import Any

import pytest

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
        ranks = bench.brain.gate.ranks
        await eventually(lambda: bool(ranks._sessions))
    for session in (b"a", b"b", b"a", b"b"):
        assert (await bench.ask(post(headers=of(session)))).status == 200
    said = [told(request) for request in bench.backend.seen]
    assert said == ([b"0", b"1", b"0", b"1"] if metrics else [None] * 4)


async def test_a_client_may_choose_the_rank_itself(start: Any) -> None:
    bench = await start(upstream={"engine_period_s": 0.05})
    bench.backend.metrics = TWO
    await eventually(lambda: bool(bench.brain.gate.ranks._sessions))
    await bench.ask(post(headers=of(b"a") + b"X-Data-Parallel-Rank: 1\r\n"))
    (seen,) = bench.backend.seen
    assert told(seen) == b"1" and seen.head.lower().count(b"x-data-parallel-rank") == 1
