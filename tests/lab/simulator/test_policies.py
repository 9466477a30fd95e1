"""The engine's hooks, and the plugin behind them: what they are asked, what follows, what is told of it."""

import itertools
from collections.abc import Sequence
from typing import Any

import msgspec
import pytest
from msgspec.structs import replace

from gateway.admission.session_admission import SessionAdmission
from gateway.assembly import assemble
from gateway.config import Config
from gateway.core import events as ev
from gateway.core.coordinator import Coordinator
from gateway.domain.engine import EngineSignals
from gateway.domain.ids import ReplicaId
from gateway.domain.session_ids import numbered_ids
from lab.simulator import run
from lab.simulator.engine import build_engines
from lab.simulator.engine.options import EngineOptions, EngineSpec, SchedulingPolicy
from lab.simulator.engine.policy import EnginePolicy, Retained
from lab.simulator.engine.roofline import prefill_s
from lab.simulator.engine.turn import EngineTurn
from lab.simulator.errors import ConservationError
from lab.simulator.fleet import FleetSpec
from lab.simulator.kernel import Kernel
from lab.simulator.run import POOL
from lab.simulator.signals import PERIOD_S, Reports, signals_of
from tests.lab.simulator.engine_log import Log, make_turn
from tests.lab.simulator.test_run import OPTIONS, fleet, play
from tests.lab.simulator.test_stretches import fixed
from tests.lab.simulator.worlds import IMPORTS_VLLM, LITTLE, sessions

pytestmark = IMPORTS_VLLM

BLOCK = 16


class Bench:
    """One engine, and turns of prompts that nobody else has unless `shared`."""

    def __init__(self, blocks: int, policy: EnginePolicy, **options: Any) -> None:
        self.kernel = Kernel()
        self.log = Log(self.kernel)
        spec = EngineSpec(name=ReplicaId("a"), profile=LITTLE, kv_blocks=blocks + 1)
        engine_options = EngineOptions(block_size=BLOCK, policy=lambda: policy, **options)
        (self.engine,) = build_engines([spec], engine_options, kernel=self.kernel, listener=self.log, seed=0)

    def ask(self, number: int, at_s: float, blocks: int, *, text: str = "", output: int = 1) -> None:
        """A prompt of so many full blocks and one token more; the same text is the same prompt."""
        tokens = blocks * BLOCK
        turn = make_turn(
            number, tokens + 1, output, tokens if text else 0, block_size=BLOCK, now=at_s, key=text
        )
        self.kernel.at(at_s, self.engine.submit, turn)

    def play(self) -> dict[int, tuple[float, int]]:
        """By turn: when it ended, and how many blocks of its prompt it found."""
        self.kernel.run()
        self.engine.end()
        assert self.engine.kv_used() == 0
        return {number: (at_s, cached // BLOCK) for at_s, _, number, cached, _ in self.log.ends}


class Hold(EnginePolicy):
    def __init__(self, seconds: float, *texts: str) -> None:
        self.seconds = seconds
        self.texts = texts

    def retain_until(self, turn: EngineTurn, *, now: float) -> float | None:
        return now + self.seconds if turn.session.threads[0].shared_key in self.texts else None


def test_an_empty_policy_changes_nothing() -> None:
    world = sessions(40, every_s=0.4, seed=4)
    stock = play(world, fleet(blocks=300))[1]
    empty = play(world, fleet(blocks=300), options=replace(OPTIONS, policy=EnginePolicy))[1]
    assert stock.turns == empty.turns
    assert stock.samples == empty.samples


def test_retained_blocks_are_found_again() -> None:
    bench = Bench(100, Hold(100, "kept"))
    bench.ask(1, 0, 60, text="kept")
    bench.ask(2, 10, 30)
    bench.ask(3, 11, 30)
    bench.ask(4, 20, 60, text="kept")
    found = bench.play()
    assert found[4][1] == 60


def test_what_is_retained_is_reported_apart_from_what_is_used() -> None:
    bench = Bench(100, Hold(100, "kept"))
    bench.ask(1, 0, 60, text="kept")
    seen: list[EngineSignals] = []
    bench.kernel.at(50, lambda: seen.append(signals_of(bench.engine, block_size=BLOCK)))
    bench.play()
    assert (seen[0].kv_used, seen[0].kv_retained) == (0.0, 0.6)


def test_if_nothing_runs_retained_blocks_give_way_at_once() -> None:
    bench = Bench(100, Hold(100, "kept"))
    bench.ask(1, 0, 60, text="kept")
    bench.ask(2, 10, 90)
    assert bench.play()[2][0] == pytest.approx(10 + prefill_s(LITTLE, 90 * BLOCK + 1))


def test_while_others_run_who_waits_bears_the_grace() -> None:
    policy = Hold(100, "kept")
    bench = Bench(100, policy)
    bench.ask(1, 0, 60, text="kept")
    bench.ask(2, 10, 10, output=400)  # runs for long
    bench.ask(3, 10.5, 60)
    waited = bench.play()
    longest_step_s = 0.5
    began_s = waited[3][0] - prefill_s(LITTLE, 60 * BLOCK + 1)
    assert 10.5 + policy.waiting_grace_s <= began_s + longest_step_s
    assert began_s < 10.5 + policy.waiting_grace_s + 2 * longest_step_s
    assert waited[2][0] > waited[3][0]


def test_a_running_request_that_needs_a_block_gets_it() -> None:
    bench = Bench(100, Hold(100, "kept"))
    bench.ask(1, 0, 60, text="kept")
    bench.ask(2, 10, 38, output=BLOCK * 10)
    bench.play()
    ((_, _, _, _, preemptions),) = (event for event in bench.log.ends if event[2] == 2)
    assert preemptions == 0


def test_the_order_of_release() -> None:
    class SecondFirst(Hold):
        def release_order(self, retained: Sequence[Retained], *, now: float) -> Sequence[Retained]:
            return sorted(retained, key=lambda each: -each.since_s)

    for policy, kept in ((Hold(100, "a", "b"), "b"), (SecondFirst(100, "a", "b"), "a")):
        for text in ("a", "b"):
            bench = Bench(100, policy)
            bench.ask(1, 0, 40, text="a")
            bench.ask(2, 5, 40, text="b")
            bench.ask(3, 10, 58)
            bench.ask(4, 20, 40, text=text)
            assert (bench.play()[4][1] == 40) == (text == kept)


def test_what_prompts_of_several_sessions_open_with_may_be_kept_for_last() -> None:
    class KeepNew(EnginePolicy):
        def eviction_rank(self, turn: EngineTurn, *, now: float) -> float:
            return turn.submitted_s

    class KeepOpenings(KeepNew):
        keeps_openings = True

    for policy, found in ((KeepNew(), 0), (KeepOpenings(), 40)):
        bench = Bench(100, policy)
        bench.ask(1, 0, 40, text="a")  # all of it is an opening
        bench.ask(2, 5, 40)
        bench.ask(3, 10, 57)
        bench.ask(4, 20, 40, text="a")
        assert bench.play()[4][1] == found


def test_priorities_and_the_order_of_those_that_wait() -> None:
    class NewestFirst(EnginePolicy):
        def priority(self, turn: EngineTurn, *, now: float) -> int:
            return -turn.number

    class LastFirst(EnginePolicy):
        def order_waiting(self, waiting: Sequence[EngineTurn], *, now: float) -> Sequence[EngineTurn]:
            return sorted(waiting, key=lambda turn: -turn.number)

    for policy, options in (
        (NewestFirst(), {"scheduling_policy": SchedulingPolicy.PRIORITY}),
        (LastFirst(), {}),
    ):
        bench = Bench(100, policy, max_num_seqs=1, **options)
        bench.ask(1, 0, 40, output=20)
        for number in (2, 3, 4):
            bench.ask(number, 0.01, 10)
        bench.play()
        assert [event[2] for event in bench.log.ends] == [1, 4, 3, 2]


def test_a_policy_orders_all_that_wait() -> None:
    class Forgetful(EnginePolicy):
        def order_waiting(self, waiting: Sequence[EngineTurn], *, now: float) -> Sequence[EngineTurn]:
            return waiting[1:]

    bench = Bench(100, Forgetful(), max_num_seqs=1)
    for number in (1, 2, 3):
        bench.ask(number, 0, 10)
    with pytest.raises(ValueError, match="must order all that wait"):
        bench.kernel.run()


PLUGGED = replace(OPTIONS, plugin={})


@pytest.fixture
def engines(monkeypatch):
    built: list[Any] = []

    def listening(*args: Any, **settings: Any) -> Any:
        built.extend(found := build_engines(*args, **settings))
        return found

    monkeypatch.setattr(run, "build_engines", listening)
    return built


def counted(engines: list[Any], group: str, name: str) -> int:
    found = [each.plugin.counters()[group] for each in engines if each.plugin is not None]
    return sum(counters.get(name, 0) for counters in found)


def test_hints_reach_engines_and_are_followed(engines):
    world = sessions(30, every_s=0.5, seed=5)
    totals, seen = play(world, fleet(1, blocks=300), options=PLUGGED)
    assert totals.sessions == 30 and not totals.failed_sessions
    assert counted(engines, "hints", "followed") > len(seen.turns)
    assert not {name for name in ("malformed", "unknown") if counted(engines, "hints", name)}
    assert counted(engines, "holds", "held") > 0
    assert engines[0].plugin is not None and engines[0].plugin.retained_blocks() == 0


def test_state_that_is_held_is_found_again(monkeypatch):
    """Over several draws: one of them may be an exception. Engines are told no class, because a class changes
    the order of turns, and with it how much of their state is found."""
    monkeypatch.setattr(SessionAdmission, "class_of", lambda *_: None)
    without = replace(PLUGGED, plugin={"retention": False})

    def cached(options: EngineOptions) -> int:
        tokens = 0
        for seed in range(1, 5):
            # Who enters when weighs more than what engines hold, so nobody waits here.
            world, settings = sessions(30, every_s=0.5, seed=seed), {"make_brain": fixed, "options": options}
            _, seen = play(world, fleet(1, blocks=1500), **settings)
            tokens += sum(turn.cached_tokens for turn in seen.turns)
        return tokens

    assert cached(PLUGGED) > 1.05 * cached(without)


def test_stock_engines_carry_nothing(engines):
    play(sessions(3, every_s=0.5, seed=5), fleet(1), options=OPTIONS)
    assert engines[0].plugin is None and type(engines[0].scheduler).__name__ == "Scheduler"


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
