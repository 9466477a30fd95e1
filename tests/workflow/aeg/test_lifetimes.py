"""How many turns conversations make, and how much each adds."""

import random

import pytest

from gateway.domain.agent_key import AgentKey
from gateway.domain.ids import TenantId
from gateway.workflow.aeg.graph import Graph, Step
from gateway.workflow.aeg.graphs import AegConfig, Graphs
from gateway.workflow.aeg.lifetimes import _CLASSES, HORIZONS, LATE_TURN, Ahead, Lifetimes, Outlook

AGENT, SIBLING = (AgentKey(TenantId("t"), number) for number in (1, 2))


def chances(ahead: Ahead) -> tuple[float, ...]:
    return tuple(alive for alive, _ in ahead)


def ends(outlook: Outlook, turn: int) -> float:
    """The chance of an end after so many turns."""
    return outlook.ends_by_class[_CLASSES[min(turn, LATE_TURN)]]


def test_the_chance_of_an_end_is_learned_by_turn_number():
    known = Lifetimes()
    for _ in range(500):
        for turn in range(1, 5):
            known.saw_turn(turn, None)
        known.saw_end(4)
    assert ends(known.outlook(), 1) < 0.01 and ends(known.outlook(), 2) < 0.01
    assert 0.4 < ends(known.outlook(), 4) < 0.6  # turns 3 and 4 are one class
    alive = chances(known.outlook(Lifetimes().outlook()).ahead(1))
    assert alive[0] == 1.0 and alive[HORIZONS.index(8)] < 0.4


def test_conversations_that_still_live_count_for_the_turns_they_lived():
    """The chance must not come from those alone that ended already, which are the short ones."""
    rng = random.Random(1)
    known = Lifetimes()
    for _ in range(2000):
        watched = rng.randrange(1, 30)  # we look away after so many turns
        for turn in range(1, watched + 1):
            known.saw_turn(turn, None)
            if rng.random() < 0.1:
                known.saw_end(turn)
                break
    for turn in (1, 2, 4, 8, 16):
        assert ends(known.outlook(), turn) == pytest.approx(0.1, abs=0.04)
    assert known.outlook(known.outlook()).ahead(1)[HORIZONS.index(8)][0] == pytest.approx(0.9**8, rel=0.2)


def test_an_end_can_be_taken_back():
    known = Lifetimes()
    known.saw_turn(3, None)
    before = ends(known.outlook(), 3)
    known.saw_end(3)
    assert ends(known.outlook(), 3) > before
    for _ in range(2):  # never below nothing
        known.saw_end(3, -1.0)
        assert ends(known.outlook(), 3) == pytest.approx(before)


def test_what_is_new_is_like_its_family():
    known, new = Lifetimes(), Lifetimes()
    for _ in range(1000):
        known.saw_turn(1, 4_000.0)
        known.saw_end(1)
    assert ends(new.outlook(known.outlook()), 1) == pytest.approx(ends(known.outlook(), 1))
    assert ends(new.outlook(), 0) == ends(new.outlook(), 1) == pytest.approx(0.05)
    assert ends(new.outlook(new.outlook()), 200) == pytest.approx(0.05)
    assert new.outlook(known.outlook()).growth(30) == pytest.approx(4_000, rel=0.05), "as those made"
    assert new.outlook().growth(30) == 1_000.0, "a tenth of ten thousand tokens"
    new.saw_turn(1, None, 2_000)
    assert new.outlook().growth(30) == pytest.approx(200.0)


def test_the_first_turns_grow_other_than_the_rest():
    known = Lifetimes()
    for _ in range(200):
        known.saw_turn(2, 9000.0)
        known.saw_turn(10, 100.0)
    outlook = known.outlook(known.outlook())
    assert outlook.growth(2) > 8000 and outlook.growth(12) < 400
    assert outlook.ahead(1)[1][1] > 8000 and outlook.ahead(10)[1][1] < 400
    for _ in range(1000):
        known.saw_turn(10, -100.0)
    assert known.outlook().growth(10) == 0.0


def test_what_is_to_come_is_the_product_and_the_sum_turn_by_turn():
    rng = random.Random(2)
    known, broader = Lifetimes(), Lifetimes()
    for level in (known, broader):
        for _ in range(3000):
            level.saw_turn(rng.randrange(1, 200), rng.uniform(0, 1e4))
            if rng.random() < 0.2:
                level.saw_end(rng.randrange(1, 200))
    outlook = known.outlook(broader.outlook())
    for turn in (0, 1, 2, 7, 16, 31, 128, 129, 500):
        alive, grown, turns, token_turns = 1.0, 0.0, 0.0, 0.0
        ahead, horizons = outlook.ahead(turn), dict(zip(HORIZONS, range(len(HORIZONS)), strict=True))
        for at in range(turn, turn + 4_000):
            if (place := horizons.get(at - turn)) is not None:
                assert ahead[place] == pytest.approx((alive, grown))
            alive *= 1.0 - ends(outlook, at)
            grown += outlook.growth(at + 1)
            turns, token_turns = turns + alive, token_turns + alive * grown
        assert outlook.remaining(turn)[::2] == pytest.approx((turns, token_turns))


def test_many_turns_lose_nothing():
    known = Lifetimes()
    for number in range(200_000):
        known.saw_turn(1, 100.0)
        if number % 4 == 0:
            known.saw_end(1)
    outlook = known.outlook()
    assert (ends(outlook, 1), outlook.growth(1) / 100.0) == pytest.approx((0.25, 1.0), abs=0.01)


def taught(agent: AgentKey, *, turns: int = 200) -> Graphs:
    known = Graphs(AegConfig())
    for number in range(turns):
        known.of(agent).saw_turn(number % 9 + 1, tokens=1e3, grown=1e3)
    return known


def test_what_was_worked_out_is_bounded_and_worked_out_anew():
    graph = taught(AGENT).of(AGENT)
    for turn in range(1, 5_000):
        graph.outlook().ahead(turn)
    assert len(graph.outlook()._ahead) == LATE_TURN
    assert graph.outlook().ahead(4_000) == graph.outlook().ahead(LATE_TURN)
    before = graph.outlook().ahead(1)[1][0]
    for _ in range(64):
        graph.saw_turn(1, tokens=1e3, grown=None)
        graph.ended(Step(), 1)
    assert graph.outlook().ahead(1)[1][0] < before


def test_nobody_is_expected_to_come_further_than_anybody_came():
    known, family = Lifetimes(), Lifetimes()
    assert chances(known.outlook(family.outlook()).ahead(1)) == (1.0, *[0.0] * (len(HORIZONS) - 1))
    for _ in range(10):
        for turn in range(1, 7):
            family.saw_turn(turn, 500.0)
    alive = chances(known.outlook(family.outlook()).ahead(3))
    assert [chance > 0.0 for chance in alive] == [horizon <= 5 for horizon in HORIZONS], "turns 5 to 8"
    assert known.outlook(family.outlook()).remaining(3).turns > 10, "how long it lasts is another question"


def test_how_long_tools_take():
    known = Graphs(AegConfig())
    assert known.of(AGENT).tool_s() == 0.0
    for _ in range(30):
        known.of(AGENT).went_on(Step(("bash",)), 10.0)
        known.of(AGENT).went_on(Step(), 30.0)
    assert [known.of(each).tool_s() for each in (AGENT, SIBLING)] == pytest.approx([10.0, 10.0])


def test_what_conversations_share_is_what_nearly_all_of_them_found():
    graph = taught(AGENT).of(AGENT)
    assert graph.shared_tokens == 0.0
    changes = [graph.saw_shared(8000) for _ in range(20)]
    assert graph.shared_tokens == pytest.approx(8000, rel=0.25) and changes[0]
    for _ in range(3):
        graph.saw_shared(100_000)
    assert graph.shared_tokens == pytest.approx(8000, rel=0.3)


def test_another_tenants_conversations_teach_ours_nothing():
    known = taught(AGENT)
    stranger = AGENT._replace(owner=TenantId("other"))

    def expected() -> list[object]:
        graphs: list[Graph] = [known.of(agent) for agent in (AGENT, SIBLING)]
        return [(each.outlook().ahead(3), each.shared_tokens, each.tool_s()) for each in graphs]

    before = expected()
    for _ in range(100):
        known.of(stranger).saw_turn(3, tokens=9e4, grown=1e6)
        known.of(stranger).saw_shared(9_000)
        known.of(stranger).went_on(Step(("bash",)), 99.0)
        known.of(stranger).ended(Step(), 3)
    assert expected() == before
