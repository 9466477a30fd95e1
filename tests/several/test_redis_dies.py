"""Redis is killed, comes back empty, or hangs, while agents work: traffic goes on, gateways meet again."""

import asyncio
import signal
from functools import partial

import pytest
import redis

from tests.several.fleet import (
    Agent,
    Fleet,
    Pace,
    all_go_on,
    at_work,
    comes_true,
    failures_of,
    median_s,
    now,
    running_fleet,
    slowest_s,
)
from tests.shared_state.servers import RedisServer

pytestmark = [pytest.mark.heavy, pytest.mark.slow]

DEADLINE_S = 1.0
BUSY_S = 0.8
"""What a busy machine may add to what turns took before."""


async def test_traffic_goes_on_without_redis_and_gateways_meet_again_when_it_is_back(tmp_path):
    async with running_fleet(tmp_path) as fleet:
        workers = [stated(fleet, f"agent-{number}", streams=number % 2 == 0) for number in range(6)]
        async with at_work(*workers):
            await asyncio.sleep(1.0)
            fleet.redis.kill()
            killed_s = now()
            await asyncio.sleep(2.0)
            await runs_are_one_session(*(stated(fleet, f"without-{number}") for number in range(4)))
            fleet.redis.start()  # empty
            await fleet.know_one_another(fleet.gateways, within_s=5.0)
        assert not failures_of(workers)
        assert [len(agent.sessions) for agent in workers] == [1] * 6
        assert await adopted(fleet) == 0, "nobody was gone"
        before_s = slowest_s(workers, until_s=killed_s)
        assert slowest_s(workers, since_s=killed_s - 1.0) < before_s + DEADLINE_S + BUSY_S
        before = await passed_on(fleet)
        await fleet.another()
        await fleet.know_one_another(fleet.gateways, within_s=5.0)
        await runs_are_one_session(fleet.agent("late-0"), fleet.agent("late-1", streams=True))
        assert await passed_on(fleet) > before, "it has the secret that the others have"


async def test_redis_and_a_gateway_die_together(tmp_path):
    async with running_fleet(tmp_path, gateways=3) as fleet:
        workers = [fleet.agent(f"agent-{number}", streams=number % 2 == 0) for number in range(6)]
        async with at_work(*workers):
            await asyncio.sleep(1.0)
            fleet.redis.kill()
            fleet.gateways[0].kill()
            killed_s = now()
            await asyncio.sleep(2.0)
            fleet.redis.start()
            await fleet.know_one_another(fleet.gateways[1:], within_s=5.0)
            await fleet.start(fleet.gateways[0])
            await fleet.know_one_another(fleet.gateways, within_s=5.0)
            await all_go_on(workers, turns=4)
        assert [agent.lost for agent in workers if agent.lost] == []
        assert set(failures_of(workers)) <= {"refused", "broken", "cut"}
        before_s = slowest_s(workers, until_s=killed_s)
        assert slowest_s(workers, since_s=killed_s) < before_s + DEADLINE_S + 2 * BUSY_S
        await runs_are_one_session(fleet.agent("late-0"), fleet.agent("late-1", streams=True))


async def passed_on(fleet: Fleet) -> float:
    return sum([await each.metric("requests_passed_on_total") for each in fleet.gateways])


async def adopted(fleet: Fleet) -> float:
    return sum([await each.metric("sessions_adopted_total") for each in fleet.gateways])


def stated(fleet: Fleet, name: str, *, streams: bool = False) -> Agent:
    """It names its session, which has a home also where that is busy."""
    return fleet.agent(name, streams=streams, headers=b"x-turnpike-session: %s\r\n" % name.encode())


async def runs_are_one_session(*agents: Agent) -> None:
    await asyncio.gather(*(agent.run(turns=6) for agent in agents))
    assert [len(agent.sessions) for agent in agents] == [1] * len(agents)


async def test_gateways_that_start_without_redis_join_when_it_is_back(tmp_path):
    """The first of them while another one runs, then all of them anew."""
    async with running_fleet(tmp_path) as fleet:
        stays, starts = fleet.gateways
        fleet.redis.kill()
        for restarted in ([starts], [stays, starts]):
            for each in restarted:
                each.kill()
            await fleet.start(*restarted)
            assert all("store_down" in each.log.read_text() for each in restarted)
            alone = fleet.agent(f"alone-{len(restarted)}", asks=[1])
            await alone.turn()
            fleet.redis.start()
            await fleet.know_one_another(fleet.gateways, within_s=10.0)
            # Each has a home of its own, by a hash that all make alike.
            await runs_are_one_session(
                *(stated(fleet, f"late-{len(restarted)}-{number}") for number in range(8))
            )
            assert sum([await each.metric("requests_passed_on_total") for each in fleet.gateways]) > 0
            await alone.turn()
            assert not alone.failures
            fleet.redis.kill()
        fleet.redis.start()


async def test_a_stale_replica_takes_over(tmp_path):
    """It stopped following a second and a half before the primary died, and is found at its address."""
    replica = RedisServer(tmp_path / "replica")
    replica.directory.mkdir()
    async with running_fleet(tmp_path) as fleet:
        port = fleet.redis.port
        replica.start()
        try:
            with replica.admin() as admin:
                admin.replicaof("127.0.0.1", str(port))
                await comes_true(partial(follows, admin), 10.0)
                workers = [stated(fleet, f"agent-{number}", streams=number % 2 == 0) for number in range(6)]
                async with at_work(*workers):
                    await fleet.gateways[0].drain("default-0", is_draining=True)
                    await asyncio.sleep(1.0)
                    admin.replicaof("NO", "ONE")
                    await fleet.gateways[1].drain("default-0", is_draining=False)
                    late = stated(fleet, "late")
                    async with at_work(late):
                        await asyncio.sleep(1.5)
                        fleet.redis.kill()
                        admin.config_set("port", port)
                        await fleet.know_one_another(fleet.gateways, within_s=5.0)
                        await asyncio.sleep(2.0)
                assert not failures_of(fleet.agents)
                assert [len(agent.sessions) for agent in fleet.agents] == [1] * 7
                assert await adopted(fleet) == 0, "nobody was gone"
                assert not any([await each.is_draining("default-0") for each in fleet.gateways])
            newcomer = await fleet.another()
            await fleet.know_one_another(fleet.gateways, within_s=5.0)
            assert not await newcomer.is_draining("default-0"), "the store has what was said last"
        finally:
            replica.kill()


async def follows(admin: redis.Redis) -> bool:
    return bool(admin.info("replication").get("master_link_status") == "up")


async def test_a_redis_that_hangs_costs_a_deadline_at_most(tmp_path):
    pace = Pace(tool_s=0.1)
    async with running_fleet(tmp_path, deadline_ms=round(DEADLINE_S * 1e3)) as fleet:
        first = fleet.agent("local", pace=pace)
        await first.turn()
        counts: list[float] = []
        while len({*counts}) < 2:  # metrics may be old
            await asyncio.sleep(0.3)
            counts = [await each.metric("sessions") for each in fleet.gateways]
        first.asks = [counts.index(max(counts))]
        await first.turn()
        others = [fleet.agent(f"agent-{number}", pace=pace) for number in range(4)]
        async with at_work(first, *others):
            await asyncio.sleep(0.5)
            fleet.redis.send(signal.SIGSTOP)
            hung_s = now()
            await asyncio.sleep(3 * DEADLINE_S)
            fleet.redis.send(signal.SIGCONT)
            await asyncio.sleep(0.5)
        assert not failures_of(fleet.agents)
        assert await adopted(fleet) == 0, "nobody was gone"
        before_s = slowest_s(fleet.agents, until_s=hung_s)
        local_s = median_s([first], since_s=hung_s, until_s=hung_s + 3 * DEADLINE_S)
        assert local_s < before_s + DEADLINE_S / 2, "it waits for no store"
        assert slowest_s([first, *others], since_s=hung_s) < before_s + DEADLINE_S + BUSY_S
        await fleet.know_one_another(fleet.gateways, within_s=5.0)
        await runs_are_one_session(fleet.agent("late-0"), fleet.agent("late-1", streams=True))
