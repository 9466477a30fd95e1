"""Real gateway processes on a real Redis: an agent's run is one session, wherever its turns come in."""

import asyncio
import json
from typing import Any

import pytest

from gateway.server.auth.client_keys import hash_key
from tests.server.bench import Client, post
from tests.several.fleet import failures_of, running_fleet
from tests.shared_state.servers import RedisCluster

pytestmark = [pytest.mark.heavy, pytest.mark.slow]

KEYS = {"red": "key-of-red", "blue": "key-of-blue"}
TENANTS = "".join(
    f'[[tenants]]\nname = "{name}"\nkey_hashes = ["{hash_key(key)}"]\n' for name, key in KEYS.items()
)


def bearer(tenant: str) -> bytes:
    return b"Authorization: Bearer %s\r\n" % KEYS[tenant].encode()


@pytest.mark.parametrize("with_tenants", [False, True])
async def test_a_run_is_one_session_wherever_its_turns_come_in(tmp_path, with_tenants):
    async with running_fleet(tmp_path, gateways=3, settings=TENANTS if with_tenants else "") as fleet:
        for number in range(6):
            headers = bearer(("red", "blue")[number % 2]) if with_tenants else b""
            if number < 2:
                headers += b"x-turnpike-session: stated-%d\r\n" % number
            fleet.agent(f"agent-{number}", streams=number % 3 == 0, headers=headers)
        await asyncio.gather(*(agent.run(turns=6) for agent in fleet.agents))
        assert not failures_of(fleet.agents)
        assert [len(agent.sessions) for agent in fleet.agents] == [1] * 6
        assert len({agent.sessions[0] for agent in fleet.agents}) == 6
        passed_on = [await each.metric("requests_passed_on_total") for each in fleet.gateways]
        assert sum(passed_on) == 6 * 6 - 6 * 2, "of three turns one comes in where its session is"
        assert sum([await each.metric("sessions_adopted_total") for each in fleet.gateways]) == 0


async def test_a_stored_response_is_gone_on_with_at_any_gateway(tmp_path):
    async with running_fleet(tmp_path, gateways=3, settings=TENANTS) as fleet:

        async def ask(at: int, before: str | None, tenant: str = "red", more: bytes = b"") -> Any:
            body: dict[str, Any] = {"model": "m", "input": "Go on.", "store": True}
            if before is not None:
                body["previous_response_id"] = before
            port = fleet.gateways[at].port
            client = Client(*await asyncio.open_connection("127.0.0.1", port))
            try:
                return await client.ask(
                    post(json.dumps(body).encode(), b"/v1/responses", bearer(tenant) + more)
                )
            finally:
                client.close()

        for run in range(3):
            before, sessions = None, set()
            for step in range(6):
                response = await ask((run + step) % 3, before)
                assert response.status == 200, response.body
                sessions.add(response.get(b"x-turnpike-session"))
                before = response.json()["id"]
            assert len(sessions) == 1
            assert (await ask(run, before, "blue")).status == 404, "it is another tenant's"
            (own,) = sessions
            named = [await ask(at, None, more=b"x-turnpike-session: %s\r\n" % own) for at in range(3)]
            assert {each.get(b"x-turnpike-session") for each in named} == sessions, "as answers name it"


async def test_a_store_of_three_nodes_is_as_good(tmp_path):
    async with running_fleet(tmp_path, store=RedisCluster(tmp_path)) as fleet:
        for number in range(6):
            headers = b"x-turnpike-session: stated-%d\r\n" % number if number < 3 else b""
            fleet.agent(f"agent-{number}", headers=headers)
        await asyncio.gather(*(agent.run(turns=6) for agent in fleet.agents))
        assert not failures_of(fleet.agents)
        assert [len(agent.sessions) for agent in fleet.agents] == [1] * 6
        assert sum([await each.metric("requests_passed_on_total") for each in fleet.gateways]) == 6 * 3
        for node in fleet.redis.nodes:
            with node.admin() as admin:
                assert admin.dbsize() > 0
