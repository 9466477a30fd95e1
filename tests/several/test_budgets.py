"""Two real gateways on a real Redis: what a tenant may use is counted once, whoever takes its turns."""

import asyncio
import json
import signal
from typing import Any

import pytest

from gateway.shared_state.redis_store import PREFIX
from tests.server.bench import Client, post
from tests.several.fleet import Fleet, GatewayProcess, comes_true, is_metric, running_fleet
from tests.several.test_runs import TENANTS, bearer

pytestmark = [pytest.mark.heavy, pytest.mark.slow]

USED = 120
"""Tokens of each turn, as the engines report."""
AT_ONCE = 30
"""Both gateways decide at a time, and on a busy machine, too, the store answers each within its deadline: a
reservation that it does not answer counts all the same."""
OF_TURNS = '[[bounds]]\nname = "turns"\nscope = "tenant"\nperiod = "month"\nturns = 60\n'
OF_TOKENS = f'[[bounds]]\nname = "tokens"\nscope = "tenant"\nperiod = "day"\ntokens = {40 * USED}\n'


async def ask(fleet: Fleet, at: int, task: str, tenant: str = "red", messages: Any = None) -> int:
    messages = messages or [{"role": "user", "content": f"{task}: go"}]
    body = json.dumps({"model": "m", "messages": messages}).encode()
    client = Client(*await asyncio.open_connection("127.0.0.1", fleet.gateways[at].port))
    try:
        headers = bearer(tenant) + b"x-turnpike-session: %s\r\n" % task.encode()
        return (await client.ask(post(body, headers=headers))).status
    finally:
        client.close()


def in_redis(fleet: Fleet) -> list[float]:
    with fleet.redis.admin() as admin:
        (key,) = admin.keys(PREFIX + b"n:*")
        row = admin.hgetall(key)
    return [float(row[b"%d" % number]) for number in (1, 2, 3)]


async def settled(fleet: Fleet, turns: int) -> None:

    async def is_told() -> bool:
        with fleet.redis.admin() as admin:
            rows = [admin.hgetall(key) for key in admin.keys(PREFIX + b"n:*")]
        return all(float(row[b"1"]) == turns for row in rows) and bool(rows)

    await comes_true(is_told, 10.0)


async def test_of_many_turns_at_once_no_more_run_than_are_allowed(tmp_path):
    async with running_fleet(tmp_path, settings=TENANTS + OF_TURNS, deadline_ms=1000) as fleet:
        # Sessions begin at both gateways, and so each decides about some of them.
        room = asyncio.Semaphore(AT_ONCE)

        async def ask_one(number: int) -> int:
            async with room:
                return await ask(fleet, number % 2, f"task-{number}")

        statuses = await asyncio.gather(*map(ask_one, range(150)))
        assert statuses.count(200) == 60 and statuses.count(403) == 90
        served = [each.agent for each in fleet.engines.served]
        assert len(served) == 60
        await settled(fleet, 60)

        async def each_has_some() -> bool:
            return min([await each.metric("turns_total") for each in fleet.gateways]) > 5

        await comes_true(each_has_some, 10.0)
        assert await ask(fleet, 0, "blue-task", "blue") == 200, "another tenant's is its own"


async def test_tokens_exceed_their_bound_by_no_more_than_ran_at_a_time(tmp_path):
    async with running_fleet(tmp_path, settings=TENANTS + OF_TOKENS, deadline_ms=1000) as fleet:
        at_a_time = asyncio.Semaphore(8)

        async def one(number: int) -> int:
            async with at_a_time:
                return await ask(fleet, number % 2, f"task-{number}")

        statuses = await asyncio.gather(*(one(number) for number in range(120)))
        served = statuses.count(200)
        assert len(fleet.engines.served) == served
        assert served * USED <= 40 * USED + 8 * USED
        assert served >= 32, "what is reserved is given back"
        await settled(fleet, served)
        assert in_redis(fleet)[1] == served * USED


async def test_a_gateway_that_is_killed_takes_nothing_with_it(tmp_path):
    async with running_fleet(tmp_path, settings=TENANTS + OF_TURNS, deadline_ms=1000) as fleet:
        assert [await ask(fleet, n % 2, f"task-{n}") for n in range(50)] == [200] * 50
        fleet.gateways[1].kill()
        await comes_true(lambda: is_metric(fleet.gateways[0], "peers_alive", 0), 10.0)
        statuses = [await ask(fleet, 0, f"more-{n}") for n in range(20)]
        assert statuses == [200] * 10 + [403] * 10


async def test_while_redis_is_away_each_counts_what_it_knows_and_tells_later(tmp_path):
    async with running_fleet(tmp_path, settings=TENANTS + OF_TURNS, deadline_ms=1000) as fleet:
        assert [await ask(fleet, n % 2, f"task-{n}") for n in range(20)] == [200] * 20
        fleet.redis.send(signal.SIGSTOP)
        statuses = [await ask(fleet, n % 2, f"away-{n}") for n in range(20)]
        assert statuses == [200] * 20, "a store that is away stops nobody"
        fleet.redis.send(signal.SIGCONT)

        async def is_told() -> bool:
            return in_redis(fleet)[0] >= 40

        await comes_true(is_told, 20.0)
        total = in_redis(fleet)[0]
        assert total <= 40 + 6, "a call whose answer was lost may count twice"


async def test_a_redis_that_came_back_empty_is_told_what_was_used(tmp_path):
    async with running_fleet(tmp_path, settings=TENANTS + OF_TURNS, deadline_ms=1000) as fleet:
        assert [await ask(fleet, 0, f"task-{n}") for n in range(50)] == [200] * 50
        with fleet.redis.admin() as admin:
            admin.delete(*admin.keys(PREFIX + b"n:*"))
        # Each knows the sum as of the last turn that it took itself.
        statuses = [await ask(fleet, 0, f"more-{n}") for n in range(30)]
        assert 10 <= statuses.count(200) <= 15 and statuses[-1] == 403


async def test_workers_of_one_gateway_share_a_budget_and_keep_it_over_a_restart(tmp_path):
    server = "shutdown_delay_s = 0\nworkers = 2\n"
    bound = '[[bounds]]\nname = "b"\nscope = "tenant"\nperiod = "month"\nturns = 30\n'
    async with running_fleet(
        tmp_path, gateways=0, server=server, settings=TENANTS + bound, deadline_ms=1000
    ) as fleet:
        gateway = GatewayProcess(tmp_path, "workers", fleet.settings)
        fleet.gateways.append(gateway)
        await fleet.start(gateway)
        statuses = await asyncio.gather(*(ask(fleet, 0, f"task-{n}") for n in range(25)))
        assert statuses == [200] * 25
        await gateway.end()
        await fleet.start(gateway)
        statuses = await asyncio.gather(*(ask(fleet, 0, f"more-{n}") for n in range(20)))
        assert sorted(statuses) == [200] * 5 + [403] * 15


async def test_a_session_that_was_stopped_stays_so_when_its_gateway_is_killed(tmp_path):
    async with running_fleet(tmp_path) as fleet:
        agent = fleet.agent("wild", headers=b"x-turnpike-session: wild\r\n")
        await agent.run(turns=3)
        (session,) = agent.sessions
        stops = [
            await each.post(f"/turnpike/sessions/{session}/stop", {"for_s": 600}) for each in fleet.gateways
        ]
        assert sorted(stops) == [200, 404], "one of them has it"
        home = fleet.gateways[stops.index(200)]
        (other,) = [number for number, each in enumerate(fleet.gateways) if each is not home]
        assert await ask(fleet, other, "wild", messages=agent.messages) == 403
        await asyncio.sleep(0.1)
        home.kill()
        await comes_true(lambda: is_metric(fleet.gateways[other], "peers_alive", 0), 10.0)
        assert await ask(fleet, other, "wild", messages=agent.messages) == 403
        await comes_true(lambda: is_metric(fleet.gateways[other], "sessions_adopted_total", 1), 5.0)
