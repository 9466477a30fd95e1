"""Passive health: who is ejected for what, who is tried again, who warms up, and who never goes."""

import itertools
import math
from collections import deque

import msgspec
import pytest

from gateway.domain.ids import PoolId, ReplicaId, RequestId, TenantId
from gateway.fleet.breaker_states import BreakerState, HealthConfig
from gateway.fleet.circuit_breakers import FleetHealth
from gateway.fleet.outliers import Phase

POOL = PoolId("pool")
A, B, C = map(ReplicaId, "abc")


class Fleet:
    """Turns by number, sent to replicas that are expected to begin within 100 ms."""

    def __init__(self, replicas: str = "abc", **settings):
        self.health = FleetHealth(msgspec.convert(settings, HealthConfig))
        self.now, self.turns = 0.0, itertools.count()
        for replica in replicas:
            self.health.came_up(ReplicaId(replica), POOL, now=0.0)

    def later(self, seconds):
        self.now += seconds
        if self.now >= self.health.next_due_s:
            self.health.pass_time(now=self.now)

    def send(self, replica, p90_s=0.1, end_p90_s=float("inf"), **told):
        request = RequestId(f"r{next(self.turns)}")
        self.health.sent(request, replica, p90_s, end_p90_s, **told, now=self.now)
        return request

    def answer(self, replica, *, tokens, seconds=1.2, first_s=0.05, p90_s=0.1):
        request = self.send(replica, p90_s, 0.5, output_tokens=100.0)
        self.later(first_s)
        self.health.first_token(request, replica, now=self.now)
        self.later(seconds - first_s)
        self.health.ended(request, replica, failed=False, output_tokens=tokens, now=self.now)

    def fail(self, replica, times=1):
        for _ in range(times):
            self.health.ended(self.send(replica), replica, failed=True, now=self.now)

    def serve(self, replica, seconds=0.05):
        request = self.send(replica)
        self.later(seconds)
        self.health.first_token(request, replica, now=self.now)
        self.health.ended(request, replica, failed=False, now=self.now)

    def is_(self, replica, state):
        return self.health.state(replica) is state

    def may_take(self, replica, running=0, usual=10.0):
        return self.health.may_take(replica, running, usual, now=self.now)


def test_failures_in_a_row_have_it_ejected():
    fleet = Fleet()
    fleet.fail("a", 2)
    fleet.serve("a")
    fleet.fail("a", 2)
    assert fleet.health.all_up
    fleet.fail("a")
    assert fleet.is_("a", BreakerState.EJECTED) and not fleet.health.all_up
    assert not fleet.may_take("a") and fleet.may_take("b", running=1000)
    assert [(each.replica, each.state) for each in fleet.health.changes] == [("a", "ejected")]


def test_the_last_one_that_fails_stays_and_is_named_until_it_answers():
    fleet = Fleet("a")
    fleet.fail("a", 7)
    assert fleet.is_("a", BreakerState.UP) and fleet.health.failing(A) == "fails"
    fleet.serve("a")
    assert fleet.health.failing(A) is None
    assert [each.state for each in fleet.health.changes] == ["failing", "up"], "once each"
    fleet.fail("a", 3)
    fleet.health.came_up(B, POOL, now=0.0)
    fleet.fail("a")
    assert fleet.is_("a", BreakerState.EJECTED) and fleet.health.failing(A) is None


def test_what_shows_nothing_of_what_failed_does_not_excuse_it():
    fleet = Fleet()
    for _ in range(3):
        fleet.fail("a")
        fleet.health.ended(fleet.send("a"), A, failed=False, effort=0, now=0.0)
    assert fleet.is_("a", BreakerState.EJECTED)


def test_what_says_nothing_of_the_replica_counts_for_nothing():
    fleet = Fleet()
    fleet.fail("a", 2)
    fleet.health.ended(fleet.send("a"), A, failed=None, now=0.0)
    fleet.fail("a")
    assert fleet.is_("a", BreakerState.EJECTED)


def test_slow_is_what_is_overdue_whether_it_comes_or_not():
    fleet = Fleet()
    for _ in range(3):
        fleet.send("a")
    fleet.later(0.2)
    assert fleet.health.all_up, "later than expected, but not long"
    fleet.later(0.05)
    assert fleet.is_("a", BreakerState.EJECTED)


def test_a_turn_in_time_between_slow_ones_clears_them():
    fleet = Fleet()
    for seconds in (1.0, 1.0, 0.1, 1.0, 1.0):
        fleet.serve("a", seconds)
    assert fleet.health.all_up
    fleet.serve("a", 1.0)
    assert fleet.is_("a", BreakerState.EJECTED)


def test_a_turn_counts_again_for_as_long_as_it_is_awaited():
    fleet = Fleet()
    fleet.send("a")
    for _ in range(2):
        fleet.later(0.25)
        assert fleet.health.all_up
    fleet.later(0.25)
    assert fleet.is_("a", BreakerState.EJECTED)


def test_first_tokens_in_time_do_not_excuse_late_ends():
    fleet = Fleet(slow_factor=2.0, slow_until_out=3)
    for _ in range(3):
        assert fleet.health.all_up
        fleet.answer("a", tokens=100)
    assert fleet.is_("a", BreakerState.EJECTED)


def test_an_end_is_late_for_what_was_generated():
    fleet = Fleet(slow_factor=2.0, slow_until_out=3)
    for _ in range(20):
        fleet.answer("b", tokens=100, seconds=0.2)
    for tokens in (300, 1000, None, 2000, None):
        fleet.answer("a", tokens=tokens, seconds=3.0)
    assert fleet.health.all_up and not fleet.health.outliers.late
    for tokens in (10, 90, 110):
        assert fleet.health.all_up
        fleet.answer("a", tokens=tokens, seconds=3.0)
    assert fleet.is_("a", BreakerState.EJECTED) and fleet.health.outliers.slower(A) > 3.0


def test_an_end_is_not_late_because_the_first_token_was():
    fleet = Fleet(slow_factor=2.0)
    fleet.answer("a", tokens=100, first_s=1.05, seconds=1.1)
    assert fleet.health._breakers[A].slow == {Phase.START: 1, Phase.END: 0}


def test_an_answer_that_goes_on_says_nothing():
    fleet = Fleet(slow_factor=2.0)
    requests = [fleet.send("a", 0.5, 0.5, output_tokens=100.0) for _ in range(9)]
    fleet.later(0.1)
    for request in requests:
        fleet.health.first_token(request, A, now=fleet.now)
    for _ in range(9):
        fleet.later(10.0)
    assert fleet.health.all_up and not fleet.health.outliers.late


def test_what_is_not_streamed_counts_when_it_is_there():
    fleet = Fleet(slow_factor=2.0, slow_until_out=3)
    for _ in range(2):
        fleet.answer("a", tokens=100, first_s=1.2, p90_s=float("inf"))
    fleet.answer("a", tokens=1000, first_s=1.2, p90_s=float("inf"))
    fleet.answer("a", tokens=100, first_s=0.5, seconds=0.5, p90_s=float("inf"))
    assert fleet.health.all_up
    for _ in range(3):
        assert fleet.health.all_up
        fleet.answer("a", tokens=100, first_s=1.2, p90_s=float("inf"))
    assert fleet.is_("a", BreakerState.EJECTED)


def test_a_turn_of_which_nothing_is_expected_is_never_slow():
    fleet = Fleet()
    for _ in range(5):
        fleet.send("a", p90_s=None)
    fleet.later(1000.0)
    assert fleet.health.all_up


def test_where_all_are_slow_it_is_nobodys_fault():
    fleet = Fleet()
    for _ in range(5):
        for replica in "abc":
            fleet.send(replica)
    fleet.later(10.0)
    assert fleet.health.all_up


def test_the_last_one_stays_and_so_does_half_of_the_pool():
    fleet = Fleet("a")
    fleet.fail("a", 10)
    assert fleet.health.all_up
    fleet = Fleet("abcd")
    for replica in "abcd":
        fleet.fail(replica, 10)
    assert [fleet.is_(each, BreakerState.EJECTED) for each in "abcd"] == [True, True, False, False]
    fleet.serve("d")
    fleet.later(20.0)
    fleet.serve("d")
    fleet.serve("c")
    fleet.fail("c", 10)
    assert fleet.is_("c", BreakerState.UP), "it served somebody not long ago"
    fleet.later(31.0)
    fleet.serve("d")
    fleet.fail("c")
    assert fleet.is_("c", BreakerState.EJECTED) and fleet.is_("d", BreakerState.UP)
    fleet.fail("d", 10)
    assert fleet.is_("d", BreakerState.UP), "the last one"
    fleet = Fleet(max_ejected_share=0.0)
    fleet.fail("a", 10)
    assert fleet.health.all_up


def test_failures_of_one_tenant_eject_nobody_who_serves_another():
    fleet, mean, kind = Fleet(), TenantId("mean"), TenantId("kind")

    def ended(tenant, failed):
        fleet.health.ended(fleet.send("a"), A, failed=failed, tenant=tenant, now=fleet.now)

    ended(mean, True)
    for _ in range(5):
        ended(kind, False)
        for _ in range(10):
            ended(mean, True)
        fleet.later(10.0)
    assert fleet.is_("a", BreakerState.UP)
    ended(kind, True)
    assert fleet.is_("a", BreakerState.EJECTED), "it fails others, too"
    fleet = Fleet()
    ended(kind, False)
    for _ in range(3):
        ended(mean, True)
    assert fleet.is_("a", BreakerState.EJECTED), "nothing went well since it broke"


def test_what_is_down_counts_for_the_floor():
    fleet = Fleet("ab")
    fleet.health.went_down(B, now=0.0)
    fleet.fail("a", 10)
    assert fleet.is_("a", BreakerState.UP)


def test_after_a_rest_one_turn_is_tried_and_then_its_share_grows():
    fleet = Fleet(ejection_s=5.0, slow_start_s=10.0)
    fleet.fail("a", 3)
    fleet.later(4.9)
    assert fleet.is_("a", BreakerState.EJECTED)
    fleet.later(0.1)
    assert fleet.is_("a", BreakerState.TRIED) and fleet.may_take("a")
    trial = fleet.send("a")
    assert not fleet.may_take("a"), "one at a time"
    fleet.health.first_token(trial, A, now=fleet.now)
    assert fleet.is_("a", BreakerState.WARMING)
    assert fleet.may_take("a") and not fleet.may_take("a", running=1)
    fleet.later(5.0)
    assert fleet.may_take("a", running=5) and not fleet.may_take("a", running=6)
    fleet.later(5.0)
    assert fleet.is_("a", BreakerState.UP) and fleet.may_take("a", running=1000) and fleet.health.all_up


def test_a_trial_that_fails_doubles_the_rest_up_to_a_bound():
    fleet = Fleet(ejection_s=1.0, max_ejection_s=4.0)
    fleet.fail("a", 3)
    rests = []
    for _ in range(4):
        began = fleet.now
        while not fleet.is_("a", BreakerState.TRIED):
            fleet.later(0.25)
        rests.append(fleet.now - began)
        fleet.fail("a")
    assert rests == [1.0, 2.0, 4.0, 4.0]


def test_only_its_trial_speaks_for_a_replica_that_is_tried():
    fleet = Fleet(ejection_s=1.0)
    old = fleet.send("a", p90_s=100.0)
    fleet.fail("a", 3)
    fleet.later(1.0)
    fleet.health.first_token(old, A, now=fleet.now)
    assert fleet.is_("a", BreakerState.TRIED)
    trial = fleet.send("a")
    fleet.health.ended(trial, A, failed=None, now=fleet.now)
    assert fleet.may_take("a"), "its client left: the next one is the trial"


def test_a_trial_that_is_overdue_ends_it():
    fleet = Fleet(ejection_s=1.0)
    fleet.fail("a", 3)
    fleet.later(1.0)
    _ = fleet.send("a")
    fleet.later(1.0)
    assert fleet.is_("a", BreakerState.EJECTED)


def test_work_that_has_no_first_token_may_be_the_trial():
    fleet = Fleet(ejection_s=1.0)
    fleet.fail("a", 3)
    fleet.later(1.0)
    fleet.health.ended(fleet.send("a", p90_s=None), A, failed=False, now=fleet.now)
    assert fleet.is_("a", BreakerState.WARMING)


def test_what_stays_slow_is_let_back_in_the_end():
    fleet = Fleet(ejection_s=1.0, max_ejection_s=1.0, slow_ejections_limit=3)
    for _ in range(3):
        fleet.serve("a", 1.0)
    for _ in range(2):
        fleet.later(1.0)
        fleet.serve("a", 1.0)
        assert fleet.is_("a", BreakerState.EJECTED)
    fleet.later(1.0)
    fleet.serve("a", 1.0)
    assert fleet.is_("a", BreakerState.WARMING)


def test_whoever_comes_back_or_joins_late_starts_slowly():
    fleet = Fleet("ab")
    fleet.later(100.0)
    fleet.health.went_down(A, now=fleet.now)
    fleet.health.went_down(A, now=fleet.now)
    assert not fleet.may_take("a")
    fleet.health.came_up(A, POOL, now=fleet.now)
    fleet.health.came_up(C, POOL, now=fleet.now)
    assert fleet.is_("a", BreakerState.WARMING) and fleet.is_("c", BreakerState.WARMING)
    fleet.health.forget(C)
    fleet.health.forget(A)
    assert fleet.health.all_up


def test_memory_is_bounded_by_what_lives():
    fleet = Fleet()
    for _ in range(1000):
        fleet.health.ended(fleet.send("a", p90_s=1e6), A, failed=False, now=0.0)
    assert not fleet.health._awaited and len(fleet.health._overdue) < 100
    fleet.health.first_token(RequestId("unknown"), A, now=0.0)
    fleet.health.ended(RequestId("unknown"), ReplicaId("gone"), failed=True, now=0.0)


def test_who_is_behind_a_large_prompt_says_nothing_of_the_replica():
    fleet = Fleet(slow_until_out=3, slow_factor=2.0)
    large = fleet.send("a", worst_s=4.0)
    behind = [fleet.send("a", worst_s=0.1) for _ in range(3)]
    fleet.later(7.9)
    assert fleet.is_("a", BreakerState.UP), "twice the four seconds are not over"
    for request in (large, *behind):
        fleet.health.first_token(request, A, now=fleet.now)
        fleet.health.ended(request, ReplicaId("a"), failed=False, now=fleet.now)
    for _ in range(3):
        fleet.send("a", worst_s=0.1)
    fleet.later(0.5)
    assert fleet.is_("a", BreakerState.UP)
    fleet.later(0.2)
    assert fleet.is_("a", BreakerState.EJECTED), "nothing else is ahead of these three"


def test_what_was_ahead_is_gone_however_it_ended():
    fleet = Fleet(slow_until_out=2, failures_until_out=9)
    broken, left = fleet.send("a", worst_s=50.0), fleet.send("a", worst_s=50.0)
    fleet.health.ended(broken, ReplicaId("a"), failed=True, now=fleet.now)
    fleet.health.ended(left, ReplicaId("a"), failed=None, now=fleet.now)
    fleet.send("a")
    fleet.send("a")
    fleet.later(0.3)
    assert fleet.is_("a", BreakerState.EJECTED)


def test_a_replica_is_late_if_its_turns_are_and_the_others_are_not():
    fleet = Fleet(slow_until_out=1000)
    for _ in range(20):
        for each in "abc":
            fleet.serve(each, 0.05)
    assert not fleet.health.outliers.late and fleet.health.outliers.slower(A) == 1.0
    fleet.serve("a", 1.0)
    assert fleet.health.outliers.slower(A) == 1.0, "one turn may be late"
    assert fleet.health.outliers.slower(A, at_least=0.0) > 3.0
    fleet.serve("a", 1.0)
    assert fleet.health.outliers.late and fleet.health.outliers.slower(A) > 3.0
    assert fleet.health.all_up, "it may have what it can take"
    for _ in range(2):
        fleet.serve("a", 0.05)
    assert not fleet.health.outliers.late
    for _ in range(6):
        for each in "abc":
            fleet.serve(each, 1.0)
    assert not fleet.health.outliers.late, "all are"


def test_lateness_counts_for_a_while_and_nobody_is_avoided_for_good():
    fleet = Fleet(slow_until_out=1000, ejection_s=5.0)
    for each in "bc" * 10 + "aaa":
        fleet.serve(each, 1.0 if each == "a" else 0.05)
    assert fleet.health.outliers.late
    fleet.later(4.0)
    assert fleet.health.outliers.late
    fleet.later(1.1)
    assert not fleet.health.outliers.late
    fleet.serve("a", 1.0)
    assert fleet.health.outliers.late, "it still is"
    fleet.health.forget(A)
    assert not fleet.health.outliers.late


def test_one_that_was_warm_again_rests_as_the_first_time():
    fleet = Fleet()
    for _ in range(2):
        fleet.fail("a", 3)
        assert fleet.is_("a", BreakerState.EJECTED)
        fleet.later(5.0)
        assert fleet.is_("a", BreakerState.TRIED)
        fleet.serve("a")
        fleet.later(10.0)
        assert fleet.is_("a", BreakerState.UP)


def test_it_is_compared_with_those_that_serve():
    fleet = Fleet("abcd")
    for name in "cd":
        fleet.health.went_down(ReplicaId(name), now=0.0)
    for _ in range(9):
        for name in "ba":
            fleet.serve(name, 1.0)
    assert fleet.is_("a", BreakerState.UP) and fleet.is_("b", BreakerState.UP), "all that serve are late"


# --- of which too little was seen ------------------------------------------------------------------


@pytest.mark.parametrize("p90_s", [None, math.inf], ids=["young", "experienced"])
def test_of_answers_that_are_not_streamed_the_ends_are_compared(p90_s):
    fleet = Fleet()

    def whole(replica, *, ends):
        request = fleet.send(replica, p90_s, end_p90_s=0.5, worst_s=0.05 if p90_s else 0.5)
        fleet.later(0.5)
        if ends:
            whole_answer(fleet, request, ReplicaId(replica))

    for _ in range(3):
        whole("b", ends=True)
        whole("a", ends=False)
    for _ in range(20):
        whole("b", ends=True)
    assert fleet.is_("a", BreakerState.EJECTED)
    for _ in range(20):
        whole("c", ends=True)
    assert fleet.is_("c", BreakerState.UP) and fleet.is_("b", BreakerState.UP)


def test_clients_that_give_up_hide_no_silence():
    """Six turns wait at any time; each client leaves after 3 s, and asks again."""
    fleet = Fleet()
    waiting: deque[RequestId] = deque()
    for _ in range(3):
        whole_answer(fleet, whole_turn(fleet, "a"), A)
    for _ in range(40):
        waiting.append(whole_turn(fleet, "a"))
        answered = whole_turn(fleet, "b")
        fleet.later(0.5)
        whole_answer(fleet, answered, B)
        if len(waiting) > 6:
            fleet.health.ended(waiting.popleft(), A, failed=None, now=fleet.now)
    assert fleet.is_("a", BreakerState.EJECTED) and fleet.is_("b", BreakerState.UP)


def test_clients_that_ask_one_after_the_other_and_give_up_hide_no_silence():
    fleet = Fleet()
    for _ in range(5):
        fleet.health.ended(whole_turn(fleet, "a"), A, failed=None, now=fleet.now)  # at once: it says nothing
        answered, left = whole_turn(fleet, "b"), whole_turn(fleet, "a")
        fleet.later(0.5)
        whole_answer(fleet, answered, B)
        fleet.later(4.5)
        fleet.health.ended(left, A, failed=None, now=fleet.now)
    assert [(each.replica, each.state) for each in fleet.health.changes][:1] == [("a", "ejected")]
    assert fleet.is_("b", BreakerState.UP) and fleet.now < 26.0


def test_a_replica_that_nobody_asks_any_more_is_not_silent():
    fleet = Fleet()
    for left in [whole_turn(fleet, "a") for _ in range(4)]:
        fleet.later(0.2)
        fleet.health.ended(left, A, failed=None, now=fleet.now)
    for _ in range(40):
        answered = whole_turn(fleet, "b")
        fleet.later(0.5)
        whole_answer(fleet, answered, B)
    whole_turn(fleet, "a")
    fleet.later(1.0)
    assert fleet.is_("a", BreakerState.UP)


def test_who_is_silent_is_found_where_nothing_ends_any_more():
    fleet = Fleet()
    for _ in range(3):
        whole_turn(fleet, "a")
    for _ in range(4):
        answered = whole_turn(fleet, "b")
        fleet.later(0.5)
        whole_answer(fleet, answered, B)
    assert fleet.is_("a", BreakerState.UP)
    for _ in range(5):
        fleet.later(1.0)
    assert fleet.is_("a", BreakerState.EJECTED)


def whole_turn(fleet, replica):
    """Of a prompt of 50 ms, and an answer of half a second that is not streamed."""
    return fleet.send(replica, math.inf, end_p90_s=0.5, worst_s=0.05)


def whole_answer(fleet, request, replica):
    fleet.health.first_token(request, replica, now=fleet.now)
    fleet.health.ended(request, replica, failed=False, output_tokens=50, now=fleet.now)


def turns(fleet, replica, number, *, begin_after_s=None):
    """Sent 0.1 s after one another; those that begin do so in time for the others'."""
    for _ in range(number):
        request = fleet.send(replica, None, worst_s=0.05)
        fleet.later(0.1)
        if begin_after_s is not None:
            fleet.later(begin_after_s)
            fleet.health.first_token(request, ReplicaId(replica), now=fleet.now)


@pytest.mark.parametrize(
    ("silent", "others_s", "is_wedged"),
    [(3, 0.1, True), (2, 0.1, False), (3, None, False), (3, 1.0, False)],
    ids=["others begin", "too few of them", "nobody begins", "others are slow, too"],
)
def test_a_newcomer_that_answers_nothing_while_others_do_is_tried_with_one_turn(silent, others_s, is_wedged):
    fleet = Fleet(ejection_s=5.0)
    turns(fleet, "a", silent)
    turns(fleet, "b", 12 if others_s != 1.0 else 3, begin_after_s=others_s)
    assert fleet.is_("a", BreakerState.EJECTED) is is_wedged
    if is_wedged:
        fleet.later(5.0)
        trial = fleet.send("a", None, worst_s=0.05)
        assert trial and not fleet.may_take("a"), "one at a time"


def test_a_newcomer_that_shows_a_sign_of_life_is_waited_for():
    fleet = Fleet()
    first = fleet.send("a", None, worst_s=0.05)
    turns(fleet, "a", 3)
    turns(fleet, "b", 4, begin_after_s=0.1)
    fleet.health.first_token(first, A, now=fleet.now)
    turns(fleet, "b", 9, begin_after_s=0.1)
    assert fleet.health.all_up


def test_a_newcomer_is_not_blamed_for_what_the_gateway_stood_still_for():
    fleet = Fleet()
    turns(fleet, "a", 3)
    turns(fleet, "b", 3, begin_after_s=0.1)
    fleet.now += 60.0
    fleet.health.stalled(60.0)
    turns(fleet, "b", 1, begin_after_s=0.1)
    assert fleet.health.all_up


def test_what_the_gateway_stood_still_for_is_nobodys_lateness():
    fleet = Fleet()
    requests = [fleet.send("a") for _ in range(3)]
    fleet.now += 60.0
    fleet.health.stalled(60.0)
    fleet.health.pass_time(now=fleet.now - 0.2)
    assert fleet.health.all_up and not fleet.health.outliers.late
    fleet.later(0.3)
    assert requests and fleet.is_("a", BreakerState.EJECTED), "from then on it counts"
