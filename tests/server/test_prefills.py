"""Prefills on real sockets: engines that fail, stop or die meanwhile, and what is not kept for them."""

import asyncio
import json

import pytest

from tests.server.bench import Exchange, answer, eventually, hangs, post, sends
from tests.server.prefills_bench import ASKS, RESULT, said_plainly, started, turn


@pytest.mark.parametrize(
    "prefill",
    [
        sends(answer(b'{"error":{}}', status=b"400 Bad Request")),
        sends(answer(b'{"error":{}}', status=b"500 Internal Server Error")),
        sends(b"", then="reset"),
        sends(b"HTTP/1.1 200 OK\r\nContent-Length: 99\r\n\r\n{", then="close"),
        sends(answer(b'{"choices":[]}')),
        sends(answer(b"no json")),
    ],
    ids=["refused", "fails", "resets", "breaks off", "says nothing", "says nonsense"],
)
async def test_an_engine_that_does_not_compute_it(start, prefill):
    ahead = await started(start, prefill)
    kept = await ahead.pauses(turn(ASKS))
    assert await ahead.ends(kept) is None
    assert (await ahead.bench.ask(turn(ASKS, said_plainly(), RESULT))).status == 200


async def test_an_answer_that_stops_is_given_up(start):
    begins = sends(b"HTTP/1.1 200 OK\r\nContent-Length: 99\r\n\r\n{", then="hang")
    ahead = await started(start, begins, upstream={"stall_timeout_s": 0.3})
    kept = await ahead.pauses(turn(ASKS))
    assert await ahead.ends(kept) is None and len(ahead.asked) == 1 and ahead.bench.is_quiet()


async def test_an_answer_in_pieces_is_read_to_its_end(start):
    whole = answer()

    async def in_pieces(exchange: Exchange) -> None:
        for at in range(0, len(whole), 50):
            await exchange.send(whole[at : at + 50])
            await asyncio.sleep(0.002)

    ahead = await started(start, in_pieces)
    usage = await ahead.ends(await ahead.pauses(turn(ASKS)))
    assert usage is not None and usage.prompt_tokens == 3


async def test_it_asks_for_the_model_that_its_name_leads_to(start):
    ahead = await started(start, models=({"name": "m", "targets": [{"model": "Qwen/Qwen3-32B"}]},))
    assert await ahead.ends(await ahead.pauses(turn(ASKS))) is not None
    assert ahead.foreseen["model"] == "Qwen/Qwen3-32B"


@pytest.mark.parametrize(
    ("path", "body"),
    [
        (b"/v1/completions", {"model": "m", "prompt": "Find."}),
        (b"/v1/chat/completions", {"model": "m", "messages": [{"role": "user", "content": "x" * (1 << 20)}]}),
    ],
    ids=["a protocol in which nothing is foreseen", "too large"],
)
async def test_what_cannot_be_extended_is_not_kept(start, path, body):
    ahead = await started(start)
    await ahead.pauses(turn(ASKS))
    ahead.bench.backend.script = sends(answer())
    asked = json.dumps(body).encode()
    response = await ahead.bench.ask(post(asked, path=path, headers=b"x-turnpike-session: other\r\n"))
    assert response.status == 200
    [kept] = ahead.prefills.kept._kept.values()
    assert ASKS["content"] in json.loads(kept.request.body)["messages"][-1]["content"]


async def test_what_engines_refuse_is_not_sent_again(start):
    ahead = await started(start, sends(answer(b'{"error":{}}', status=b"400 Bad Request")))
    kept = await ahead.pauses(turn(ASKS))
    await ahead.ends(kept)
    await ahead.ends(kept)
    assert len(ahead.asked) == 1


async def test_an_engine_that_dies_meanwhile(start):
    ahead = await started(start, lambda exchange: exchange.until_left())
    kept = await ahead.pauses(turn(ASKS))
    ahead.begin(kept)
    await eventually(lambda: ahead.asked)
    await ahead.bench.backend.close()
    await eventually(lambda: ahead.ended)
    assert ahead.ended == [(kept.turn, None)] and ahead.bench.is_quiet()


async def test_a_replica_that_is_not_there(start):
    ahead = await started(start)
    assert await ahead.ends(await ahead.pauses(turn(ASKS)), replica="default-9") is None


async def test_who_is_stopped_leaves_at_once(start):
    has_left = asyncio.Event()
    ahead = await started(start, hangs(has_left))
    kept = await ahead.pauses(turn(ASKS))
    ahead.begin(kept)
    await eventually(lambda: ahead.asked)
    ahead.stop(kept)
    async with asyncio.timeout(10):
        await has_left.wait()
    assert ahead.ended == [(kept.turn, None)]
    ahead.stop(kept)  # again, and it is over
    ahead.begin(kept)
    ahead.stop(kept)  # before it could begin
    await eventually(lambda: len(ahead.ended) == 2)
    assert ahead.bench.is_quiet()


async def test_a_gateway_that_drains_and_stops(start):
    ahead = await started(start, lambda exchange: exchange.until_left())
    kept = await ahead.pauses(turn(ASKS))
    ahead.begin(kept)
    await eventually(lambda: ahead.asked)
    await ahead.bench.gateway.leaving.drain()
    assert not ahead.ended, "nobody waits for it"
    await ahead.bench.gateway.stop()
    assert ahead.ended == [(kept.turn, None)]
    ahead.begin(kept)
    await eventually(lambda: len(ahead.ended) == 2)
    assert ahead.ended[1] == (kept.turn, None) and len(ahead.asked) == 1
