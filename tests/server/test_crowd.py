"""Two hundred clients that come and go as they please: the books balance."""

import asyncio
import random

from tests.server.bench import CHAT_ANSWER, DELTA, DONE, STREAM_HEAD, Bench, Exchange, answer, chunk, post


class Moody:
    """A backend's script: whole answers, streams, resets before and within them."""

    def __init__(self, rng: random.Random) -> None:
        self._rng = rng

    async def __call__(self, exchange: Exchange) -> None:
        rng = self._rng
        mood = rng.random()
        if mood < 0.05:
            exchange.reset()
        elif mood < 0.4:
            await asyncio.sleep(rng.random() * 0.02)
            await exchange.send(answer())
        else:
            await exchange.send(STREAM_HEAD)
            for _ in range(rng.randrange(1, 8)):
                await exchange.send(chunk(DELTA))
                await asyncio.sleep(rng.random() * 0.01)
            if mood < 0.5:
                exchange.reset()
            else:
                await exchange.send(chunk(DONE) + b"0\r\n\r\n")


async def visit(bench: Bench, rng: random.Random, statuses: dict[int, int]) -> None:
    """A client that may send half a request, or three more, and may leave at any moment."""
    client = await bench.connect()
    for _ in range(rng.randrange(1, 4)):
        request = post()
        whim = rng.random()
        if whim < 0.1:
            request = request[: rng.randrange(len(request))]
        elif whim < 0.15:
            request += post() * 3
        client.send(request)
        if whim < 0.1 or rng.random() < 0.4:
            await asyncio.sleep(rng.random() * 0.05)
            break
        try:
            response = await client.receive()
        except (OSError, EOFError):
            break
        statuses[response.status] = statuses.get(response.status, 0) + 1
        if not response.is_whole:
            break
        assert response.status != 200 or response.body == CHAT_ANSWER or response.body.endswith(DONE)
    (client.reset if rng.random() < 0.5 else client.close)()


async def test_random_departures(start):
    rng = random.Random(20260101)
    bench = await start(replicas=2, admission={"max_running_per_replica": 20})
    for backend in bench.backends:
        backend.script = Moody(rng)
    statuses: dict[int, int] = {}
    await asyncio.gather(*(visit(bench, rng, statuses) for _ in range(200)))
    assert statuses[200] > 50
    assert set(statuses) <= {200, 502}, statuses
