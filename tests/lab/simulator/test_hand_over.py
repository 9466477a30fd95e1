"""KV caches from one engine to another: vLLM's scheduler waits for them, the network takes its time."""

from typing import Any

import msgspec
import pytest

from gateway.assembly import assemble
from gateway.core.coordinator import Coordinator
from gateway.domain import records as rec
from gateway.domain.ids import ReplicaId
from gateway.domain.session_ids import numbered_ids
from lab.simulator.engine import build_engines
from lab.simulator.engine.options import EngineOptions, EngineSpec
from lab.simulator.engine.roofline import prefill_s
from lab.simulator.engine.turn import EngineTurn, KvSource
from lab.simulator.fleet import Change, FleetSpec, ReplicaGroup
from lab.simulator.kernel import Kernel
from lab.simulator.network import Network
from lab.simulator.run import stock_config
from lab.workload.trace.format import Session, Thread, Turn
from tests.lab.simulator.engine_log import Log, make_turn
from tests.lab.simulator.test_run import play
from tests.lab.simulator.worlds import IMPORTS_VLLM, LITTLE, sessions

pytestmark = IMPORTS_VLLM

BLOCK = 16
RATE = 1e6
LATENCY_S = 0.25
TOKENS = 100 * BLOCK
TRANSFER_S = LATENCY_S + TOKENS * LITTLE.model.kv_bytes_per_token / RATE
LAST_TOKEN_S = prefill_s(LITTLE, 1, TOKENS - 1)


class Pair:
    """Two engines with a network between them. `end()` plays, and checks that all blocks are free again."""

    def __init__(self, blocks: int = 400) -> None:
        self.kernel = Kernel()
        self.log = Log(self.kernel)
        specs = [
            EngineSpec(name=ReplicaId(name), profile=LITTLE, kv_blocks=blocks, network_bytes_per_s=RATE)
            for name in "ab"
        ]
        options = EngineOptions(block_size=BLOCK)
        self.a, self.b = build_engines(specs, options, kernel=self.kernel, listener=self.log, seed=0)
        network = Network({spec.name: RATE for spec in specs}, latency_s=LATENCY_S, kernel=self.kernel)
        self.exchanges = [engine.exchange for engine in (self.a, self.b) if engine.exchange is not None]
        for exchange in self.exchanges:
            exchange.network = network

    def submits(self, engine: Any, number: int, now: float, **fields: Any) -> "Pair":
        turn: EngineTurn = make_turn(number, TOKENS, 1, TOKENS, block_size=BLOCK, now=now)
        self.kernel.at(now, engine.submit, msgspec.structs.replace(turn, **fields))
        return self

    def leg(self, number: int) -> "Pair":
        return self.submits(self.a, number, 0.0, hands_over=True)

    def of(self, leg: int) -> KvSource:
        return KvSource(exchange=self.exchanges[0], leg=leg)

    def end(self) -> dict[int, tuple[float, int]]:
        """By turn: when it ended, and how much of its prompt had not to be computed."""
        self.kernel.run()
        for engine in (self.a, self.b):
            engine.end()
            assert engine.turns == 0 and engine.kv_used() == 0.0
        return {number: (at_s, cached) for at_s, _, number, cached, _ in self.log.ends}


def test_a_leg_s_blocks_come_over_the_network_and_only_the_last_token_is_computed():
    pair = Pair().leg(1)
    pair.submits(pair.b, 2, 10.0, source=pair.of(1))
    held = []
    for at_s in (5.0, 10.0 + TRANSFER_S - 0.1, 10.0 + TRANSFER_S + 0.1):
        pair.kernel.at(at_s, lambda: held.append(round(pair.a.kv_used() * pair.a.kv_blocks)))
    found = pair.end()
    assert found[1] == pytest.approx((prefill_s(LITTLE, TOKENS), 0))
    assert found[2] == pytest.approx((10.0 + TRANSFER_S + LAST_TOKEN_S, TOKENS - 1))
    assert held == [100, 100, 0], "kept until it was pulled"


def test_a_lease_ends_and_who_comes_later_computes():
    pair = Pair().leg(1)
    pair.submits(pair.b, 2, 40.0, source=pair.of(1))
    held = []
    pair.kernel.at(39.0, lambda: held.append(pair.a.kv_used()))
    found = pair.end()
    assert found[2] == pytest.approx((40.0 + prefill_s(LITTLE, TOKENS), 0))
    assert held == [0.0]


def test_who_has_it_all_lets_the_leg_s_blocks_go():
    pair = Pair().leg(1)
    pair.submits(pair.b, 3, 0.0).submits(pair.b, 2, 10.0, source=pair.of(1))
    held = []
    pair.kernel.at(12.0, lambda: held.append(pair.a.kv_used()))
    pair.end()
    assert held == [0.0] and not pair.exchanges[1].pulled_tokens % BLOCK


def test_a_replica_that_is_lost_while_it_sends_leaves_the_prompt_to_be_computed():
    pair = Pair().leg(1)
    pair.submits(pair.b, 2, 10.0, source=pair.of(1))
    pair.kernel.at(11.0, pair.exchanges[0].lost)
    assert pair.end()[2] == pytest.approx((11.0 + prefill_s(LITTLE, TOKENS), 0))


def of_roles(*roles: str, **fields: Any) -> FleetSpec:
    replicas = tuple(
        ReplicaGroup(profile="little", kv_blocks=400, role=role, network_gbit_s=0.5)  # type: ignore[arg-type]
        for role in roles
    )
    return FleetSpec(replicas=replicas, noise=0.02, **fields)


def by_length(spec: FleetSpec) -> Coordinator:
    config = stock_config(spec)
    disaggregation = msgspec.structs.replace(config.disaggregation, threshold_tokens=300)
    return assemble(
        msgspec.structs.replace(config, disaggregation=disaggregation), session_ids=numbered_ids()
    )


@pytest.mark.parametrize(("seed", "lost_s"), [(0, None), (1, 6.0), (2, 6.0), (3, None)])
def test_nothing_is_lost_when_prompts_are_computed_elsewhere(seed: int, lost_s: float | None):
    """Blocks are few, so turns are preempted, and a replica that computes prompts may be lost meanwhile."""
    changes = (Change(at_s=lost_s, lost="sim-0"),) if lost_s is not None else ()
    world, spec = sessions(40, every_s=0.3, seed=seed), of_roles("prefill", "decode", "both", changes=changes)
    totals, heard = play(world, spec, make_brain=by_length, seed=seed)
    assert totals.sessions == 40 and not totals.failed_sessions and len(heard.turns) == totals.turns
    legs = [record.outcome for record in heard.records if isinstance(record, rec.PrefillLegEnded)]
    assert len(legs) == totals.prefill_legs > 0 and totals.carried_bytes > 0
    assert {turn.replica for turn in heard.turns} <= {"sim-1", "sim-2"}


def test_a_leg_whose_replica_is_lost_is_told_to_the_brain_and_the_turn_goes_on():
    thread = Thread(turns=(Turn(input_tokens=1500, output_tokens=5),))
    spec = of_roles("prefill", "decode", changes=(Change(at_s=1.0, lost="sim-0"),))
    totals, heard = play([Session(id="s", threads=(thread,))], spec, make_brain=by_length)
    [leg] = [record for record in heard.records if isinstance(record, rec.PrefillLegEnded)]
    assert (leg.replica, leg.outcome) == ("sim-0", "failed") and not totals.carried_bytes
    [turn] = heard.turns
    assert (turn.replica, turn.cached_tokens) == ("sim-1", 0) and turn.began_s == pytest.approx(1.0)
