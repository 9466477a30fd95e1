"""The engine's hooks: what they are asked, what follows, and that without them nothing changes."""

from collections.abc import Sequence
from typing import Any

import pytest
from msgspec.structs import replace

from gateway.domain.ids import ReplicaId
from lab.simulator.engine import build_engines
from lab.simulator.engine.options import EngineOptions, EngineSpec, SchedulingPolicy
from lab.simulator.engine.policy import EnginePolicy, Retained
from lab.simulator.engine.roofline import prefill_s
from lab.simulator.engine.turn import EngineTurn
from lab.simulator.kernel import Kernel
from tests.lab.simulator.engine_log import Log, make_turn
from tests.lab.simulator.test_run import OPTIONS, fleet, play
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
