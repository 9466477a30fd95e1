"""Where stored state lives."""

from gateway.domain.ids import ReplicaId, TenantId
from gateway.routing.state_residence import Residence, StateResidence, StateResidenceConfig

T, OTHER = TenantId("t"), TenantId("other")
A, B = Residence(ReplicaId("a"), None), Residence(ReplicaId("b"), None)


def residence(max_state_ids: int = 10) -> StateResidence:
    return StateResidence(StateResidenceConfig(max_state_ids=max_state_ids))


def test_state_is_found_under_its_tenant_only():
    homes = residence()
    homes.learn(T, "resp_1", A)
    assert homes.find(T, "resp_1") == A
    assert homes.find(OTHER, "resp_1") is None


def test_the_last_replica_that_minted_an_id_has_it():
    homes = residence()
    homes.learn(T, "resp_1", A)
    homes.learn(T, "resp_1", B)
    assert homes.find(T, "resp_1") == B and len(homes) == 1


def test_memory_is_bounded_and_the_least_recently_used_goes():
    homes = residence(max_state_ids=2)
    homes.learn(T, "one", A)
    homes.learn(T, "two", A)
    homes.find(T, "one")
    homes.learn(T, "three", A)
    assert len(homes) == 2
    assert homes.find(T, "one") == A and homes.find(T, "two") is None
    homes.learn(T, "two", B)
    assert homes.find(T, "two") == B
