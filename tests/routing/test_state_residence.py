"""Where stored state lives."""

from gateway.domain.ids import ReplicaId, TenantId
from gateway.routing.state_residence import Residence, StateResidence, StateResidenceConfig, state_key

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


def test_what_must_outlast_the_process_is_told_once_and_can_be_restored():
    homes, told = residence(), []
    homes.on_learned = lambda key, replica: told.append((key, replica))
    homes.learn(T, "resp_1", A)
    homes.learn(T, "resp_1", A)
    homes.learn(T, "resp_1", B)
    assert told == [(state_key(T, "resp_1"), "a"), (state_key(T, "resp_1"), "b")]
    again = residence()
    again.restore(told)
    assert again.find(T, "resp_1") == B and again.homes() == homes.homes()


def test_no_tenant_and_id_stand_for_another_tenants():
    assert state_key(TenantId("a"), "1:bc") != state_key(TenantId("a1:b"), "c")
    assert state_key(TenantId("1"), "1x") != state_key(TenantId("11"), "x")
