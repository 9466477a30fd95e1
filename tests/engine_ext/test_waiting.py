"""The ranked queue against a sorted list."""

import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from tests.examples import examples
from turnpike_vllm.coordinator import Coordinator, CoordinatorConfig, Rank
from turnpike_vllm.hints import ServiceClass
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
        self.parked: list[Item] = []
        self.is_parking = False

    @rule(worth=st.integers(0, 5), front=st.booleans())
    def add(self, worth: int, front: bool) -> None:
        self.count += 1
        item = Item(self.now + self.count * 1e-6, worth)
        (self.queue.prepend_request if front else self.queue.add_request)(item)
        (self.parked if self.is_parking else self.inside).append(item)

    @precondition(lambda self: self.inside)
    @rule()
    def pop(self) -> None:
        first = min(self.inside, key=lambda item: rank(item, self.now))
        assert self.queue.peek_request() is first
        assert self.queue.pop_request() is first
        self.inside.remove(first)

    @precondition(lambda self: self.inside or self.parked)
    @rule(data=st.data())
    def remove(self, data: st.DataObject) -> None:
        item = data.draw(st.sampled_from(self.inside + self.parked))
        self.queue.remove_request(item)
        (self.parked if item in self.parked else self.inside).remove(item)
        self.queue.remove_requests([item])  # not there: passed over

    @rule(passed=st.floats(0, 25))
    def advance(self, passed: float) -> None:
        self.now += passed
        self.queue.advance(self.now)

    @rule()
    def park(self) -> None:
        if not self.is_parking:
            self.queue.park()
            self.is_parking = True

    @rule()
    def unpark(self) -> None:
        self.queue.unpark()
        self.inside += self.parked
        self.parked, self.is_parking = [], False

    @invariant()
    def agrees(self) -> None:
        assert len(self.queue) == len(self.inside) + len(self.parked)
        assert bool(self.queue) == bool(self.inside)
        assert list(self.queue) == sorted(self.inside, key=lambda each: rank(each, self.now)) + self.parked
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
