"""In which order the sessions of a tenant wait."""

import msgspec
import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from gateway.admission.packing import Entry, PackingConfig, TenantQueue
from gateway.domain.ids import SessionId
from tests.admission.applicants import entry
from tests.examples import examples

CONFIG = PackingConfig(starved_s=100.0, patience=3.0)
SMALLEST = PackingConfig(order="smallest", starved_s=100.0, patience=3.0)
BY_ARRIVAL = PackingConfig(order="arrival")


def queue(*entries: Entry, config=CONFIG) -> TenantQueue:
    waiting = TenantQueue(config)
    for each in entries:
        waiting.put(each)
    return waiting


def order(waiting: TenantQueue, *, is_cpu_bound=False, now=0.0) -> str:
    out = ""
    asked = {"is_cpu_bound": is_cpu_bound, "now": now}
    while (first := waiting.next(**asked)) is not None:
        out += waiting.take(first.session).session
    return out


def test_smaller_ones_first_and_those_with_the_least_for_tools_under_cpu_pressure():
    sessions = [entry("a", size=5000, tool_s=5), entry("b", size=500, tool_s=50), entry("c", size=50_000)]
    assert order(queue(*sessions, config=SMALLEST)) == "bac"
    assert order(queue(*sessions), is_cpu_bound=True) == "cab"
    sessions[2].tool_s = 99
    assert order(queue(*sessions), is_cpu_bound=True) == "abc"
    assert order(queue(*sessions, config=BY_ARRIVAL), is_cpu_bound=True) == "abc"


def test_about_equal_ones_in_the_order_of_their_tasks():
    equal = [entry("a", size=1010, arrived=2), entry("b", size=1020, arrived=1)]
    assert order(queue(*equal, config=SMALLEST)) == "ba"
    unequal = [entry("a", size=9, since=2), entry("b", size=900, since=1)]
    assert order(queue(*unequal, config=BY_ARRIVAL)) == "ba"
    with pytest.raises(msgspec.ValidationError, match="order"):
        msgspec.convert({"order": "largest"}, PackingConfig)


def test_the_newest_is_first_while_it_can_still_be_quick():
    came = (("a", 0.0), ("b", 5.0), ("c", 15.0))

    def waiting() -> TenantQueue:
        # Alone they would take 200 s, so they are quick if they wait for less than 20.
        return queue(*(entry(name, arrived=at, since=at, isolated_s=200.0) for name, at in came))

    assert order(waiting(), now=16.0) == "cba"
    assert order(waiting(), now=26.0) == "cab"
    assert order(waiting(), now=36.0) == "abc"


def test_who_was_in_before_is_first():
    assert order(queue(entry("a", size=1), entry("b", size=900, arrived=5, is_warm=True))) == "ba"


def test_an_empty_queue_has_nobody():
    waiting = TenantQueue(CONFIG)
    assert waiting.next(is_cpu_bound=False, now=0) is None
    assert waiting.oldest() is waiting.newest() is None
    with pytest.raises(KeyError):
        waiting.take(SessionId("nobody"))


class Queues(RuleBasedStateMachine):
    """Beside the queue a list, which is searched."""

    def __init__(self) -> None:
        super().__init__()
        self.queue = TenantQueue(SMALLEST)
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
            found = self.queue.next(is_cpu_bound=is_cpu_bound, now=0)
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
