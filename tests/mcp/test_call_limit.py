from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from gateway.mcp.call_limit import CallLimit, Place

AGE_S = 20.0


def full(most_waiting: int = 9) -> tuple[CallLimit, Place]:
    limit = CallLimit(1, most_waiting=most_waiting, age_s=AGE_S)
    return limit, enter(limit)


def enter(limit: CallLimit, *, proactive: bool = False, now: float = 0.0) -> Place:
    place = limit.enter(is_proactive=proactive, now=now)
    assert place is not None
    return place


def test_one_that_waited_for_long_goes_by_its_time_alone():
    limit, running = full()
    early, background, late = (
        enter(limit, now=1.0),
        enter(limit, proactive=True, now=2.0),
        enter(limit, now=3.0),
    )
    second = limit.leave(running, now=2.0 + AGE_S)
    assert second is early
    third = limit.leave(early, now=2.0 + AGE_S)
    assert third is background
    assert limit.leave(background, now=2.0 + AGE_S) is late


def test_those_who_waited_too_long():
    limit, _ = full()
    old, new = enter(limit, now=1.0), enter(limit, now=5.0)
    background = enter(limit, proactive=True, now=2.0)
    assert list(limit.overdue(before_s=5.0)) == [old, background]
    assert list(limit.overdue(before_s=6.0)) == [old, new, background]


class Crowd(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.limit = CallLimit(2, most_waiting=3, age_s=AGE_S)
        self.now = 0.0
        self.here: list[Place] = []

    @rule(proactive=st.booleans(), later_s=st.floats(0, 30))
    def comes(self, proactive: bool, later_s: float) -> None:
        self.now += later_s
        place = self.limit.enter(is_proactive=proactive, now=self.now)
        assert (place is None) == (sum(not each.may_run for each in self.here) == 3)
        if place is not None:
            self.here.append(place)

    @precondition(lambda self: self.here)
    @rule(data=st.data())
    def leaves(self, data: st.DataObject) -> None:
        place = data.draw(st.sampled_from(self.here))
        self.here.remove(place)
        following = self.limit.leave(place, now=self.now)
        assert following is None or (following in self.here and following.may_run)

    @invariant()
    def as_many_run_as_may(self) -> None:
        running = sum(each.may_run for each in self.here)
        assert running == self.limit.running == min(2, len(self.here))
        assert self.limit.waiting == len(self.here) - running


TestCrowd = Crowd.TestCase
