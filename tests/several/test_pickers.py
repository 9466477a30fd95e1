"""Real pickers on a real Redis, each behind an Envoy of its own: they agree on where a session runs."""

import asyncio
import contextlib
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from tests.envoy import envoy
from tests.several.fleet import Fleet, all_go_on, at_work, failures_of, home_of_most, now, running_fleet
from tests.several.splits import splits, turns_in_store

pytestmark = [pytest.mark.heavy, pytest.mark.slow]


@contextlib.asynccontextmanager
async def running_pickers(directory: Path) -> AsyncIterator[Fleet]:
    async with running_fleet(directory, command="picker") as fleet, contextlib.AsyncExitStack() as envoys:
        engines = [backend.port for backend in fleet.engines.backends]
        for each in fleet.gateways:
            folder = directory / f"envoy-of-{each.name}"
            folder.mkdir()
            each.port = await envoys.enter_async_context(envoy(folder, each.port, engines))
        yield fleet


def are_where_they_began(fleet: Fleet) -> bool:
    return all(
        len(agent.sessions) == 1 and len({turn.replica for turn in agent.turns}) == 1
        for agent in fleet.agents
    )


async def test_a_session_has_one_replica_whichever_picker_its_turns_come_to(tmp_path):
    async with running_pickers(tmp_path) as fleet:
        for number in range(6):
            headers = b"x-turnpike-session: stated-%d\r\n" % number if number < 2 else b""
            fleet.agent(f"agent-{number}", streams=number % 3 == 0, headers=headers)
        await asyncio.gather(*(agent.run(turns=6) for agent in fleet.agents))
        assert not failures_of(fleet.agents) and are_where_they_began(fleet)
        assert len({agent.sessions[0] for agent in fleet.agents}) == 6
        assert len({agent.turns[0].replica for agent in fleet.agents}) == 2
        passed_on = [await each.metric("requests_passed_on_total") for each in fleet.gateways]
        assert sum(passed_on) == 6 * 6 / 2, "every other turn comes in where its session is not"
        assert sum([await each.metric("sessions_adopted_total") for each in fleet.gateways]) == 0


async def test_sessions_of_a_killed_picker_go_on_at_the_other_where_they_were(tmp_path):
    async with running_pickers(tmp_path) as fleet:
        for number in range(6):
            fleet.agent(f"agent-{number}", streams=number % 2 == 0)
        async with at_work(*fleet.agents):
            await all_go_on(fleet.agents, turns=2)
            killed = await home_of_most(fleet)
            known, killed_s = turns_in_store(fleet), now()
            killed.kill()
            await all_go_on(fleet.agents, turns=3)
        assert splits(fleet, known, killed_s=killed_s) == []
        places = {(turn.session, turn.replica) for agent in fleet.agents for turn in agent.turns}
        assert len(places) == len({session for session, _ in places}), "each where it was"
        (other,) = [each for each in fleet.gateways if each is not killed]
        assert await other.metric("sessions_adopted_total") > 0
