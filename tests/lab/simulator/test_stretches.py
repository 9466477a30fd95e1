"""Steps in one go, blocks in the host's memory, several gateways: each against what is simpler."""

from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from gateway.assembly import assemble
from gateway.core import events as ev
from gateway.core.commands import Command
from gateway.core.coordinator import Coordinator
from gateway.domain.ids import PoolId, ReplicaId
from gateway.domain.records import SessionStarted
from gateway.domain.session_ids import numbered_ids
from lab.simulator.engine import build_engines
from lab.simulator.engine.options import EngineOptions, EngineSpec, SchedulingPolicy
from lab.simulator.engine.roofline import prefill_s
from lab.simulator.fleet import FleetSpec, ReplicaGroup
from lab.simulator.kernel import Kernel
from lab.simulator.run import POOL, stock_config
from lab.simulator.several import SeveralGateways
from lab.simulator.signals import signals_of
from tests.examples import examples
from tests.lab.simulator.engine_log import Log, make_turn
from tests.lab.simulator.test_run import OPTIONS, fleet, play
from tests.lab.simulator.worlds import IMPORTS_VLLM, LITTLE, sessions

pytestmark = IMPORTS_VLLM

BLOCK = 16


TURNS = st.lists(
    st.tuples(
        st.floats(0, 3, allow_nan=False),  # when
        st.integers(1, 400),  # prompt
        st.integers(1, 120),  # output
        st.integers(0, 200),  # shared with others
    ),
    min_size=1,
    max_size=12,
)


def run(turns: list[tuple[float, int, int, int]], blocks: int, looks: list[float], **options: Any) -> Any:
    """What was heard, and what the engine's books are at the end."""
    kernel = Kernel()
    log = Log(kernel)
    spec = EngineSpec(name=ReplicaId("a"), profile=LITTLE, kv_blocks=blocks, noise=0.1)
    engine_options = EngineOptions(block_size=BLOCK, max_model_len=2048, max_num_seqs=6, **options)
    (engine,) = build_engines([spec], engine_options, kernel=kernel, listener=log, seed=1)
    for number, (when_s, prompt, output, shared) in enumerate(turns):
        turn = make_turn(number, prompt, output, shared, block_size=BLOCK, now=when_s)
        turn.marks = (output // 3 + 1, output // 2 + 1) if number % 2 and output > 6 else ()
        kernel.at(when_s, engine.submit, turn)
    for when_s in looks:
        kernel.at(when_s, engine.settle)
    kernel.run()
    assert engine.turns == 0
    pool = engine.scheduler.kv_cache_manager.block_pool
    free = [block.block_hash for block in pool.free_block_queue.get_all_free_blocks()]
    assert len(free) == blocks - 1
    counts = engine.counts
    return log.events, free, counts.steps, counts.computed_tokens, counts.scheduled_steps, counts.busy_s


@settings(max_examples=examples(150), deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(
    TURNS,
    st.sampled_from([40, 60, 100, 400]),
    st.lists(st.floats(0, 5, allow_nan=False), max_size=4),
    st.sampled_from(SchedulingPolicy),
)
def test_the_same_as_single_steps(
    turns: list[tuple[float, int, int, int]], blocks: int, looks: list[float], policy: SchedulingPolicy
) -> None:
    """Without pressure (400 blocks) and with enough of it for preemptions (40)."""
    *jumped, passes, busy_s = run(turns, blocks, looks, scheduling_policy=policy)
    *stepped, single_passes, single_busy_s = run(
        turns, blocks, looks, scheduling_policy=policy, takes_stretches=False
    )
    assert jumped == stepped
    assert passes <= single_passes
    assert busy_s == pytest.approx(single_busy_s)


def test_marks_are_told_with_the_token_that_reaches_them() -> None:
    turns = [(0.0, 100, 3, 0), (0.0, 100, 120, 0)]
    events, *_ = run(turns, 100, [])
    [first] = [event[0] for event in events if event[1:] == ("first token", 1)]
    [end] = [event[0] for event in events if event[1:3] == ("finished", 1)]
    reached = [(event[0], event[3]) for event in events if event[1] == "reached"]
    assert [tokens for _, tokens in reached] == [41, 61]
    for at_s, tokens in reached:
        assert (at_s - first) / (end - first) == pytest.approx((tokens - 1) / 119, rel=0.1)


def test_there_are_preemptions_in_such_runs() -> None:
    turns = [(0.0, 200, 120, 0)] * 5
    events, *_ = run(turns, 60, [])
    assert any(event[1] == "finished" and event[4] for event in events)


def test_a_stretch_saves_passes() -> None:
    turns = [(0.0, 100, 120, 0)]
    *_, steps, _, passes, _ = run(turns, 100, [])
    assert (steps, passes) == (120, 2)  # the prefill, and the step that ends the turn


@pytest.mark.parametrize("prompt", [511, 512, 513, 1022, 1023])
def test_a_prompt_may_end_with_a_chunk_of_one_token(prompt: int):
    turns = [(0.0, 50, 100, 0), (0.5, prompt, 20, 0)]
    stretched = run(turns, 400, [])
    stepped = run(turns, 400, [], takes_stretches=False)
    assert stretched[0] == stepped[0] and stretched[-1] == pytest.approx(stepped[-1])


@pytest.mark.parametrize(("seed", "gigabytes"), [(0, 0.01), (1, 0.01), (2, 1.0)])
def test_nothing_is_lost(seed: int, gigabytes: float):
    totals, heard = play(sessions(30, every_s=0.5, seed=seed), fleet(1, blocks=300, offload_gb=gigabytes))
    assert totals.sessions == 30 and totals.failed_sessions == 0
    assert len(heard.turns) == totals.turns


def test_more_is_found_in_the_cache_than_without():
    world = sessions(60, every_s=0.3, seed=1)
    without, _ = play(world, fleet(1, blocks=300))
    with_host, _ = play(world, fleet(1, blocks=300, offload_gb=1.0))
    assert with_host.cached_tokens > 1.2 * without.cached_tokens
    assert with_host.end_s < without.end_s


def fixed(spec: FleetSpec) -> Coordinator:
    """A gateway whose decisions do not follow what engines lose."""
    config = stock_config(spec)
    admission = replace(config.admission, shadow=True)
    return assemble(replace(config, admission=admission), session_ids=numbered_ids())


@pytest.mark.parametrize(("seed", "gigabytes"), [(5, 0.005), (6, 0.005), (7, 0.02)])
def test_stretches_change_nothing(seed: int, gigabytes: float):
    world = sessions(40, every_s=0.5, seed=seed)
    spec = fleet(1, blocks=300, offload_gb=gigabytes)
    plain: dict[str, Any] = {"sample_every_s": None, "make_brain": fixed}
    stretched, one = play(world, spec, **plain)
    stepped, two = play(world, spec, options=replace(OPTIONS, takes_stretches=False), **plain)
    assert one.turns == two.turns
    assert one.sessions == two.sessions
    assert stretched.scheduled_steps < stepped.scheduled_steps == stretched.steps


def test_what_was_overwritten_comes_back_over_the_link():
    """A prompt of 100 blocks: another of 100 leaves 19 of them in the cache of 119, and 81 must be loaded."""
    kernel = Kernel()
    log = Log(kernel)
    spec = EngineSpec(name=ReplicaId("a"), profile=LITTLE, kv_blocks=120, offload_bytes=1e9)
    (engine,) = build_engines([spec], EngineOptions(block_size=BLOCK), kernel=kernel, listener=log, seed=0)
    fits = int(1e9 / LITTLE.model.kv_bytes_per_token)
    assert signals_of(engine, block_size=BLOCK).host_kv_tokens == fits
    first, again, other = 1, 2, 3
    tokens = 100 * BLOCK
    for number, now, shared in ((first, 0.0, tokens), (other, 100.0, 0), (again, 200.0, tokens)):
        kernel.at(now, engine.submit, make_turn(number, tokens, 1, shared, block_size=BLOCK, now=now))
    kernel.run()
    finished = {number: (at_s, cached) for at_s, _, number, cached, _ in log.ends}
    cold_s = prefill_s(LITTLE, tokens)
    assert finished[first] == (pytest.approx(cold_s), 0)
    assert finished[other] == (pytest.approx(100 + cold_s), 0)
    load_s = 81 * BLOCK * LITTLE.model.kv_bytes_per_token / LITTLE.hardware.host_link_bytes_per_s
    last_s = prefill_s(LITTLE, 1, tokens - 1)  # of a prompt the last token is always computed
    assert finished[again] == (pytest.approx(200 + load_s + last_s), tokens - 1)


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
