"""Several gateways before one simulated fleet."""

import pytest

from gateway.assembly import assemble
from gateway.core import events as ev
from gateway.core.commands import Command
from gateway.core.coordinator import Coordinator
from gateway.domain.ids import PoolId
from gateway.domain.records import SessionStarted
from gateway.domain.session_ids import numbered_ids
from lab.simulator.fleet import FleetSpec, ReplicaGroup
from lab.simulator.run import POOL, stock_config
from lab.simulator.several import SeveralGateways
from tests.lab.simulator.test_run import play
from tests.lab.simulator.worlds import IMPORTS_VLLM, sessions

pytestmark = IMPORTS_VLLM

FLEET = FleetSpec(replicas=(ReplicaGroup(profile="little", count=2, kv_blocks=600),))


def gateways(count: int, made: list[Coordinator], *, period_s: float = 0.1) -> SeveralGateways:
    def make(number: int) -> Coordinator:
        ids = numbered_ids(f"g{number}-")
        made.append(assemble(stock_config(FLEET), session_ids=ids))
        return made[-1]

    return SeveralGateways(count, make, period_s=period_s)


@pytest.mark.parametrize("count", [2, 4])
def test_all_sessions_are_served_and_nothing_is_left(count: int):
    made: list[Coordinator] = []
    crowd = sessions(40, every_s=0.2, seed=count)
    totals, record = play(crowd, FLEET, make_brain=lambda _: gateways(count, made), seed=1)
    assert totals.sessions == 40 and totals.failed_sessions == 0
    assert not any(brain.live for brain in made)
    started = [each.session for each in record.records if isinstance(each, SessionStarted)]
    served = [sum(session.startswith(f"s-g{at}-") for session in started) for at in range(count)]
    assert sum(served) == 40 and min(served) > 0


def test_the_parts_of_a_pool_add_up_to_one():
    made: list[Coordinator] = []
    seen: list[list[float]] = []

    class Watched(SeveralGateways):
        def handle(self, event: ev.Event, *, now: float) -> list[Command]:
            commands = super().handle(event, now=now)
            pools = [brain.admission.pools.get(PoolId(POOL)) for brain in made]
            if all(pools):
                seen.append([pool.limits.part for pool in pools if pool is not None])
            return commands

    def brain(_: FleetSpec) -> SeveralGateways:
        several = gateways(3, made)
        several.__class__ = Watched
        return several

    play(sessions(60, every_s=0.05, seed=3), FLEET, make_brain=brain, seed=1)
    late = seen[len(seen) // 4 :]
    assert max(map(sum, late)) < 1.1, "parts are told within a period"
    assert min(map(sum, late)) > 0.9
    assert max(map(max, late)) > 0.4, "who has more to do has the larger part"
