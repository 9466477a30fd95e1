"""Whole simulations: nothing is lost, the same seed gives the same bytes, refusals are borne."""

import gc
import hashlib
import subprocess
import sys
from collections.abc import Iterable, Sequence
from functools import partial
from typing import Any

import msgspec
import pytest

from gateway.assembly import assemble
from gateway.config import Config
from gateway.core.coordinator import Coordinator
from gateway.domain.records import SessionEnded, SessionStarted, ToolStart
from gateway.domain.session_ids import numbered_ids
from lab.simulator.agents import Agent
from lab.simulator.driver import Call, ClientConfig
from lab.simulator.engine.options import EngineOptions
from lab.simulator.engine.turn import EngineTurn
from lab.simulator.errors import SimulatorError
from lab.simulator.fleet import FleetSpec, ReplicaGroup, ToolHostGroup
from lab.simulator.isolated import IsolatedTimes
from lab.simulator.results import ReplicaSample, Totals
from lab.simulator.run import POOL, simulate
from lab.workload.trace.content import TurnContent
from lab.workload.trace.format import Session, Thread, Turn
from tests.lab.simulator.worlds import IMPORTS_VLLM, LITTLE, Recorder, load_little, sessions
from tests.project.layout import ROOT

pytestmark = IMPORTS_VLLM

OPTIONS = EngineOptions(block_size=16, max_model_len=8192)


def fleet(replicas: int = 2, *, blocks: int = 600, noise: float = 0.1, **fields: Any) -> FleetSpec:
    return FleetSpec(
        replicas=(ReplicaGroup(profile="little", count=replicas, kv_blocks=blocks, **fields),),
        tool_hosts=(ToolHostGroup(cores=3, count=2),),
        noise=noise,
    )


def narrow(spec: FleetSpec, *, running: int, **core: Any) -> Coordinator:
    """A gateway that lets few turns in at a time."""
    settings = {
        "pools": [{"name": POOL, "replicas": [{"url": "http://sim"}]}],
        "admission": {"max_running_per_replica": running},
        "core": core,
    }
    return assemble(msgspec.convert(settings, Config), session_ids=numbered_ids())


def play(world: Iterable[Session], spec: FleetSpec, **settings: Any) -> tuple[Totals, Recorder]:
    recorder = Recorder()
    defaults: dict[str, Any] = {"options": OPTIONS, "load_profile": load_little, "sample_every_s": 2.0}
    return simulate(world, spec, sink=recorder, **(defaults | settings)), recorder


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("blocks", [300, 4000])
def test_nothing_is_lost(seed: int, blocks: int):
    world = sessions(30, every_s=1.0, seed=seed)
    totals, heard = play(world, fleet(blocks=blocks))
    assert totals.sessions == 30 and totals.failed_sessions == 0
    expected = {
        (s.id, n, at) for s in world for n, thread in enumerate(s.threads) for at in range(len(thread.turns))
    }
    assert {(turn.session, turn.thread, turn.turn) for turn in heard.turns} == expected
    assert len(heard.turns) == len(expected) == totals.turns
    for turn in heard.turns:
        assert turn.arrival_s + turn.waited_s < turn.first_token_s <= turn.end_s
        assert 0 <= turn.cached_tokens < turn.prompt_tokens
    for session in heard.sessions:
        assert session.arrival_s < session.final_first_token_s <= session.end_s <= totals.end_s
    assert len([record for record in heard.records if isinstance(record, SessionStarted)]) == 30
    ended = [record for record in heard.records if isinstance(record, SessionEnded)]
    assert [record.reason for record in ended] == ["finished"] * 30
    assert any(isinstance(record, ToolStart) for record in heard.records)


def test_samples_add_up():
    totals, heard = play(sessions(20, every_s=1.0, seed=7), fleet())
    samples = [sample for _, replicas in heard.samples for sample in replicas]
    assert [at_s for at_s, _ in heard.samples] == [2.0 * n for n in range(len(heard.samples))]
    assert sum(sample.prompt_tokens for sample in samples) <= totals.prompt_tokens
    assert max(sample.kv_used for sample in samples) > 0
    assert all(0 <= sample.busy_s < 3.5 for sample in samples)


def test_looking_changes_nothing():
    world = sessions(20, every_s=0.5, seed=3)
    looked, _ = play(world, fleet(), sample_every_s=0.3)
    unseen, _ = play(world, fleet(), sample_every_s=None)
    assert msgspec.structs.replace(looked, scheduled_steps=0, busy_s=0) == msgspec.structs.replace(
        unseen, scheduled_steps=0, busy_s=0
    )


class Census(Recorder):
    """Counts what is alive of sessions, at every sample."""

    def __init__(self) -> None:
        super().__init__()
        self.most = 0

    def sample(self, at_s: float, replicas: Sequence[ReplicaSample]) -> None:
        alive = sum(type(each) in (Agent, Call, EngineTurn, TurnContent) for each in gc.get_objects())
        self.most = max(self.most, alive)


def test_nothing_is_kept_of_sessions_that_are_over():
    few, many = Census(), Census()
    for census, count in ((few, 40), (many, 160)):
        world = iter(sessions(count, every_s=6.0, seed=6))
        settings: dict[str, Any] = {"options": OPTIONS, "load_profile": load_little, "sample_every_s": 20.0}
        simulate(world, fleet(), sink=census, **settings)
    assert len(many.sessions) == 4 * len(few.sessions)
    assert 0 < many.most < 2 * few.most


def test_another_seed_gives_other_noise():
    world = sessions(10, every_s=1.0, seed=1)
    assert play(world, fleet(), seed=1)[0] != play(world, fleet(), seed=2)[0]
    still = fleet(noise=0.0)
    assert play(world, still, seed=1)[0] == play(world, still, seed=2)[0]


def digest() -> str:
    totals, heard = play(sessions(12, every_s=0.5, seed=11), fleet(offload_gb=0.05))
    told = msgspec.json.encode((totals, heard.turns, heard.sessions, heard.samples, heard.records))
    return hashlib.sha256(told).hexdigest()


def test_the_same_seed_gives_the_same_bytes_in_every_process():
    code = "import warnings; from tests.lab.simulator import test_run; print(test_run.digest())"
    environment = {"PYTHONHASHSEED": "1", "PATH": "/usr/bin:/bin", "HOME": "/tmp"}  # here it is another
    other = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, env=environment, capture_output=True, text=True
    )
    assert other.stdout == digest() + "\n", other.stderr


def test_refused_turns_are_asked_again():
    world = sessions(20, every_s=0.2, seed=2)
    totals, heard = play(
        world,
        fleet(1),
        make_brain=partial(narrow, running=1, max_wait_s=2.0, max_stream_wait_s=2.0),
        client=ClientConfig(max_retries=50),
    )
    assert totals.failed_sessions == 0
    assert totals.refusals == sum(turn.refusals for turn in heard.turns) > 0
    assert max(turn.waited_s for turn in heard.turns) > 2.0


def test_a_session_fails_when_its_client_gives_up():
    world = sessions(20, every_s=0.05, seed=2)
    totals, heard = play(
        world,
        fleet(1),
        make_brain=partial(narrow, running=1, max_wait_s=0.5, max_stream_wait_s=0.5),
        client=ClientConfig(max_retries=0),
    )
    assert 0 < totals.failed_sessions == sum(session.failed for session in heard.sessions)
    assert totals.sessions == len(heard.sessions) == 20


def test_what_cannot_fit_is_said_before():
    long = Session(id="long", threads=(Thread(turns=(Turn(input_tokens=9000, output_tokens=1),)),))
    with pytest.raises(SimulatorError, match="'long' reaches 9001 tokens; a model has 8192"):
        play([long], fleet())
    wide = Session(id="wide", threads=(Thread(turns=(Turn(input_tokens=4000, output_tokens=1),)),))
    with pytest.raises(SimulatorError, match="'wide' needs 251 KV blocks, more than a replica has"):
        play([wide], fleet(blocks=100))


def test_sessions_must_come_in_order():
    early, late = sessions(2, every_s=1.0, seed=1)
    with pytest.raises(SimulatorError, match="arrives before the one ahead of it"):
        play([late, early], fleet())


def alone() -> IsolatedTimes:
    return IsolatedTimes(LITTLE, kv_blocks=4000, block_size=16, max_model_len=8192)


def test_alone_a_session_takes_its_isolated_time():
    times = alone()
    for session in sessions(6, every_s=1.0, seed=9):
        unhurried = FleetSpec(replicas=(ReplicaGroup(profile="little", kv_blocks=4000),))
        _, heard = play([session], unhurried, sample_every_s=None)
        (outcome,) = heard.sessions
        assert outcome.isolated_s == pytest.approx(outcome.end_s - outcome.arrival_s, rel=1e-9)
        if len(session.threads) == 1:
            assert times.of(session) == pytest.approx(times.played(session), rel=1e-9)
