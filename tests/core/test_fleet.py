"""The fleet: who is up, what each runs, which pool serves a model."""

import pytest

from gateway.core.fleet import Fleet, PoolFacts
from gateway.domain.fleet import Abilities, ReplicaFacts, ReplicaLoad
from gateway.domain.ids import PoolId, ReplicaId, RequestId

ONE, TWO = PoolId("one"), PoolId("two")
A, B, C = ReplicaId("a"), ReplicaId("b"), ReplicaId("c")


def replica(name: ReplicaId, pool: PoolId = ONE, *models: str) -> ReplicaFacts:
    return ReplicaFacts(id=name, pool=pool, models=models)


def two_pools(one: tuple[str, ...] = (), two: tuple[str, ...] = ()) -> Fleet:
    return Fleet([PoolFacts(ONE, one), PoolFacts(TWO, two)])


def test_a_fleet_needs_a_pool():
    with pytest.raises(ValueError, match="needs a pool"):
        Fleet([])


def test_news_is_what_was_not_known():
    fleet = two_pools()
    assert not fleet.went_down(A, "gone", now=0.0)
    assert fleet.came_up(replica(A), now=0.0)
    assert not fleet.came_up(replica(A, ONE, "m"), now=0.0)
    assert fleet.went_down(A, "gone", now=0.0) and not fleet.went_down(A, "gone", now=0.0)
    assert fleet.came_up(replica(A), now=0.0)
    assert [state.facts.id for state in fleet] == [A]


def test_facts_may_change_but_not_the_pool():
    fleet = two_pools()
    fleet.came_up(replica(A), now=0.0)
    fleet.came_up(ReplicaFacts(id=A, pool=ONE, abilities=Abilities(engine="vllm")), now=0.0)
    assert fleet.abilities(A).engine == "vllm"
    with pytest.raises(ValueError, match="cannot be in pool two"):
        fleet.came_up(replica(A, TWO), now=0.0)
    with pytest.raises(ValueError, match="cannot be in pool three"):
        fleet.came_up(replica(B, PoolId("three")), now=0.0)


def test_candidates_are_up_in_the_pool_and_not_left_out():
    fleet = two_pools()
    for facts in (replica(A), replica(B), replica(C, TWO)):
        fleet.came_up(facts, now=0.0)
    fleet.submitted(A)
    assert fleet.candidates(ONE, only=None, without=()) == [ReplicaLoad(A, 1), ReplicaLoad(B, 0)]
    assert fleet.candidates(ONE, only=B, without=()) == [ReplicaLoad(B, 0)]
    for late in [0.01] * 9 + [0.2] * 2:
        name = A if late > 0.1 else B
        first, second = fleet.candidates(ONE, only=None, without=())
        assert first.slower == second.slower == second.seems_slower == 1.0, "not as often as that"
        fleet.health.sent(RequestId("r"), name, 0.1, now=0.0)
        fleet.health.first_token(RequestId("r"), name, now=late)
        first, second = fleet.candidates(ONE, only=None, without=())
        assert (first.seems_slower > 5.0) is (name == A), "the last turn was late"
    first, second = fleet.candidates(ONE, only=None, without=())
    assert first.slower > 5.0 and second.slower == 1.0, "one of them is late"
    assert fleet.candidates(ONE, only=C, without=()) == []
    assert fleet.candidates(ONE, only=None, without=(A, B)) == []
    fleet.went_down(A, "gone", now=0.0)
    assert fleet.candidates(ONE, only=A, without=()) == []


def test_what_runs_is_counted_also_while_the_replica_is_down():
    fleet = two_pools()
    fleet.came_up(replica(A), now=0.0)
    fleet.submitted(A)
    fleet.submitted(A)
    fleet.went_down(A, "gone", now=0.0)
    fleet.ended(A)
    state = fleet.get(A)
    assert state is not None and state.running == 1


def test_one_pool_serves_whatever_is_asked():
    fleet = Fleet([PoolFacts(ONE, ("m1",))])
    assert fleet.pool_for("anything") == fleet.pool_for(None) == ONE


def test_several_pools_serve_what_is_configured_else_what_their_replicas_say():
    fleet = two_pools(one=("m1",))
    fleet.came_up(replica(A, ONE, "m3"), now=0.0)
    fleet.came_up(replica(B, TWO, "m1", "m2"), now=0.0)
    assert fleet.pool_for(None) == ONE
    assert fleet.pool_for("m1") == ONE
    assert fleet.pool_for("m2") == TWO
    assert fleet.pool_for("m3") is None, "the settings say that pool one serves m1 only"


def test_a_pool_that_has_not_spoken_yet_may_serve_any_model():
    fleet = two_pools(one=("m1",))
    assert fleet.pool_for("m2") == TWO
    fleet.came_up(replica(B, TWO), now=0.0)
    assert fleet.pool_for("m2") == TWO
    fleet.came_up(replica(B, TWO, "m3"), now=0.0)
    assert fleet.pool_for("m2") is None


def test_light_requests_are_no_load_and_still_keep_a_replica_that_leaves():
    fleet = Fleet([PoolFacts(ONE)])
    fleet.came_up(replica(A), now=0.0)
    fleet.submitted(A, is_light=True)
    assert [load.running for load in fleet.candidates(ONE, only=None, without=())] == [0]
    fleet.went_down(A, "gone", now=0.0)
    fleet.left(A)
    assert fleet.get(A) is not None
    fleet.ended(A, is_light=True)
    assert fleet.get(A) is None


def test_a_model_that_some_replicas_serve_goes_to_those():
    fleet = two_pools()
    for facts in (replica(A, ONE, "base", "lora"), replica(B, ONE, "base"), replica(C, TWO, "lora", "base")):
        fleet.came_up(facts, now=0.0)
    assert fleet.served_by_some(ONE, "lora") == "lora"
    assert fleet.served_by_some(ONE, "base") is None, "all do"
    assert fleet.served_by_some(ONE, "alias") is None, "nobody says so, and backends judge names themselves"
    assert fleet.served_by_some(None, "lora") is fleet.served_by_some(ONE, None) is None
    assert fleet.candidates(ONE, only=None, without=(), model="lora") == [ReplicaLoad(A, 0)]
    d = ReplicaId("d")
    fleet.came_up(replica(d), now=0.0)
    assert [load.replica for load in fleet.candidates(ONE, only=None, without=(), model="lora")] == [A, d]


def test_one_that_is_ejected_may_have_what_nobody_else_may():
    fleet = two_pools()
    for name in (A, B):
        fleet.came_up(replica(name), now=0.0)
    for _ in range(3):
        fleet.health.ended(RequestId("r"), A, failed=True, now=0.0)
    assert fleet.candidates(ONE, only=None, without=()) == [ReplicaLoad(B, 0)]
    assert fleet.candidates(ONE, only=None, without=(B,)) == [ReplicaLoad(A, 0)]


def test_a_replica_that_is_drained_before_it_comes_up_gets_no_turns():
    fleet = two_pools()
    for name in (A, B):
        fleet.drained(name, is_draining=True)
    fleet.drained(B, is_draining=False)
    for name in (A, B):
        fleet.came_up(replica(name), now=0.0)
    assert [load.replica for load in fleet.candidates(ONE, only=None, without=())] == [B]
    assert fleet.drained(A, is_draining=False)
    assert len(fleet.candidates(ONE, only=None, without=())) == 2
