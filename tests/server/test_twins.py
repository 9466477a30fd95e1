"""Two busy gateways before a real Redis that give sessions of their own the very same."""

from functools import partial
from typing import Any

import pytest

from gateway.shared_state.fleet_secret import SEAL_BYTES
from tests.server.bench import Bench, completion, eventually, sends
from tests.server.test_several_gateways import chat, peers_of, session_of
from tests.shared_state.servers import RedisServer
from tests.workflow.world import call, result, said, user

pytestmark = pytest.mark.slow


@pytest.fixture
async def busy(start, tmp_path):
    redis = RedisServer(tmp_path).start()
    shared = {"url": redis.url, "deadline_ms": 1000}
    server = {"reuse_port": True}  # sessions begin where they come in
    benches = [await start(fleet_secret=b"s" * 32, shared=shared, server=server) for _ in range(2)]
    await eventually(lambda: all([p.is_busy for p in peers_of(b).alive.values()] == [True] for b in benches))
    yield benches, redis
    redis.kill()


async def ask(bench: Bench, among: list[Bench], messages: list[Any], reply: dict[str, Any]) -> str:
    for each in among:
        each.backend.script = sends(completion(reply))
    response = await bench.ask(chat(*messages))
    assert response.status == 200 and response.json()["choices"][0]["message"] == reply
    return session_of(response)


def has_heard(bench: Bench) -> bool:
    return len(bench.brain.sessions.sessions._twins) == 2


def marks_of(redis: RedisServer) -> int:
    with redis.admin() as admin:
        names = admin.keys("turnpike:1:e:*")
        return sum(value[1 + SEAL_BYTES :].startswith(b"?") for value in admin.mget(names)) if names else 0


async def test_what_both_gave_proves_nothing_at_either_and_what_one_gave_does_everywhere(busy):
    gateways, redis = busy
    one, other = gateways
    made = said("Step 1.", call("call_twin_aaaaaaaaaaaa"))
    first, second = [user("Twin")], [user("Twin"), made, result("call_twin_aaaaaaaaaaaa")]
    alone = said("Step 1.", call("call_alone_aaaaaaaaaaa"))
    third = [user("Alone"), alone, result("call_alone_aaaaaaaaaaa")]

    earlier, later = await ask(one, gateways, first, made), await ask(other, gateways, first, made)
    unique = await ask(one, gateways, [user("Alone")], alone)
    assert len({earlier, later, unique}) == 3
    await eventually(lambda: marks_of(redis) == 2)
    for each in gateways:  # who was first hears of it from who was second
        await eventually(partial(has_heard, each))
    done = said("Done.")
    joined = [await ask(each, gateways, second, done) for each in gateways]
    assert not {*joined} & {earlier, later, unique}
    assert await ask(other, gateways, third, done) == unique
