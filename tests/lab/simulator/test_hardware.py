"""The virtual clock, and what takes time by it: steps, fronts of servers, transfers, tools on a host."""

from functools import partial
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.domain.ids import ReplicaId
from lab.simulator.engine.front import Front, FrontCosts
from lab.simulator.engine.roofline import Batch, step_s
from lab.simulator.engine.steps import StepTimes
from lab.simulator.engine.turn import EngineTurn
from lab.simulator.hosts import HostProbe, ToolHost
from lab.simulator.kernel import Kernel
from lab.simulator.network import Network, Transfer, fair_rates
from lab.workload.trace.format import Session, Thread, Turn, TurnRef
from tests.lab.simulator.worlds import LITTLE


@given(st.lists(st.integers(0, 5)))
def test_by_time_and_then_in_the_order_of_asking(times: list[int]):
    kernel = Kernel()
    ran: list[tuple[float, int]] = []
    for number, time_s in enumerate(times):
        kernel.at(time_s, lambda n=number: ran.append((kernel.now, n)))
    kernel.run()
    assert ran == sorted(zip(times, range(len(times)), strict=True))
    assert kernel.actions == len(times)


def test_what_is_asked_for_now_runs_now_behind_the_others():
    kernel = Kernel()
    ran: list[str] = []

    def first() -> None:
        kernel.after(0.0, ran.append, "asked for by the first")
        ran.append("first")

    kernel.at(1.0, first)
    kernel.at(1.0, ran.append, "second")
    kernel.run()
    assert ran == ["first", "second", "asked for by the first"]
    assert kernel.now == 1.0


def test_called_off():
    kernel = Kernel()
    ran: list[str] = []
    alarm = kernel.at(1.0, ran.append, "never")
    kernel.at(2.0, ran.append, "later").call_off()
    alarm.call_off()
    alarm.call_off()
    kernel.run()
    assert ran == []


def test_stopped():
    kernel = Kernel()
    ran: list[str] = []
    kernel.at(1.0, kernel.stop)
    kernel.at(1.0, ran.append, "never")
    kernel.run()
    assert ran == []


@pytest.mark.parametrize("time_s", [0.5, float("nan")])
def test_there_is_no_going_back(time_s: float):
    kernel = Kernel()
    kernel.at(1.0, lambda: None)
    kernel.run()
    with pytest.raises(ValueError, match=r"is not a time from 1\.0 s on"):
        kernel.at(time_s, lambda: None)


def row(prompt: int, computed: int) -> Any:
    """Of a turn that has computed so many tokens, those of the step included."""
    return SimpleNamespace(request=SimpleNamespace(num_prompt_tokens=prompt, num_computed_tokens=computed))


def test_prompts_cost_their_products_and_those_that_decode_their_contexts() -> None:
    times = StepTimes(LITTLE, noise=0.0, seed="")
    work = {1: row(500, 640), 2: row(300, 301), 3: row(900, 700)}
    decoding = Batch(new_tokens=2, rows=2, decode_context_tokens=639 + 300)
    assert times.next_s({1: 1, 2: 1}, work) == pytest.approx(step_s(LITTLE, decoding))
    products = 200 * (500 + 100)
    both = Batch(new_tokens=202, rows=3, prefill_context_products=products, decode_context_tokens=639 + 300)
    assert times.next_s({1: 1, 2: 1, 3: 200}, work) == pytest.approx(step_s(LITTLE, both))


class Engine:
    """Behind a front, to which turns of 100 tokens go at these times."""

    def __init__(self, costs: FrontCosts, *times_s: float) -> None:
        self.kernel = Kernel()
        self.front = Front(self, costs, self.kernel)
        session = Session(id="s", threads=(Thread(turns=(Turn(input_tokens=100, output_tokens=1),)),))
        for number, at_s in enumerate(times_s, start=1):
            turn = EngineTurn(number=number, session=session, ref=TurnRef(0, 0), keys=[], submitted_s=at_s)
            self.kernel.at(at_s, self.front.submit, turn)
        self.seen: list[tuple[int, float]] = []
        self.turns = 0

    def submit(self, turn: EngineTurn) -> None:
        self.seen.append((turn.number, self.kernel.now))

    def abort(self, number: int) -> None:
        self.seen.append((-number, self.kernel.now))

    def hint(self, text: str) -> None:
        self.hinted = text


def test_requests_reach_the_engine_one_by_one():
    engine = Engine(FrontCosts(request_s=1.0, prompt_token_s=0.01), 0.0, 0.5, 9.0)
    engine.kernel.run()
    engine.front.hint("held")
    assert engine.hinted == "held"
    assert engine.seen == [(1, 2.0), (2, 4.0), (3, 11.0)]


def test_what_is_aborted_never_reaches_the_engine_or_is_aborted_there():
    engine = Engine(FrontCosts(request_s=1.0), 0.0, 0.0)
    for number in (1, 2):
        engine.kernel.at(1.5, engine.front.abort, number)
    engine.kernel.run()
    assert engine.seen == [(1, 1.0), (-1, 1.5)]


A, B, C, D = (ReplicaId(name) for name in "abcd")


def transfer(source: ReplicaId, target: ReplicaId, size: float = 1.0) -> Transfer:
    return Transfer(source, target, size, lambda: None)


def test_the_card_with_the_least_for_each_decides_and_the_rest_is_shared():
    cards = {A: 4.0, B: 10.0, C: 10.0, D: 10.0}
    one, two, three = transfer(A, B), transfer(A, C), transfer(D, C)
    assert fair_rates([one, two, three], cards) == {one: 2.0, two: 2.0, three: 8.0}


def test_a_card_sends_and_receives_at_its_full_rate_at_once():
    cards = {A: 4.0, B: 4.0}
    there, back = transfer(A, B), transfer(B, A)
    assert fair_rates([there, back], cards) == {there: 4.0, back: 4.0}


PAIRS = st.lists(
    st.permutations([A, B, C, D]).map(lambda order: (order[0], order[1])), min_size=1, max_size=12
)


@given(PAIRS, st.lists(st.floats(0.5, 20), min_size=4, max_size=4))
def test_no_card_carries_more_than_it_can_and_nobody_could_have_more(pairs, rates):
    cards = dict(zip((A, B, C, D), rates, strict=True))
    transfers = [transfer(*pair) for pair in pairs]
    found = fair_rates(transfers, cards)
    passing: dict[tuple[ReplicaId, bool], list[Transfer]] = {}
    for each in transfers:
        for card in each.cards:
            passing.setdefault(card, []).append(each)
    load = {card: sum(found[each] for each in some) for card, some in passing.items()}
    assert all(load[card] <= cards[card[0]] * (1 + 1e-9) for card in passing)
    for each in transfers:
        full = [card for card in each.cards if load[card] >= cards[card[0]] * (1 - 1e-9)]
        assert any(found[each] >= max(found[other] for other in passing[card]) - 1e-9 for card in full)


def ends(*, latency_s: float = 0.0, called_off: bool = False) -> dict[str, float]:
    """10 bytes from A to B at 0 s, 5 from A to C at 1 s, over cards of 5 bytes a second."""
    kernel = Kernel()
    network = Network({A: 5.0, B: 5.0, C: 5.0}, latency_s=latency_s, kernel=kernel)
    found: dict[str, float] = {}
    first = network.send(A, B, 10.0, lambda: found.update(first=kernel.now))

    def send_second() -> None:
        network.send(A, C, 5.0, lambda: found.update(second=kernel.now))

    kernel.at(1.0, send_second)
    if called_off:
        kernel.at(2.0, network.call_off, first)
    kernel.run()
    assert network.carried_bytes == pytest.approx(12.5 if called_off else 15.0)
    return found


def test_two_share_a_card_while_both_are_under_way():
    assert ends() == {"first": pytest.approx(3.0), "second": pytest.approx(3.0)}


def test_latency_comes_before_the_first_byte():
    assert ends(latency_s=0.5) == {"first": pytest.approx(3.5), "second": pytest.approx(3.5)}


def test_one_that_is_called_off_does_not_end_and_leaves_its_share():
    assert ends(called_off=True) == {"second": pytest.approx(2.5)}


def test_one_that_is_called_off_before_its_first_byte_carries_nothing():
    kernel = Kernel()
    network = Network({A: 5.0, B: 5.0}, latency_s=1.0, kernel=kernel)
    network.call_off(network.send(A, B, 5.0, lambda: pytest.fail("it ended")))
    kernel.run()
    assert network.carried_bytes == 0.0


def play(cores: float, tools: list[tuple[float, float, float]]) -> list[float]:
    kernel = Kernel()
    host = ToolHost(kernel, cores)
    ends = [-1.0] * len(tools)

    def end(number: int) -> None:
        ends[number] = kernel.now

    for number, (start_s, work_s, wants) in enumerate(tools):
        kernel.at(start_s, host.run, work_s, wants, partial(end, number))
    kernel.run()
    assert host.demand_cores == 0
    return ends


def test_the_rate_changes_as_tools_come_and_go():
    # Alone until 1, then at half speed; the second is done at 3, and the first has half a second left.
    assert play(1, [(0.0, 2.5, 1.0), (1.0, 1.0, 1.0)]) == [3.5, 3.0]


def test_cores_in_use_are_counted():
    kernel = Kernel()
    host = ToolHost(kernel, 2)
    for _ in range(4):
        host.run(1.0, 1.0, lambda: None)
    kernel.run()
    assert kernel.now == 2.0
    assert host.busy_core_s == pytest.approx(4.0)


def test_a_host_that_slows_down():
    kernel = Kernel()
    host = ToolHost(kernel, 1)
    ends: list[float] = []
    host.run(2.0, 1.0, lambda: ends.append(kernel.now))
    host.run(2.0, 0.0, lambda: ends.append(kernel.now))
    kernel.at(1.0, host.set_speed, 0.2)
    kernel.run()
    assert ends == [2.0, pytest.approx(6.0)]
    assert host.busy_core_s == pytest.approx(6.0)


def test_a_probe_says_how_many_want_a_core():
    kernel = Kernel()
    told: list[Any] = []
    host = ToolHost(kernel, 2)
    HostProbe("h", host, kernel, told.append).begin()
    host.run(1.0, 3.0, lambda: None)
    kernel.at(2.5, kernel.stop)
    kernel.run()
    assert [(e.host, e.signals.cores, round(e.signals.runnable, 6)) for e in told] == [
        ("h", 2, 3.0),
        ("h", 2, 1.5),
    ]


TOOLS = st.lists(
    st.tuples(st.integers(0, 6), st.integers(0, 5), st.sampled_from([0, 1, 2, 5])), min_size=1, max_size=6
)


@given(st.sampled_from([1, 2, 3, 8]), TOOLS)
def test_as_in_tiny_steps(cores: int, tools: list[tuple[int, int, int]]):
    ends = play(cores, [(float(start), float(work), float(wants)) for start, work, wants in tools])
    for end, expected in zip(ends, in_tiny_steps(cores, tools), strict=True):
        assert end == pytest.approx(expected, abs=0.1)


def in_tiny_steps(cores: int, tools: list[tuple[int, int, int]]) -> list[float]:
    dt = 1 / 64
    left = [float(work) for _, work, _ in tools]
    ends = [float(start) if work == 0 else None for start, work, _ in tools]
    tick = 0
    while any(end is None for end in ends):
        now = tick * dt
        alive = [n for n, (start, _, _) in enumerate(tools) if start <= now and ends[n] is None]
        demand = sum(tools[n][2] for n in alive)
        for n in alive:
            left[n] -= dt * (min(1.0, cores / demand) if tools[n][2] else 1.0)
            if left[n] <= 1e-9:
                ends[n] = now + dt
        tick += 1
    return [end for end in ends if end is not None]
