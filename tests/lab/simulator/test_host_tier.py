"""Blocks in the host's memory: vLLM's connector decides, the link takes its time."""

from typing import Any

import pytest
from msgspec.structs import replace

from gateway.assembly import assemble
from gateway.core.coordinator import Coordinator
from gateway.domain.ids import ReplicaId
from gateway.domain.session_ids import numbered_ids
from lab.simulator.engine import build_engines
from lab.simulator.engine.options import EngineOptions, EngineSpec
from lab.simulator.engine.roofline import prefill_s
from lab.simulator.fleet import FleetSpec
from lab.simulator.kernel import Kernel
from lab.simulator.run import stock_config
from lab.simulator.signals import signals_of
from tests.lab.simulator.engine_log import Log, make_turn
from tests.lab.simulator.test_run import OPTIONS, fleet, play
from tests.lab.simulator.worlds import IMPORTS_VLLM, LITTLE, sessions

pytestmark = IMPORTS_VLLM

BLOCK = 16


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
