"""In which order the sessions of a tenant wait."""

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from gateway.admission.packing import Entry, TenantQueue
from gateway.domain.ids import SessionId
from tests.admission.applicants import entry
from tests.examples import examples


def queue(*entries: Entry, order="smallest") -> TenantQueue:
    waiting = TenantQueue(order)
    for each in entries:
        waiting.put(each)
    return waiting


def order(waiting: TenantQueue, *, is_cpu_bound=False) -> str:
    out = ""
    while (first := waiting.next(is_cpu_bound=is_cpu_bound)) is not None:
        out += waiting.take(first.session).session
    return out


def test_smaller_ones_first_and_those_with_the_least_for_tools_under_cpu_pressure():
    sessions = [entry("a", size=5000, tool_s=5), entry("b", size=500, tool_s=50), entry("c", size=50_000)]
    assert order(queue(*sessions)) == "bac"
    assert order(queue(*sessions), is_cpu_bound=True) == "cab"
    sessions[2].tool_s = 99
    assert order(queue(*sessions), is_cpu_bound=True) == "abc"
    by_arrival = queue(entry("a", size=9, since=2), entry("b", size=900, since=1), order="arrival")
    assert order(by_arrival, is_cpu_bound=True) == "ba"


def test_about_equal_ones_in_the_order_of_their_tasks():
    assert order(queue(entry("a", size=1010, arrived=2), entry("b", size=1020, arrived=1))) == "ba"


def test_who_was_in_before_is_first():
    assert order(queue(entry("a", size=1), entry("b", size=900, arrived=5, is_warm=True))) == "ba"


def test_an_empty_queue_has_nobody():
    waiting = TenantQueue("smallest")
    assert waiting.next(is_cpu_bound=False) is None
    assert waiting.oldest() is waiting.newest() is None
    with pytest.raises(KeyError):
        waiting.take(SessionId("nobody"))


class Queues(RuleBasedStateMachine):
    """Beside the queue a list, which is searched."""

    def __init__(self) -> None:
        super().__init__()
        self.queue = TenantQueue("smallest")
        self.oracle: dict[str, Entry] = {}
        self.count = 0

    @rule(
        size=st.sampled_from([1.0, 10.0, 100.0, 1e4]), tool_s=st.sampled_from([1.0, 2.0]), warm=st.booleans()
    )
    def comes(self, size, tool_s, warm):
        self.count += 1
        name = f"s{self.count}"
        self.oracle[name] = entry(
            name, size=size, tool_s=tool_s, arrived=-self.count, since=self.count, is_warm=warm
        )
        self.queue.put(self.oracle[name])

    @rule(data=st.data())
    def goes(self, data):
        if self.oracle:
            name = data.draw(st.sampled_from(sorted(self.oracle)))
            assert self.queue.take(SessionId(name)) is self.oracle.pop(name)

    @rule()
    def comes_back(self):
        if self.oracle:
            name = next(iter(self.oracle))
            self.queue.take(SessionId(name))
            self.queue.put(self.oracle[name])

    @invariant()
    def agrees_with_the_oracle(self):
        waiting = list(self.oracle.values())
        assert len(self.queue) == len(waiting)
        warm = [each for each in waiting if each.is_warm]
        for is_cpu_bound, key in ((False, lambda e: e.size), (True, lambda e: e.tool_s)):
            found = self.queue.next(is_cpu_bound=is_cpu_bound)
            if warm:
                assert found is min(warm, key=lambda e: e.task_arrived_s)
            else:
                assert found is min(waiting, key=lambda e: (key(e), e.task_arrived_s), default=None)
        assert self.queue.newest() is max(waiting, key=lambda e: e.task_arrived_s, default=None)
        assert self.queue.oldest() is min(waiting, key=lambda e: e.since_s, default=None)
        assert all(SessionId(name) in self.queue for name in self.oracle)
        assert len(self.queue.some(2)) == min(2, len(waiting))
        for heap in (self.queue._oldest, self.queue._smallest, self.queue._lightest, self.queue._newest):
            assert len(heap) <= 2 * len(waiting) + 17


Queues.TestCase.settings = settings(max_examples=examples(40), stateful_step_count=60, deadline=None)
TestQueues = Queues.TestCase
