"""What sessions hold, and what they will have grown to."""

import random
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.admission.decay import LATE_TURN
from gateway.admission.footprint import HORIZONS, NOTHING, FootprintConfig, Footprints, Residents
from gateway.domain.by_agent import AgentKey
from gateway.domain.ids import TenantId

AGENT, OTHER = (AgentKey(TenantId("t"), number) for number in (1, 2))
STRANGER = AgentKey(TenantId("other"), AGENT.agent_type)


def taught(*, turns=200, growth=1000.0, last_turn=None, config=None) -> Footprints:
    """Sessions of `AGENT` grow by so much a turn, and end after `last_turn`."""
    known = Footprints(config or FootprintConfig())
    for number in range(turns):
        turn = number % (last_turn or 1000) + 1
        known.saw_turn(AGENT, turn, grown=growth, turn_s=2.0)
        if turn == last_turn:
            known.saw_end(AGENT, turn)
    return known


def test_demand_now_is_what_is_held():
    demand = taught().demand(AGENT, 3, 5000.0)
    assert demand[0] == 5000.0 and len(demand) == len(HORIZONS)


def test_a_session_that_will_not_end_soon_is_expected_to_grow():
    known = taught(turns=4000, growth=1000.0)
    demand = known.demand(AGENT, 3, 5000.0)
    assert demand[3] == pytest.approx(5000 + 4 * 1000, rel=0.1)
    assert demand[-1] > 4 * demand[0]


def test_a_session_that_ends_soon_is_not():
    known = taught(turns=4000, growth=1000.0, last_turn=2)
    demand = known.demand(AGENT, 2, 5000.0)
    assert max(demand) == 5000 and demand[1] < 300
    assert known.expected_turns(AGENT, 2) < 2 < taught(turns=4000).expected_turns(AGENT, 4)


def test_a_new_type_is_like_the_others_until_it_is_known():
    known = taught(turns=400, growth=3000.0)
    assert known.growth(OTHER, 3) == pytest.approx(known.growth(AGENT, 3), rel=0.5)
    for _ in range(100):
        known.saw_turn(OTHER, 3, grown=10.0, turn_s=1.0)
    assert known.growth(OTHER, 3) < 500
    for _ in range(1000):
        known.saw_turn(OTHER, 3, grown=-100.0, turn_s=1.0)
    assert known.growth(OTHER, 3) == 0.0


def test_the_first_turns_grow_other_than_the_rest():
    known = Footprints(FootprintConfig())
    for _ in range(200):
        known.saw_turn(AGENT, 2, grown=9000.0, turn_s=1.0)
        known.saw_turn(AGENT, 10, grown=100.0, turn_s=1.0)
    assert known.growth(AGENT, 2) > 8000 and known.growth(AGENT, 12) < 200
    young, old = known.demand(AGENT, 1, 5000.0), known.demand(AGENT, 10, 5000.0)
    assert young[1] > 12_000 and old[1] < 5200


def test_turns_without_known_growth_teach_the_rest():
    known = Footprints(FootprintConfig())
    assert known.turn_s(AGENT) == 1.0
    before = known.growth(AGENT, 1)
    for _ in range(3):
        known.saw_turn(AGENT, 1, grown=None, turn_s=5.0)
    assert known.growth(AGENT, 1) == before
    assert known.turn_s(AGENT) == pytest.approx(5.0, rel=0.2)
    for _ in range(20):
        known.saw_turn(AGENT, 1, grown=None, turn_s=0.5)
    assert known.turn_s(AGENT) == pytest.approx(0.5, rel=0.25)


def test_types_are_forgotten_oldest_first():
    known = taught(config=FootprintConfig(max_agent_types=2))
    for agent in (AGENT, AGENT._replace(agent_type=3), AGENT, AGENT._replace(agent_type=4)):
        known.types.of(agent)
    assert len(known.types) == 2
    assert known.types.of(AGENT)[0].growth.turns > 0


def test_what_is_learned_changes_the_survival_that_was_remembered():
    known = taught(turns=64)
    before = known.demand(AGENT, 1, 1000.0)
    for _ in range(64):
        known.saw_turn(AGENT, 1, grown=1000.0, turn_s=1.0)
        known.saw_end(AGENT, 1)
    known.saw_turn(AGENT, 1, grown=1000.0, turn_s=1.0)
    for _ in range(63):
        known.saw_turn(AGENT, 1, grown=1000.0, turn_s=1.0)
    assert known.demand(AGENT, 1, 1000.0)[-1] < before[-1]


def test_another_tenants_sessions_say_nothing_of_how_large_ours_become():
    known = taught(turns=400)

    def expected() -> list[Any]:
        return [
            (
                known.demand(agent, 3, 5e3),
                known.expected_turns(agent, 3),
                *(of(agent) for of in (known.turn_s, known.shared, known.cycle_s)),
            )
            for agent in (AGENT, OTHER)
        ]

    before = expected()
    for _ in range(100):
        known.saw_turn(STRANGER, 3, grown=1e6, turn_s=99.0)
        known.saw_shared(STRANGER, 9_000)
        known.saw_cycle(STRANGER, 99.0)
        known.saw_end(STRANGER, 3)
        known.saw_first_prompt(STRANGER, 90_000)
    assert expected() == before


def test_what_was_worked_out_is_bounded_however_long_a_session_lasts():
    known = taught()
    for turn in range(1, 5_000):
        known.demand(AGENT, turn, 1000.0)
    own, overall = known.types.of(AGENT)
    assert len(own._survival) == len(own._growth) == LATE_TURN
    assert own.survival(4_000, overall) == own.hazard.survival(4_000, HORIZONS, overall.hazard)


# --- sets of sessions ------------------------------------------------------------------------------


def test_a_shared_prefix_is_resident_once():
    known = Footprints(FootprintConfig())
    for _ in range(20):
        known.saw_shared(AGENT, 8000)
    shared = known.shared(AGENT)
    assert shared == pytest.approx(8000, rel=0.25)
    residents = Residents(known)
    first = known.demand(AGENT, 1, 10_000.0)
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
    known = Footprints(FootprintConfig())
    residents = Residents(known)
    for agent, tokens in ((AGENT, 8000), (STRANGER, 4000), (OTHER, 1000)):
        known.saw_shared(agent, tokens)
        residents.enter(agent, known.demand(agent, 1, 10_000.0))
    own = sum(10_000.0 - known.shared(agent) for agent in (AGENT, STRANGER, OTHER))
    assert residents.now() == pytest.approx(own + known.shared(AGENT) + known.shared(OTHER))


def test_a_set_does_not_peak_all_at_once():
    """Half of them are about to end while the others grow: less than the sum of the peaks."""
    known = taught(turns=4000, growth=1000.0, last_turn=8)
    residents = Residents(known)
    young, old = known.demand(AGENT, 1, 2000.0), known.demand(AGENT, 8, 9000.0)
    for demand in (young, old):
        residents.enter(AGENT, demand)
    assert residents.now() == 11_000
    assert residents.now() <= residents.peak() < max(young) + max(old)


@given(st.lists(st.tuples(st.booleans(), st.sampled_from([AGENT, OTHER]), st.floats(0, 1e6)), max_size=60))
def test_the_sum_is_that_of_its_parts(steps):
    known = Footprints(FootprintConfig())
    known.saw_shared(AGENT, 100)
    residents = Residents(known)
    members: list[tuple[AgentKey, tuple[float, ...]]] = []
    rng = random.Random(len(steps))
    for is_coming, agent, tokens in steps:
        demand = known.demand(agent, 1, tokens)
        if is_coming or not members:
            residents.enter(agent, demand)
            members.append((agent, demand))
        elif rng.random() < 0.5:
            residents.leave(*members.pop(rng.randrange(len(members))))
        else:
            place = rng.randrange(len(members))
            demand = known.demand(members[place][0], 1, tokens)
            residents.change(members[place][1], demand)
            members[place] = (members[place][0], demand)
    shared = sum(known.shared(agent) for agent in {agent for agent, _ in members})
    sums = [sum(demand[n] for _, demand in members) for n in range(len(HORIZONS))]
    assert residents.now() == pytest.approx(sums[0] + shared, abs=1e-3)
    assert residents.peak() == pytest.approx(max(sums) + shared, abs=1e-3)
    assert len(residents) == len(members)
    assert residents.peak(also=NOTHING, agent=AGENT) >= residents.peak()


def test_before_any_growth_was_seen_a_turn_adds_a_tenth_of_a_first_prompt():
    small, large = Footprints(FootprintConfig()), Footprints(FootprintConfig())
    assert small.growth(AGENT, 3) == 1_000.0, "of ten thousand tokens"
    small.saw_first_prompt(AGENT, 2_000)
    large.saw_first_prompt(AGENT, 40_000)
    assert small.growth(AGENT, 3) == pytest.approx(200.0)
    assert large.growth(AGENT, 3) == pytest.approx(4_000.0)
    for _ in range(100):
        large.saw_turn(AGENT, 3, grown=500.0, turn_s=1.0)
    assert large.growth(AGENT, 3) == pytest.approx(500.0, rel=0.2)
