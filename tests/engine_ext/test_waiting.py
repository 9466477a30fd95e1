"""The ranked queue against a sorted list, and the measured time of a step."""

import math
import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from tests.examples import examples
from turnpike_vllm.coordinator import Coordinator, CoordinatorConfig, Rank
from turnpike_vllm.hints import ServiceClass
from turnpike_vllm.step_time import StepTimeModel
from turnpike_vllm.waiting import RankedQueue


class Item:
    def __init__(self, arrived: float, worth: int) -> None:
        self.arrived, self.worth = arrived, worth


def rank(item: Item, now: float) -> tuple[int, float]:
    return (item.worth - int((now - item.arrived) / 10), item.arrived)


def next_rise(item: Item, now: float) -> float | None:
    return item.arrived + 10 * (int((now - item.arrived) / 10) + 1)


class Queue(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.now, self.count = 0.0, 0
        self.queue: RankedQueue[Item] = RankedQueue(rank, next_rise, 0.0)
        self.inside: list[Item] = []

    @rule(worth=st.integers(0, 5), front=st.booleans())
    def add(self, worth: int, front: bool) -> None:
        self.count += 1
        item = Item(self.now + self.count * 1e-6, worth)
        (self.queue.prepend_request if front else self.queue.add_request)(item)
        self.inside.append(item)

    @precondition(lambda self: self.inside)
    @rule()
    def pop(self) -> None:
        first = min(self.inside, key=lambda item: rank(item, self.now))
        assert self.queue.peek_request() is first
        assert self.queue.pop_request() is first
        self.inside.remove(first)

    @precondition(lambda self: self.inside)
    @rule(data=st.data())
    def remove(self, data: st.DataObject) -> None:
        item = data.draw(st.sampled_from(self.inside))
        self.queue.remove_request(item)
        self.inside.remove(item)
        self.queue.remove_requests([item])  # not there: passed over

    @rule(passed=st.floats(0, 25))
    def advance(self, passed: float) -> None:
        self.now += passed
        self.queue.advance(self.now)

    @invariant()
    def agrees(self) -> None:
        assert len(self.queue) == len(self.inside)
        assert bool(self.queue) == bool(self.inside)
        assert list(self.queue) == sorted(self.inside, key=lambda each: rank(each, self.now))
        assert len(self.queue._heap) <= 2 * len(self.inside) + 64


TestQueue = Queue.TestCase
TestQueue.settings = settings(max_examples=examples(60), stateful_step_count=40, deadline=None)


def test_what_was_replaced_does_not_outlive_those_that_leave() -> None:
    queue: RankedQueue[Item] = RankedQueue(rank, next_rise, 0.0)
    items = [Item(float(number), 3) for number in range(40)]
    for item in items:
        queue.add_request(item)
    while items:
        queue.remove_request(items.pop())
        assert len(queue._heap) <= 2 * len(queue) + 64


def test_nothing_is_in_front_of_an_empty_queue() -> None:
    queue: RankedQueue[Item] = RankedQueue(rank, next_rise, 0.0)
    with pytest.raises(IndexError):
        queue.peek_request()


def test_a_step_ranks_an_item_once_even_if_its_rise_is_always_due() -> None:
    asked = []

    def never_satisfied(item: Item, now: float) -> float:
        asked.append(item)
        return now

    queue: RankedQueue[Item] = RankedQueue(rank, never_satisfied, 0.0)
    for arrived in (0.0, 1.0, 2.0):
        queue.add_request(Item(arrived, 1))
    del asked[:]
    assert queue.advance(5.0) == 3
    assert len(asked) == len(set(asked)) == 3
    assert queue.advance(5.0) == 3  # in the next step they are due again


def test_what_left_is_not_ranked_again() -> None:
    queue: RankedQueue[Item] = RankedQueue(rank, next_rise, 0.0)
    stays, leaves = Item(0.0, 1), Item(0.0, 1)
    queue.add_request(stays)
    queue.add_request(leaves)
    queue.remove_request(leaves)
    assert queue.advance(10.0) == 1


MOMENTS = st.floats(0, 4e9) | st.floats(0, 1e-300) | st.sampled_from([0.0, 5e-324, 1.7e9 + 1 / 3, 2.0**53])


@given(st.lists(MOMENTS, min_size=1, max_size=6), st.lists(st.tuples(st.integers(0, 6), st.integers(-2, 2))))
def test_after_a_step_all_that_was_due_has_risen_and_nothing_was_ranked_twice(
    arrivals: list[float], steps: list[tuple[int, int]]
) -> None:
    """Steps at the very moment at which somebody rises, and a float or two beside it."""
    coordinator, asked = Coordinator(CoordinatorConfig()), list[Item]()

    def ranked(item: Item, now: float) -> Rank:
        asked.append(item)
        return coordinator.rank(service=ServiceClass.REACTIVE, task=0.0, arrived=item.arrived, now=now)

    queue: RankedQueue[Item] = RankedQueue(
        ranked, lambda item, now: coordinator.next_rise(arrived=item.arrived, now=now), min(arrivals)
    )
    items = [Item(arrived, 1) for arrived in arrivals]
    for item in items:
        queue.add_request(item)
    now = queue.now
    for number, floats in steps:
        now = max(now, arrivals[number % len(arrivals)] + 5.0 * number)
        for _ in range(abs(floats)):
            now = math.nextafter(now, math.inf if floats > 0 else 0.0)
        del asked[:]
        assert queue.advance(now) == len(asked) == len(set(asked))
        live = {each[2]: each[0] for each in queue._heap if queue._entries.get(each[2]) == each[1]}
        assert live == {item: ranked(item, queue.now) for item in items}


STEPS = [(8, 20_000), (32, 90_000), (16, 20_000), (2_048, 0), (512, 40_000), (1_024, 40_000)]


def taught(steps: int = 300, *, noise: float = 0.0, seed: int = 1) -> StepTimeModel:
    rng, pace = random.Random(seed), StepTimeModel()
    for _ in range(steps):
        tokens, context = rng.choice(STEPS)
        seconds = (0.003 + 2e-5 * tokens + 5e-8 * context) * (1 + rng.uniform(-noise, noise))
        pace.observe(seconds, tokens=tokens, context=context, rows=tokens if tokens < 64 else 0)
    return pace


def test_it_learns_what_steps_cost() -> None:
    pace = taught()
    assert pace.steps == 300
    assert pace.per_token_s == pytest.approx(2e-5, rel=0.01)
    assert pace.predict(rows=8, context=100_000) == pytest.approx(0.00816, rel=0.01)
    assert pace.predict(rows=0, prefill=1_000, context=10_000) == pytest.approx(0.0235, rel=0.01)


def test_noise_does_not_throw_it_off() -> None:
    assert taught(noise=0.2).predict(rows=0, prefill=2_048, context=0) == pytest.approx(0.044, rel=0.1)


def test_it_follows_a_change() -> None:
    pace = taught()
    for _ in range(400):
        pace.observe(0.003 + 8e-5 * 2_048, tokens=2_048, rows=0, context=0)
        pace.observe(0.003 + 8e-5 * 8, tokens=8, rows=8, context=0)
    assert pace.per_token_s == pytest.approx(8e-5, rel=0.05)


def test_room_in_a_step() -> None:
    pace = taught()
    assert pace.tokens_within(0.05, rows=10, context=20_000) == pytest.approx(2_290, rel=0.02)
    assert pace.tokens_within(0.001, rows=10, context=20_000) == 0


def test_nothing_is_ever_negative() -> None:
    pace = StepTimeModel()
    for tokens in (1_000, 10, 500, 3):
        pace.observe(0.1 / tokens, tokens=tokens, context=tokens * 10, rows=tokens if tokens < 100 else 0)
    assert pace.per_token_s > 0 and pace.predict(rows=5, context=5) > 0


def test_many_steps_of_one_kind_do_not_blow_it_up() -> None:
    pace = StepTimeModel()
    for _ in range(20_000):
        pace.observe(0.01, tokens=16, rows=16, context=1_000)
    assert pace.predict(rows=16, context=1_000) == pytest.approx(0.01, rel=0.01)


def bent(tokens: int, context: int) -> float:
    """As a device that reads its weights in 110 ms, and computes a token in 6 ms."""
    return max(0.110, 0.006 * tokens) + 1e-6 * context


def taught_by_a_bent_device() -> StepTimeModel:
    rng, pace = random.Random(1), StepTimeModel()
    for _ in range(400):
        rows, chunk = rng.randint(1, 8), rng.choice((0, 0, 10, 64, 256))
        context = rows * rng.randint(50, 2_000)
        seconds = bent(rows + chunk, context) * (1 + rng.uniform(-0.02, 0.02))
        pace.observe(seconds, tokens=rows + chunk, rows=rows, context=context)
    return pace


def test_beside_what_waits_for_memory_tokens_cost_nothing_up_to_the_bend() -> None:
    pace = taught_by_a_bent_device()
    alone = pace.predict(rows=2, context=1_000)
    assert alone == pytest.approx(0.111, rel=0.03)
    assert pace.predict(rows=2, context=1_000, prefill=12) < 1.05 * alone
    assert pace.predict(rows=2, context=1_000, prefill=198) == pytest.approx(1.2, rel=0.05)
    assert 12 <= pace.tokens_within(1.1 * alone, rows=2, context=1_000) <= 20


def test_small_chunks_beside_decoding_do_not_teach_that_large_ones_are_cheap() -> None:
    pace = taught_by_a_bent_device()
    for _ in range(500):
        pace.observe(bent(12, 500), tokens=12, rows=2, context=500)
    assert pace.predict(rows=2, context=1_000, prefill=198) == pytest.approx(1.2, rel=0.05)


def test_without_a_prompt_a_token_costs_what_decoding_shows() -> None:
    pace = StepTimeModel()
    for rows in range(1, 33):
        pace.observe(0.002 + 1e-3 * rows, tokens=rows, rows=rows, context=0)
    assert pace.predict(rows=10, context=0) == pytest.approx(0.012, rel=0.02)
    assert pace.per_token_s == pytest.approx(1e-3, rel=0.02)


def test_what_one_row_leaves_is_found_though_none_but_one_ever_decodes() -> None:
    pace = StepTimeModel()
    for _ in range(100):
        pace.observe(bent(1, 200), tokens=1, rows=1, context=200)
        pace.observe(bent(256, 0), tokens=256, rows=0, context=0)
        pace.observe(bent(88, 0), tokens=88, rows=0, context=0)
    assert pace.overlap == 0.0
    assert pace.tokens_within(1.1 * bent(1, 200), rows=1, context=200) <= 2
    for _ in range(5):
        pace.observe(bent(3, 200), tokens=3, rows=1, context=200)
    assert pace.tokens_within(1.1 * bent(1, 200), rows=1, context=200) >= 16


def test_where_nothing_is_hidden_noise_does_not_look_like_it() -> None:
    rng, pace = random.Random(1), StepTimeModel()
    for _ in range(400):
        for rows, chunk in ((32, 0), (32, 20), (0, 2_048), (16, 512), (8, 0)):
            seconds = (0.004 + 14e-6 * (rows + chunk)) * (1 + rng.uniform(-0.02, 0.02))
            pace.observe(seconds, tokens=rows + chunk, rows=rows, context=0)
    assert pace.overlap < 0.35
    assert pace.predict(rows=16, context=0, prefill=512) == pytest.approx(0.0114, rel=0.1)


def test_no_room_is_none_where_all_is_hidden() -> None:
    pace = taught_by_a_bent_device()
    for _ in range(200):
        pace.observe(0.1, tokens=12, rows=2, context=0)
    assert pace.overlap == 1.0
    assert pace.tokens_within(0.05, rows=2, context=0) == 0
