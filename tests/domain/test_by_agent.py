"""What is learned by agent type, and of all types of one owner."""

from hypothesis import given
from hypothesis import strategies as st

from gateway.domain.by_agent import UNKNOWN_AGENT, AgentKey, ByAgent
from gateway.domain.ids import NOBODYS, TenantId


class Tally:
    """Something that learns: how often it was taught."""

    def __init__(self) -> None:
        self.count = 0


def teach(known: ByAgent[Tally], owner: str, agent_type: int, times: int = 1) -> None:
    for _ in range(times):
        for tally in known.of(AgentKey(TenantId(owner), agent_type)):
            tally.count += 1


def counts(known: ByAgent[Tally], owner: str, agent_type: int) -> tuple[int, int]:
    own, overall = known.of(AgentKey(TenantId(owner), agent_type))
    return own.count, overall.count


def test_a_type_has_its_own_and_shares_the_rest_with_its_owners_others():
    known = ByAgent(Tally, 9)
    teach(known, "one", 1, 3)
    teach(known, "one", 2)
    teach(known, "other", 1, 5)
    assert counts(known, "one", 1) == (3, 4) and counts(known, "one", 2) == (1, 4)
    assert counts(known, "other", 1) == counts(known, "other", 1) == (5, 5)
    assert counts(known, "new", 1) == (0, 0)
    assert UNKNOWN_AGENT.owner == NOBODYS


def test_an_owner_is_forgotten_with_the_last_of_its_types():
    known = ByAgent(Tally, 2)
    teach(known, "one", 1)
    teach(known, "one", 2)
    teach(known, "one", 3)
    assert len(known) == 2 and counts(known, "one", 3) == (1, 3)
    for owner in ("a", "b"):
        teach(known, owner, 1)
    assert len(known) == 2 and set(known._overall) == {"a", "b"}
    assert counts(known, "one", 3) == (0, 0)


def test_a_flood_of_types_pushes_out_nothing_of_another():
    known = ByAgent(Tally, 10)
    teach(known, "quiet", 1, 7)
    for agent_type in range(1_000):
        teach(known, "loud", agent_type)
    assert counts(known, "quiet", 1) == (7, 7) and len(known) == 10


@given(st.lists(st.tuples(st.sampled_from("abcd"), st.integers(0, 5)), max_size=60), st.integers(1, 6))
def test_it_is_bounded_and_an_owners_types_share_one_fallback(taught, max_types):
    known = ByAgent(Tally, max_types)
    for owner, agent_type in taught:
        teach(known, owner, agent_type)
        assert len(known) <= max_types
        assert set(known._overall) == {tenant for tenant, _, _ in known._types.items()}
        assert all(known._overall[tenant] is value[1] for tenant, _, value in known._types.items())


def test_to_read_what_is_known_remembers_nothing_and_drops_nothing():
    known = ByAgent(Tally, 2)
    teach(known, "one", 1, 3)
    teach(known, "two", 1, 5)
    for agent_type in range(2, 9):
        both = known.known(AgentKey(TenantId("one"), agent_type))
        assert [tally.count for tally in both] == [3, 3], "what its owner's other types taught"
        assert known.known(AgentKey(TenantId("nobody"), agent_type))[0].count == 0
    assert len(known) == 2
    assert counts(known, "one", 1) == (3, 3) and counts(known, "two", 1) == (5, 5)
