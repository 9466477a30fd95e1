"""KV caches from one engine to another: vLLM's scheduler waits for them, the network takes its time."""

from typing import Any

import msgspec
import pytest

from gateway.assembly import assemble
from gateway.core.coordinator import Coordinator
from gateway.cost.roofline import prefill_s
from gateway.domain import records as rec
from gateway.domain.ids import ReplicaId
from gateway.domain.session_ids import numbered_ids
from lab.simulator.engine import build_engines
from lab.simulator.engine.options import EngineOptions, EngineSpec
from lab.simulator.engine.turn import EngineTurn, KvSource
from lab.simulator.fleet import Change, FleetSpec, ReplicaGroup
from lab.simulator.kernel import Kernel
from lab.simulator.network import Network
from lab.simulator.run import simulate, stock_config
from lab.workload.trace.format import Session, Thread, Tool, Turn, TurnRef
from tests.lab.simulator.engine_log import Log, make_turn
from tests.lab.simulator.test_run import OPTIONS
from tests.lab.simulator.worlds import LITTLE, Recorder, load_little, sessions

pytestmark = [  # of importing vLLM
    pytest.mark.slow,
    pytest.mark.filterwarnings("ignore"),
    pytest.mark.timeout(600),
]

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

    def of(self, leg: int | None, tokens: int = TOKENS) -> KvSource:
        return KvSource(exchange=self.exchanges[0], tokens=tokens, leg=leg)

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
    found = pair.end()
    assert found[1] == pytest.approx((prefill_s(LITTLE, TOKENS), 0))
    assert found[2] == pytest.approx((10.0 + TRANSFER_S + LAST_TOKEN_S, TOKENS - 1))


def test_what_a_leg_computed_is_kept_until_it_was_pulled():
    pair = Pair().leg(1)
    pair.submits(pair.b, 2, 10.0, source=pair.of(1))
    held = []
    for at_s in (5.0, 10.0 + TRANSFER_S - 0.1, 10.0 + TRANSFER_S + 0.1):
        pair.kernel.at(at_s, lambda: held.append(round(pair.a.kv_used() * pair.a.kv_blocks)))
    pair.end()
    assert held == [100, 100, 0]


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


def test_a_prefix_is_pulled_as_far_as_it_is_there_and_asked_for():
    pair = Pair()
    pair.submits(pair.a, 1, 0.0).submits(pair.b, 2, 10.0, source=pair.of(None, tokens=60 * BLOCK + 5))
    found = pair.end()
    part_s = LATENCY_S + 60 * BLOCK * LITTLE.model.kv_bytes_per_token / RATE
    rest_s = prefill_s(LITTLE, 40 * BLOCK, 60 * BLOCK)
    assert found[2] == pytest.approx((10.0 + part_s + rest_s, 60 * BLOCK))


def test_what_is_pulled_cannot_be_overwritten_until_it_has_come():
    pair = Pair()
    pair.submits(pair.a, 1, 0.0).submits(pair.b, 2, 10.0, source=pair.of(None))
    held = []
    for at_s in (9.0, 10.0 + TRANSFER_S / 2, 10.0 + TRANSFER_S + 0.1):
        pair.kernel.at(at_s, lambda: held.append(round(pair.a.kv_used() * pair.a.kv_blocks)))
    pair.end()
    assert held == [0, 99, 0]


def test_what_is_on_its_way_is_waited_for_and_not_pulled_twice():
    pair = Pair()
    pair.submits(pair.a, 1, 0.0)
    for number in (2, 3, 4):
        pair.submits(pair.b, number, 10.0, source=pair.of(None))
    found = pair.end()
    assert pair.exchanges[1].pulled_tokens == 99 * BLOCK
    assert all(found[number][1] == 99 * BLOCK for number in (2, 3, 4))


def test_a_prefix_that_is_gone_is_computed():
    pair = Pair()
    pair.submits(pair.b, 2, 10.0, source=pair.of(None))
    assert pair.end()[2] == pytest.approx((10.0 + prefill_s(LITTLE, TOKENS), 0))


@pytest.mark.parametrize("leg", [1, None])
def test_a_replica_that_is_lost_while_it_sends_leaves_the_prompt_to_be_computed(leg):
    pair = Pair()
    pair.submits(pair.a, 1, 0.0, hands_over=leg is not None).submits(pair.b, 2, 10.0, source=pair.of(leg))
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


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("lost_s", [None, 6.0])
def test_nothing_is_lost_when_prompts_are_computed_elsewhere(seed: int, lost_s: float | None):
    """Blocks are few, so turns are preempted, and a replica that computes prompts may be lost meanwhile."""
    changes = (Change(at_s=lost_s, lost="sim-0"),) if lost_s is not None else ()
    heard = Recorder()
    totals = simulate(
        sessions(40, every_s=0.3, seed=seed),
        of_roles("prefill", "decode", "both", changes=changes),
        by_length,
        options=OPTIONS,
        sink=heard,
        load_profile=load_little,
        seed=seed,
    )
    assert totals.sessions == 40 and not totals.failed_sessions and len(heard.turns) == totals.turns
    legs = [record.outcome for record in heard.records if isinstance(record, rec.PrefillLegEnded)]
    assert len(legs) == totals.prefill_legs > 0 and totals.carried_bytes > 0
    assert {turn.replica for turn in heard.turns} <= {"sim-1", "sim-2"}


def test_a_leg_whose_replica_is_lost_is_told_to_the_brain_and_the_turn_goes_on():
    thread = Thread(turns=(Turn(input_tokens=1500, output_tokens=5),))
    heard = Recorder()
    totals = simulate(
        [Session(id="s", threads=(thread,))],
        of_roles("prefill", "decode", changes=(Change(at_s=1.0, lost="sim-0"),)),
        by_length,
        options=OPTIONS,
        sink=heard,
        load_profile=load_little,
    )
    [leg] = [record for record in heard.records if isinstance(record, rec.PrefillLegEnded)]
    assert (leg.replica, leg.outcome) == ("sim-0", "failed") and not totals.carried_bytes
    [turn] = heard.turns
    assert (turn.replica, turn.cached_tokens) == ("sim-1", 0) and turn.began_s == pytest.approx(1.0)


@pytest.mark.parametrize("network_gbit_s", [0.001, 8.0])
def test_forks_pull_what_their_parent_left_where_the_network_is_quick(network_gbit_s: float):
    """The brain decides; what is pulled is found, once for each replica and fork."""
    group = ReplicaGroup(profile="little", count=2, kv_blocks=900, network_gbit_s=network_gbit_s)
    spec = FleetSpec(replicas=(group,))

    def play(*, pulls: bool) -> tuple[Recorder, Any]:
        def brain(spec: FleetSpec) -> Coordinator:
            config = stock_config(spec)
            settings = msgspec.structs.replace(config.prefix_pull, enabled=pulls)
            apart = msgspec.structs.replace(config.disaggregation, threshold_tokens=1_000_000)
            config = msgspec.structs.replace(config, prefix_pull=settings, disaggregation=apart)
            return assemble(config, session_ids=numbered_ids())

        heard = Recorder()
        world = [_fork(f"s{number}", 100.0 * number) for number in range(6)]
        totals = simulate(world, spec, brain, options=OPTIONS, sink=heard, load_profile=load_little)
        return heard, totals

    pulled, totals = play(pulls=True)
    computed, without = play(pulls=False)
    assert without.pulls == 0 and without.carried_bytes == 0
    # Each session's forks may pull what its 1,600 tokens left, once.
    most = 6 * 1_600 * LITTLE.model.kv_bytes_per_token
    if network_gbit_s > 1:
        assert totals.pulls > 0 and 0 < totals.carried_bytes <= most
        assert totals.computed_tokens < without.computed_tokens
        assert _first_tokens_s(pulled) < _first_tokens_s(computed)
    else:
        assert totals.carried_bytes < most, "it is slow, and that was learned"


@pytest.mark.parametrize(("zone_gbit_s", "every_s"), [(0.01, 100.0), (0.05, 3.0)])
def test_where_the_way_between_zones_is_slow_who_knows_them_goes_on_pulling_within_one(
    zone_gbit_s: float, every_s: float
):
    """What replicas compute in is stated, so that what is learned is the way between them."""
    groups = [
        ReplicaGroup(profile="little", count=2, kv_blocks=900, network_gbit_s=8.0, zone=zone)
        for zone in ("one", "two")
    ]
    spec = FleetSpec(replicas=tuple(groups), zone_gbit_s=zone_gbit_s)

    def play(*, is_told: bool) -> tuple[Recorder, Any]:
        def brain(spec: FleetSpec) -> Coordinator:
            told = [msgspec.structs.replace(group, zone=group.zone if is_told else None) for group in groups]
            config = stock_config(msgspec.structs.replace(spec, replicas=tuple(told)))
            settings = msgspec.structs.replace(config.prefix_pull, enabled=True)
            apart = msgspec.structs.replace(config.disaggregation, threshold_tokens=1_000_000)
            config = msgspec.structs.replace(config, prefix_pull=settings, disaggregation=apart)
            made = assemble(config, session_ids=numbered_ids())
            made.forecasts.believe({name: LITTLE for name, _ in spec.each()})
            return made

        heard = Recorder()
        world = [_fork(f"s{number}", every_s * number) for number in range(24)]
        return heard, simulate(world, spec, brain, options=OPTIONS, sink=heard, load_profile=load_little)

    (knows, told), (guesses, untold) = play(is_told=True), play(is_told=False)
    assert told.pulls > untold.pulls
    assert _first_tokens_s(knows) < _first_tokens_s(guesses)


def _first_tokens_s(heard: Recorder) -> float:
    """Of forks, together."""
    return sum(turn.first_token_s - turn.arrival_s for turn in heard.turns if turn.thread)


def _fork(name: str, arrival_s: float) -> Session:
    """One prompt, and eight sub-agents that go on from its answer."""
    starts = tuple(Tool(name="task", starts_thread=number + 1) for number in range(8))
    main = Thread(turns=(Turn(input_tokens=1500, output_tokens=100, tools=starts),))
    sub = Thread(
        turns=(Turn(input_tokens=1700, output_tokens=20, prefix_of=TurnRef(0, 0), prefix_tokens=1600),)
    )
    last = Turn(input_tokens=1900, output_tokens=20, prefix_of=TurnRef(0, 0), prefix_tokens=1600)
    main = msgspec.structs.replace(main, turns=(*main.turns, last))
    return Session(id=name, threads=(main, *[sub] * 8), arrival_s=arrival_s, agent_type="forks")
