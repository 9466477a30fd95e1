"""Gateways are killed, stopped and restarted while agents work; the others go on with what they had."""

import asyncio
import json
import signal

import pytest

from tests.server.bench import Client, post
from tests.several.fleet import (
    KV_TOKENS,
    Agent,
    Fleet,
    GatewayProcess,
    Pace,
    all_go_on,
    at_work,
    comes_true,
    failures_of,
    home_of_most,
    is_metric,
    now,
    running_fleet,
    slowest_s,
)
from tests.several.splits import WRITTEN_WITHIN_S, splits, turns_in_store

pytestmark = [pytest.mark.heavy, pytest.mark.slow]

BUDGET = 0.9 * 2 * KV_TOKENS


async def test_sessions_of_a_killed_gateway_go_on_at_the_others(tmp_path):
    """Whatever state their turns are in: waiting for the engine, streaming, or between two turns."""
    paces = {
        "waits": Pace(head_s=0.6, stream_s=0.0, tool_s=0.05),
        "streams": Pace(head_s=0.02, stream_s=0.6, tool_s=0.05),
        "rests": Pace(head_s=0.02, stream_s=0.02, tool_s=0.6),
    }
    async with running_fleet(tmp_path, gateways=3) as fleet:
        for number in range(4):
            for state, pace in paces.items():
                headers = b"x-turnpike-session: %s-%d\r\n" % (state.encode(), number) if number == 3 else b""
                fleet.agent(f"{state}-{number}", streams=state == "streams", pace=pace, headers=headers)
        async with at_work(*fleet.agents):
            await asyncio.sleep(2.0)
            await comes_true(lambda: have_it_all(fleet.gateways), 2.0)
            killed = await home_of_most(fleet)
            others = [each for each in fleet.gateways if each is not killed]
            known, killed_s = turns_in_store(fleet), now()
            killed.kill()
            await fleet.know_one_another(others, within_s=5.0)
            await comes_true(lambda: have_it_all(others), 5.0 - (now() - killed_s))
            well_s = now()
            await all_go_on(fleet.agents, turns=3)
        assert [agent.lost for agent in fleet.agents if agent.lost] == []
        failures = failures_of(fleet.agents)
        assert set(failures) <= {"refused", "broken", "cut"} and failures["refused"] and failures["broken"]
        assert all(
            not agent.failures["cut"] for agent in fleet.agents if not agent.name.startswith("streams")
        )
        assert splits(fleet, known, killed_s=killed_s) == []
        assert slowest_s(fleet.agents, since_s=well_s) < 0.5 + slowest_s(fleet.agents, until_s=killed_s)
        assert sum([await each.metric("sessions_adopted_total") for each in others]) > 0
        await comes_true(lambda: is_quiet(others), 2.0)


async def have_it_all(gateways: list[GatewayProcess]) -> bool:
    """Together they share out what engines have room for, and each has a part of it."""
    budgets = [await each.metric("kv_budget_tokens") for each in gateways]
    return abs(sum(budgets) - BUDGET) < 0.1 * BUDGET and min(budgets) > 0.1 * BUDGET


async def is_quiet(gateways: list[GatewayProcess]) -> bool:
    return not any([await each.metric("running") + await each.metric("waiting") for each in gateways])


async def test_what_waited_for_a_stopped_gateway_is_decided_once(tmp_path):
    async with running_fleet(tmp_path) as fleet:
        agent = fleet.agent("agent", asks=[0])
        await agent.turn()
        home = await home_of_most(fleet)
        here, there = fleet.gateways.index(home), 1 - fleet.gateways.index(home)
        other = fleet.gateways[there]

        agent.asks = [there]
        await agent.turn()  # over a connection between the gateways that is kept
        await comes_true(lambda: knows_all(fleet, agent), WRITTEN_WITHIN_S)
        home.send(signal.SIGSTOP)
        stopped_s = now()
        impatient = asyncio.ensure_future(leave_unanswered(home, agent, after_s=2.0))
        passed_on = await agent.turn()  # the stopped one gets it, and does not read it
        assert passed_on.attempts == 1, "within the agent's patience, while its home stands still"
        await impatient
        await agent.turn()
        await asyncio.sleep(max(0.0, stopped_s + 3.0 - now()))
        home.send(signal.SIGCONT)
        await fleet.know_one_another(fleet.gateways, within_s=2.0)
        assert "is down" not in home.log.read_text(), "that it stood still is no fault of the store's"
        assert [len(fleet.engines.of_step("agent", step)) for step in range(4)] == [1, 1, 1, 1]
        agent.asks = [here, there]
        for _ in range(4):
            await agent.turn()
        assert len(agent.sessions) == 1 and not agent.failures
        assert await other.metric("sessions_adopted_total") == 1
        # It asks who has its sessions.
        await comes_true(lambda: is_metric(home, "requests_passed_on_total", 2), 1.0)


async def knows_all(fleet: Fleet, agent: Agent) -> bool:
    return sum(map(len, turns_in_store(fleet).values())) == len(agent.turns)


async def leave_unanswered(gateway: GatewayProcess, agent: Agent, *, after_s: float) -> None:
    client = Client(*await asyncio.open_connection("127.0.0.1", gateway.port))
    client.send(post(json.dumps({"model": "m", "messages": agent.messages}).encode()))
    await asyncio.sleep(after_s)
    client.close()


async def test_sessions_are_not_split_by_a_gateway_that_was_stopped(tmp_path):
    async with running_fleet(tmp_path, gateways=3) as fleet:
        for number in range(6):
            headers = b"x-turnpike-session: stated-%d\r\n" % number if number < 3 else b""
            fleet.agent(f"agent-{number}", streams=number % 2 == 0, headers=headers, patience_s=2.0)
        async with at_work(*fleet.agents):
            await asyncio.sleep(1.5)
            stopped = await home_of_most(fleet)
            known, stopped_s = turns_in_store(fleet), now()
            stopped.send(signal.SIGSTOP)
            await asyncio.sleep(3.0)
            stopped.send(signal.SIGCONT)
            await fleet.know_one_another(fleet.gateways, within_s=2.0)
            await asyncio.sleep(0.5)  # so old may metrics be
            well_s = now()
            await all_go_on(fleet.agents, turns=10)
        assert [agent.lost for agent in fleet.agents if agent.lost] == []
        assert splits(fleet, known, killed_s=stopped_s) == []
        assert slowest_s(fleet.agents, since_s=well_s) < 0.5 + slowest_s(fleet.agents, until_s=stopped_s)


async def test_a_rolling_restart_fails_no_request(tmp_path):
    async with running_fleet(tmp_path, server="shutdown_delay_s = 1\n") as fleet:
        for number in range(8):
            # Longer than the lame duck; and tools that outlast what others need to learn of a turn.
            pace = Pace(stream_s=1.6 if number < 4 else 0.05, tool_s=0.3)
            headers = b"x-turnpike-session: stated-%d\r\n" % number if number % 4 == 0 else b""
            fleet.agent(f"agent-{number}", streams=number < 6, pace=pace, headers=headers)
        async with at_work(*fleet.agents):
            for gateway in fleet.gateways:
                await asyncio.sleep(0.7)
                await gateway.end()
                await fleet.start(gateway)
                await fleet.know_one_another(fleet.gateways, within_s=5.0)
            await all_go_on(fleet.agents, turns=1)
        assert [agent.lost for agent in fleet.agents if agent.lost] == []
        assert set(failures_of(fleet.agents)) <= {"refused", "broken"}, (
            "what keeps an idle connection sees it end"
        )
        assert [len(agent.sessions) for agent in fleet.agents] == [1] * 8
