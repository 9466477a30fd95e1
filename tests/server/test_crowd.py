"""Two hundred clients that come and go as they please: the books balance."""

import asyncio
import random

from tests.server.bench import CHAT_ANSWER, DELTA, DONE, STREAM_HEAD, Exchange, answer, chunk, post


async def test_random_departures(start, caplog):
    rng = random.Random(20260101)
    bench = await start(
        replicas=2, admission={"max_running_per_replica": 20}, limits={"client_stall_s": 2.0, "linger_s": 0.2}
    )

    async def moody(exchange: Exchange) -> None:
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

    for backend in bench.backends:
        backend.script = moody
    statuses: dict[int, int] = {}

    async def visit() -> None:
        client = await bench.connect()
        for _ in range(rng.randrange(1, 4)):
            request = post()
            whim = rng.random()
            if whim < 0.1:
                request = request[: rng.randrange(len(request))]
            elif whim < 0.15:
                request += post() * 3
            client.send(request)
            if rng.random() < 0.4:
                await asyncio.sleep(rng.random() * 0.05)
                break
            try:
                response = await asyncio.wait_for(client.receive(), 5)
            except (OSError, EOFError, TimeoutError):
                break
            statuses[response.status] = statuses.get(response.status, 0) + 1
            if not response.is_whole:
                break
            assert response.status != 200 or response.body == CHAT_ANSWER or response.body.endswith(DONE)
        (client.reset if rng.random() < 0.5 else client.close)()

    visits = [visit() for _ in range(200)]
    async with asyncio.timeout(30):
        await asyncio.gather(*visits)
    assert statuses[200] > 50
    assert set(statuses) <= {200, 502}, statuses
    assert not [r for r in caplog.records if r.levelname == "ERROR"]
