"""What sessions hold, and what they will have grown to."""

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.admission.footprint import NOTHING, Residents, demand_of
from gateway.domain.by_agent import AgentKey
from gateway.domain.ids import TenantId
from gateway.workflow.aeg.graphs import AegConfig, Graphs
from gateway.workflow.aeg.lifetimes import HORIZONS
from gateway.workflow.aeg.steps import Step

AGENT, OTHER = (AgentKey(TenantId("t"), number) for number in (1, 2))
STRANGER = AgentKey(TenantId("other"), AGENT.agent_type)


def taught(*, turns=200, growth=1000.0, last_turn=None) -> Graphs:
    """Sessions of `AGENT` grow by so much a turn, and end after `last_turn`."""
    known = Graphs(AegConfig())
    for number in range(turns):
        turn = number % (last_turn or 1000) + 1
        known.of(AGENT).saw_turn(turn, tokens=1e4, grown=growth, ran_s=2.0)
        if turn == last_turn:
            known.of(AGENT).ended(Step(), turn)
    return known


def share(known: Graphs, agent: AgentKey, tokens: int) -> None:
    for _ in range(20):
        if known.of(agent).saw_shared(tokens):
            known.shared_changes += 1


def test_demand_now_is_what_is_held():
    demand = demand_of(taught().known(AGENT), 3, 5000.0)
    assert demand[0] == 5000.0 and len(demand) == len(HORIZONS)
    assert demand_of(taught().known(AGENT), 3, 5000.0, back=0.5) == pytest.approx(
        [each / 2 for each in demand]
    )


def test_a_session_that_will_not_end_soon_is_expected_to_grow():
    demand = demand_of(taught(turns=4000).known(AGENT), 3, 5000.0)
    assert demand[3] == pytest.approx(5000 + 4 * 1000, rel=0.1)
    assert demand[-1] > 4 * demand[0]


def test_a_session_that_ends_soon_is_not():
    demand = demand_of(taught(turns=4000, last_turn=2).known(AGENT), 2, 5000.0)
    assert max(demand) == 5000 and demand[1] < 300


# --- sets of sessions ------------------------------------------------------------------------------


def test_a_shared_prefix_is_resident_once():
    known = Graphs(AegConfig())
    share(known, AGENT, 8000)
    shared = known.of(AGENT).shared_tokens
    assert shared == pytest.approx(8000, rel=0.25)
    residents = Residents(known)
    first = demand_of(known.known(AGENT), 1, 10_000.0)
    assert residents.peak(also=first, agent=AGENT) == pytest.approx(shared + max(first))
    for _ in range(3):
        residents.enter(AGENT, first)
    assert residents.now() == pytest.approx(3 * (10_000 - shared) + shared)
    assert residents.peak(also=first, agent=AGENT) == pytest.approx(shared + 4 * max(first))
    assert len(residents) == 3
    for _ in range(3):
        residents.leave(AGENT, first)
    assert residents.now() == residents.peak() == 0.0


def test_a_prefix_that_sessions_of_several_tenants_begin_with_is_resident_once():
    known = Graphs(AegConfig())
    residents = Residents(known)
    for agent, tokens in ((AGENT, 8000), (STRANGER, 4000), (OTHER, 1000)):
        share(known, agent, tokens)
        residents.enter(agent, demand_of(known.known(agent), 1, 10_000.0))
    own = sum(10_000.0 - known.known(agent).shared_tokens for agent in (AGENT, STRANGER, OTHER))
    assert residents.now() == pytest.approx(
        own + known.of(AGENT).shared_tokens + known.of(OTHER).shared_tokens
    )


def test_a_set_does_not_peak_all_at_once():
    """Half of them are about to end while the others grow: less than the sum of the peaks."""
    known = taught(turns=4000, last_turn=8)
    residents = Residents(known)
    young, old = demand_of(known.known(AGENT), 1, 2000.0), demand_of(known.known(AGENT), 8, 9000.0)
    for demand in (young, old):
        residents.enter(AGENT, demand)
    assert residents.now() == 11_000
    assert residents.now() <= residents.peak() < max(young) + max(old)


@given(st.lists(st.tuples(st.booleans(), st.sampled_from([AGENT, OTHER]), st.floats(0, 1e6)), max_size=60))
def test_the_sum_is_that_of_its_parts(steps):
    known = Graphs(AegConfig())
    share(known, AGENT, 100)
    residents = Residents(known)
    members: list[tuple[AgentKey, tuple[float, ...]]] = []
    rng = random.Random(len(steps))
    for is_coming, agent, tokens in steps:
        demand = demand_of(known.known(agent), 1, tokens)
        if is_coming or not members:
            residents.enter(agent, demand)
            members.append((agent, demand))
        elif rng.random() < 0.5:
            residents.leave(*members.pop(rng.randrange(len(members))))
        else:
            place = rng.randrange(len(members))
            demand = demand_of(known.known(members[place][0]), 1, tokens)
            residents.change(members[place][1], demand)
            members[place] = (members[place][0], demand)
    shared = sum(known.known(agent).shared_tokens for agent in {agent for agent, _ in members})
    sums = [sum(demand[n] for _, demand in members) for n in range(len(HORIZONS))]
    assert residents.now() == pytest.approx(sums[0] + shared, abs=1e-3)
    assert residents.peak() == pytest.approx(max(sums) + shared, abs=1e-3)
    assert len(residents) == len(members)
    assert residents.peak(also=NOTHING, agent=AGENT) >= residents.peak()
