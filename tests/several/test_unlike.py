"""Gateways that differ: in what time they believe it is, and in the version of what they write."""

import asyncio
import time

import pytest

from gateway.shared_state.redis_store import PREFIX
from tests.several.fleet import all_go_on, at_work, comes_true, failures_of, now, running_fleet
from tests.several.splits import splits, turns_in_store

pytestmark = [pytest.mark.heavy, pytest.mark.slow]

SHIFTED = """
import time
right = time.time
time.time = lambda: right() + {shift_s}
"""
NEXT_VERSION = """
import hashlib
from gateway.shared_state import protocol
protocol.VERSION = b"\\x02"
from gateway.shared_state import redis_store
exchange = redis_store._EXCHANGE
exchange.text = exchange.text.replace("'\\\\1'", "'\\\\2'").replace("byte(1) == 1", "byte(1) == 2")
exchange.sha = hashlib.sha1(exchange.text.encode()).hexdigest()
"""
SHIFTS_S = (-600.0, 0.0, 600.0)


async def test_clocks_that_differ_by_minutes_do_not_matter(tmp_path):
    preludes = [SHIFTED.format(shift_s=shift_s) for shift_s in SHIFTS_S]
    async with running_fleet(tmp_path, gateways=3, preludes=preludes) as fleet:
        times_s = [(await each.snapshot())["at_s"] - time.time() for each in fleet.gateways]
        assert times_s == pytest.approx(SHIFTS_S, abs=5.0)
        for number in range(6):
            headers = b"x-turnpike-session: stated-%d\r\n" % number if number < 3 else b""
            fleet.agent(f"agent-{number}", streams=number % 2 == 0, headers=headers)
        await asyncio.gather(*(agent.run(turns=6) for agent in fleet.agents))
        assert not failures_of(fleet.agents)
        for teller, is_draining in enumerate((True, False, True)):
            await fleet.gateways[teller].drain("default-0", is_draining=is_draining)
            for each in fleet.gateways:
                await comes_true(lambda each=each, wanted=is_draining: is_it(each, wanted), 10.0)
        async with at_work(*fleet.agents):
            await asyncio.sleep(0.5)
            known, killed_s = turns_in_store(fleet), now()
            fleet.gateways[0].kill()
            others = fleet.gateways[1:]
            await fleet.know_one_another(others, within_s=5.0)
            await all_go_on(fleet.agents, turns=3)
        assert [agent.lost for agent in fleet.agents if agent.lost] == []
        assert splits(fleet, known, killed_s=killed_s) == []


async def is_it(gateway, wanted):
    return await gateway.is_draining("default-0") == wanted


async def test_two_versions_of_what_is_written_go_beside_one_another(tmp_path):
    """Those of one version share their runs, those of another theirs; each reads the other's as absent."""
    preludes = ["", NEXT_VERSION, "", NEXT_VERSION]
    async with running_fleet(tmp_path, gateways=4, preludes=preludes, are_alike=False) as fleet:
        alike = ([0, 2], [1, 3])
        for numbers in alike:
            await fleet.know_one_another([fleet.gateways[number] for number in numbers], within_s=10.0)
        for number in range(8):
            headers = b"x-turnpike-session: stated-%d\r\n" % number if number % 4 > 1 else b""
            fleet.agent(f"agent-{number}", headers=headers, asks=alike[number % 2])
        async with at_work(*fleet.agents):
            await asyncio.sleep(2.5)
            await fleet.gateways[0].drain("default-0", is_draining=True)
            await comes_true(lambda: is_it(fleet.gateways[2], True), 10.0)
        assert not failures_of(fleet.agents)
        assert [len(agent.sessions) for agent in fleet.agents] == [1] * 8
        for numbers in alike:
            passed_on = [await fleet.gateways[at].metric("requests_passed_on_total") for at in numbers]
            assert sum(passed_on) > 0
        with fleet.redis.admin() as admin:
            versions = {admin.get(key)[:1] for key in admin.scan_iter(PREFIX + b"e:*") if admin.exists(key)}
        assert versions == {b"\x01", b"\x02"}
