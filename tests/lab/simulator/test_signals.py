"""What simulated engines say of themselves reaches the brain, once a second, while anything goes on."""

import itertools

import msgspec
import pytest

from gateway.assembly import assemble
from gateway.config import Config
from gateway.core import events as ev
from gateway.core.coordinator import Coordinator
from gateway.domain.engine import EngineSignals
from gateway.domain.session_ids import numbered_ids
from lab.simulator.errors import ConservationError
from lab.simulator.fleet import FleetSpec
from lab.simulator.kernel import Kernel
from lab.simulator.run import POOL
from lab.simulator.signals import PERIOD_S, Reports
from tests.lab.simulator.test_run import fleet, play
from tests.lab.simulator.worlds import IMPORTS_VLLM, sessions

pytestmark = IMPORTS_VLLM


def a_brain(kind: type[Coordinator], **admission: object) -> Coordinator:
    replicas = [{"url": "http://sim", "name": "little-0"}]
    settings = {"pools": [{"name": POOL, "replicas": replicas}], "admission": admission}
    brain = assemble(msgspec.convert(settings, Config), session_ids=numbered_ids())
    brain.__class__ = kind
    return brain


class Listening(Coordinator):
    """A gateway that keeps what it was told of engines."""

    heard: list[tuple[float, EngineSignals]]

    def handle(self, event: ev.Event, *, now: float):
        if isinstance(event, ev.EngineReported):
            self.heard.append((now, event.signals))
        return super().handle(event, now=now)


def test_under_pressure_engines_tell_of_it():
    heard: list[tuple[float, EngineSignals]] = []

    def make_brain(_: FleetSpec) -> Coordinator:
        brain = a_brain(Listening, shadow=True, max_running_per_replica=64)
        assert isinstance(brain, Listening)
        brain.heard = heard
        return brain

    world = sessions(12, every_s=0.3, seed=2)
    totals, _ = play(world, fleet(1, blocks=330), make_brain=make_brain, sample_every_s=None)
    times = [at for at, _ in heard]
    assert times[:3] == [0.0, PERIOD_S, 2 * PERIOD_S]
    assert totals.end_s - PERIOD_S <= times[-1] <= totals.end_s
    signals = [each for _, each in heard]
    assert signals[0].kv_tokens == 329 * 16 and signals[0].kv_used == 0.0
    assert signals[0].host_kv_tokens is None
    assert max(each.kv_used or 0.0 for each in signals) > 0.9
    assert max(each.waiting or 0 for each in signals) > 0 and max(each.running or 0 for each in signals) > 1
    # Counters: they never fall, and end near what the turns themselves reported.
    for before, after in itertools.pairwise(signals):
        assert (after.prefix_hit or 0) >= (before.prefix_hit or 0)
    assert 0 < (signals[-1].prefix_hit or 0) <= totals.cached_tokens
    assert totals.preemptions > 0 and 0 < (signals[-1].preemptions or 0) <= totals.preemptions


def test_reports_alone_keep_no_simulation_going():
    kernel = Kernel()
    sent: list[ev.Event] = []
    kernel.at(2.5, lambda: None)
    Reports((), block_size=16, kernel=kernel, send=sent.append).begin()
    kernel.run()
    assert kernel.now == 3 * PERIOD_S


def test_a_simulation_in_which_nothing_more_happens_says_so():
    class Deaf(Coordinator):
        def handle(self, event: ev.Event, *, now: float):
            return [] if isinstance(event, ev.RequestArrived) else super().handle(event, now=now)

    world = sessions(2, every_s=1, seed=1)
    with pytest.raises(ConservationError, match="nothing more happens"):
        play(world, fleet(1), make_brain=lambda _: a_brain(Deaf), sample_every_s=None)
