"""Stolen sessions in whole simulations: what went ahead is found, what came too late is cut off, nothing is
lost."""

from collections import Counter
from typing import Any

import msgspec
import pytest

from gateway.assembly import assemble
from gateway.config import Config
from gateway.core.coordinator import Coordinator
from gateway.domain.decision import PlacementReason
from gateway.domain.records import PrefixMoved, Routed
from gateway.domain.session_ids import numbered_ids
from gateway.simulator.engine.options import EngineOptions
from gateway.simulator.fleet import Change, FleetSpec, ReplicaGroup
from gateway.simulator.run import POOL, simulate
from tests.simulator.worlds import Recorder, load_little, sessions

pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings("ignore"), pytest.mark.timeout(600)]
BLOCK = 16


def greedy(spec: FleetSpec) -> Coordinator:
    stealing = {"enabled": True, "idle_s": 0.0, "ratio": 1.0, "cooldown_s": 0.0, "most": 100}
    urls = [{"url": f"http://{name}"} for name, _ in spec.each()]
    settings = {
        "pools": [{"name": POOL, "replicas": urls}],
        "routing": {"stealing": stealing},
        "workflow": {"share_learned": True},  # alone, a tenant learns too late for so short a world
    }
    return assemble(msgspec.convert(settings, Config), session_ids=numbered_ids())


@pytest.mark.parametrize("plugin", [None, {}], ids=["stock", "plugin"])
def test_sessions_are_stolen_and_nothing_is_lost(plugin: dict[str, Any] | None):
    fleet = FleetSpec(
        replicas=(ReplicaGroup(profile="little", count=3, kv_blocks=3000),),
        changes=(Change(at_s=10.0, joins="sim-1"), Change(at_s=25.0, joins="sim-2")),
        noise=0.1,
    )
    options = EngineOptions(block_size=BLOCK, max_model_len=8192, plugin=plugin)
    outcomes: Counter[str] = Counter()
    for seed in range(6):
        heard = Recorder()
        world = sessions(40, every_s=1.0, seed=seed)
        totals = simulate(world, fleet, greedy, options=options, load_profile=load_little, sink=heard)
        assert totals.sessions == 40 and not totals.failed_sessions
        before = {turn.replica for turn in heard.turns if turn.arrival_s + turn.waited_s < 10.0}
        assert before == {"sim-0"}, "the others had not joined"
        moves = [record for record in heard.records if isinstance(record, PrefixMoved)]
        outcomes.update(move.outcome for move in moves)
        computed = sum((move.usage.prompt_tokens or 0) - (move.usage.cached_tokens or 0) for move in moves)
        assert totals.moved_tokens >= computed, "and what was cut off had begun"
        outcomes["tokens"] += computed
        for move in moves:
            found = what_followed(heard, move)
            if found is not None:
                outcomes["followed"] += 1
                assert found >= (move.usage.prompt_tokens or 0) // BLOCK * BLOCK
    assert outcomes["ready"] >= 5 and outcomes["late"] >= 4 and outcomes["followed"] >= 2, outcomes
    assert outcomes["tokens"] and not outcomes["failed"]


def what_followed(heard: Recorder, move: PrefixMoved) -> int | None:
    """What the session's next turn found where it had been moved; None if it went elsewhere, or none came."""
    for record in heard.records:
        if isinstance(record, Routed) and record.session == move.session and record.at_s > move.at_s:
            if record.reason is not PlacementReason.STOLEN or record.replica != move.replica:
                return None
            at = [turn for turn in heard.turns if turn.arrival_s + turn.waited_s == record.at_s]
            return at[0].cached_tokens if len(at) == 1 else None
    return None
