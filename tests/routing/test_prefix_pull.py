"""What another replica holds of a prompt is pulled where that is predicted to be clearly quicker."""

from typing import Any

import pytest

from gateway.domain.by_agent import AgentKey
from gateway.domain.decision import Edge, SessionRef, SessionSource
from gateway.domain.fleet import ReplicaLoad
from gateway.domain.ids import ReplicaId, SessionId, TenantId, ThreadId
from gateway.domain.request import Usage
from gateway.routing.placement import Asked
from gateway.routing.predicted import PredictedPlacement, RoutingConfig
from gateway.routing.prefix_pull import PrefixPullConfig, Pull, best_pull

A, B, C = map(ReplicaId, "abc")
ON = PrefixPullConfig(enabled=True)
OWN, OTHER = AgentKey(TenantId("t"), 7), AgentKey(TenantId("t"), 8)


def about(seconds: float) -> Any:
    """What is equal to a float, and stands for one."""
    return pytest.approx(seconds)


def pull(holders, held=0.0, *, token_s=1e-4, config=ON):
    """A token takes a millisecond to be computed."""
    return best_pull(
        config,
        holders,
        held,
        transfer_s=lambda source, tokens: token_s * tokens,
        prefill_s=lambda new, cached: 1e-3 * new,
    )


def test_from_who_holds_most():
    assert pull([(A, 1_000), (B, 3_000), (C, 2_000)]) == Pull(B, 3_000, about(0.3))


def test_what_is_there_already_is_not_carried():
    assert pull([(A, 3_000)], 1_000) == Pull(A, 3_000, about(0.2))


def nearest(*holders, slow):
    """A token takes a tenth of a millisecond to come, from `slow` half of one."""
    return best_pull(
        ON,
        holders,
        0.0,
        transfer_s=lambda source, tokens: (5e-4 if source == slow else 1e-4) * tokens,
        prefill_s=lambda new, cached: 1e-3 * new,
    )


def test_of_those_that_hold_as_much_from_the_nearest():
    for slow, near in ((A, B), (B, A)):
        assert nearest((A, 3_000), (B, 3_000), slow=slow) == Pull(near, 3_000, about(0.3))


def test_from_far_away_where_that_gains_more_time():
    assert nearest((A, 3_000), (B, 1_000), slow=A) == Pull(A, 3_000, about(1.5))
    assert nearest((A, 3_000), (B, 2_000), slow=A) == Pull(B, 2_000, about(0.2))


@pytest.mark.parametrize("holders", [[], [(A, 1_000)], [(A, 400)]])
def test_nothing_where_nobody_has_more(holders):
    assert pull(holders, 1_000) is None


@pytest.mark.parametrize("there", [400, 1_000])
def test_nothing_where_nobody_has_more_however_little_is_worth_it(there):
    assert pull([(A, there)], 1_000, config=PrefixPullConfig(enabled=True, least_s=0.0)) is None


@pytest.mark.parametrize(("token_s", "is_pulled"), [(7.9e-4, True), (8.1e-4, False), (2e-3, False)])
def test_it_must_be_clearly_quicker_than_computing(token_s, is_pulled):
    assert (pull([(A, 1_000)], token_s=token_s) is not None) == is_pulled


@pytest.mark.parametrize(("tokens", "is_pulled"), [(49, False), (51, True)])
def test_what_is_computed_in_no_time_is_computed(tokens, is_pulled):
    assert (pull([(A, tokens)]) is not None) == is_pulled


class Oracle:
    """A token of a prompt takes a millisecond; and who waits behind others, as long as `queued` says."""

    def __init__(self):
        self.queued = {}

    def completion_s(self, replica, work, *, now):
        return self.queued.get(replica, 0.0) + 1e-3 * work.new_tokens

    def turn_s(self, replica, new_tokens, cached_tokens, output_tokens):
        return 1e-3 * new_tokens

    def made_of(self, replica):
        return "all alike"


class Fleet:
    """One session, whose first conversation holds 5,000 tokens on A, and a sub-agent of it."""

    def __init__(self):
        self.oracle = Oracle()
        self.policy = PredictedPlacement(RoutingConfig(), self.oracle, ON)
        first = self.ref("1", Edge.OPENS)
        self.policy.place([ReplicaLoad(A, 0)], first, self.asked(5_000))
        usage = Usage(prompt_tokens=5_000, cached_tokens=0, output_tokens=0)
        self.policy.turn_over(first, A, usage, agent=7, pauses=True, now=0.0)

    def ref(self, thread, edge):
        return SessionRef(
            session=SessionId("s"),
            thread=ThreadId(thread),
            edge=edge,
            source=SessionSource.NEW,
            confidence=1.0,
        )

    def asked(self, tokens, agent=OWN, *, can_pull=True):
        return Asked(
            0.0,
            agent,
            4 * tokens,
            lambda: tokens,
            transfer_s=(lambda source, target, each: 1e-5 * each) if can_pull else None,
        )

    def pulls(self, replica, tokens, *, edge=Edge.SPAWNED, thread="2", **fields):
        return self.policy.pull(self.ref(thread, edge), replica, self.asked(tokens, **fields))


@pytest.mark.parametrize("edge", [Edge.FORKS, Edge.SPAWNED])
def test_a_fork_pulls_what_its_parent_left(edge):
    assert Fleet().pulls(B, 5_500, edge=edge) == Pull(A, 5_000, about(0.05))


def test_a_moved_conversation_pulls_what_it_left_itself():
    assert Fleet().pulls(B, 5_500, edge=Edge.CONTINUES, thread="1") == Pull(A, 5_000, about(0.05))


def test_where_it_is_nothing_is_pulled():
    assert Fleet().pulls(A, 5_500) is None


def test_what_it_left_there_earlier_is_not_pulled_again():
    fleet = Fleet()
    earlier = Usage(prompt_tokens=3_000, cached_tokens=0, output_tokens=0)
    own = fleet.ref("1", Edge.CONTINUES)
    fleet.policy.place([ReplicaLoad(B, 0)], own, fleet.asked(3_000))
    fleet.policy.turn_over(own, B, earlier, agent=7, pauses=True, now=0.0)
    assert fleet.pulls(B, 5_500, edge=Edge.CONTINUES, thread="1") == Pull(A, 5_000, about(0.02))


def test_a_sub_agent_under_another_system_prompt_is_no_fork():
    assert Fleet().pulls(B, 5_500, agent=OTHER) is None
    assert Fleet().pulls(B, 5_500, agent=AgentKey(TenantId("t"), 0)) is None


def test_a_sub_agent_with_a_short_prompt_is_no_fork():
    assert Fleet().pulls(B, 3_900) is None
    assert Fleet().pulls(B, 4_100) == Pull(A, 4_100, about(0.041)), "never more than the prompt has"


def test_where_nothing_can_be_pulled_nothing_is():
    assert Fleet().pulls(B, 5_500, can_pull=False) is None


def test_what_was_lost_with_its_replica_is_not_pulled():
    fleet = Fleet()
    fleet.policy.replica_lost(A)
    assert fleet.pulls(B, 5_500) is None


@pytest.mark.parametrize(("can_pull", "chosen"), [(True, B), (False, A)])
def test_a_busy_home_is_left_sooner_by_who_can_pull(can_pull, chosen):
    fleet = Fleet()
    fleet.oracle.queued = {A: 2.0}
    loads = [ReplicaLoad(A, 9), ReplicaLoad(B, 0)]
    asked = fleet.asked(5_500, can_pull=can_pull)
    assert fleet.policy.place(loads, fleet.ref("2", Edge.FORKS), asked).replica == chosen
