"""An agent type's execution graph: what follows a step, when, and whether anything does."""

import gc
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.domain.agent_key import AgentKey
from gateway.domain.ids import NOBODYS, TenantId
from gateway.workflow.aeg.graph import (
    END,
    MAX_NODES,
    OTHER,
    START,
    ExpectedReturn,
    Family,
    Graph,
    Step,
    tool_set,
)
from gateway.workflow.aeg.graphs import AegConfig, Graphs, Tier

AGENT, SIBLING, STRANGER = (AgentKey(NOBODYS, kind, client) for kind, client in ((1, 2), (9, 2), (1, 3)))
BASH, READ, ANSWER = Step(("bash",)), Step(("read",)), Step()
UNKNOWN = {BASH: 0.95, ANSWER: 0.5}


def model(**settings: Any) -> Graphs:
    return Graphs(msgspec.convert(settings, AegConfig))


def of(owner: str, kind: int = 1) -> AgentKey:
    return AgentKey(TenantId(owner), kind, 2)


def taught(known: Graphs, agent: AgentKey, step: Step, *, on: int = 0, over: int = 0) -> Graphs:
    for _ in range(on):
        known.of(agent).went_on(step, 2.0)
    for _ in range(over):
        known.of(agent).ended(step, 1)
    return known


def share(known: Graphs, step: Step = BASH, agent: AgentKey = AGENT) -> float:
    return known.of(agent).expected_return(step).returns


def lived(graph: Graph, *steps: str) -> Graph:
    before = None
    for name in steps:
        graph.saw_step(before, (name,))
        before = (name,)
    graph.ended(Step(before or ()), len(steps))
    graph.count(tasks=1)
    return graph


# --- does it go on? ------------------------------------------------------------------------------


def test_nothing_is_known():
    known = model()
    for step, expected in UNKNOWN.items():
        assert (
            known.of(AGENT).expected_return(step)
            == known.known(STRANGER).expected_return(step)
            == ExpectedReturn(expected, None, None if expected > 0.5 else 0.0)
        )
    assert known.of(AGENT).overall_returns() == 0.5 and known.tier(known.of(AGENT)) is Tier.UNKNOWN


def test_what_was_seen_counts_more_than_what_is_expected_of_all():
    known = taught(model(), AGENT, BASH, on=60, over=20)
    assert share(known) == pytest.approx(0.75, abs=0.05)
    taught(known, AGENT, BASH, over=600)
    assert share(known) < 0.1
    often = taught(model(), AGENT, BASH, on=3000, over=150)
    assert share(often) < 0.8  # what is old counts less


def test_an_end_is_taken_back_whole():
    """In every class, and nothing of what was no end stays."""
    known, never = (taught(model(), AGENT, Step(("bash",), 7), on=5) for _ in range(2))
    known.of(AGENT).ended(Step(("bash",), 7), 3)
    assert share(known) < share(never) - 0.05
    known.of(AGENT).was_no_end(Step(("bash",), 7), 3)
    for step in (Step(("bash",), 7), Step(("bash",), 8), READ):
        for agent in (AGENT, SIBLING):
            assert share(known, step, agent) == pytest.approx(share(never, step, agent), abs=2e-3)
    assert known.of(AGENT).outlook().ahead(3) == never.of(AGENT).outlook().ahead(3)
    assert not any(to == END for _, to, _, _ in known.of(AGENT).edges())


def test_a_step_leans_on_its_node_its_type_and_its_family():
    """Each class in which something is known changes what is expected, and none beyond the family."""
    step = Step(("bash",), 7)
    for taught_by, agent in (
        (Step(("bash",), 8), AGENT),  # another word
        (READ, AGENT),  # another set of tools
        (READ, SIBLING),  # another type of the family
    ):
        assert share(taught(model(), agent, taught_by, over=50), step) < 0.5
    for taught_by, agent in (
        (ANSWER, AGENT),  # it calls nothing
        (step, STRANGER),  # another client software
        (step, AGENT._replace(is_child=True)),
        (step, of("other")),
    ):
        assert share(taught(model(), agent, taught_by, over=50), step) == UNKNOWN[BASH]


def test_each_class_is_leaned_on_before_the_broader_ones():
    known = taught(model(), AGENT, Step(("bash",), 8), over=50)
    taught(known, AGENT, Step(("bash",), 7), on=50)
    assert share(known, Step(("bash",), 7)) > 0.9 and share(known, Step(("bash",), 8)) < 0.2
    assert share(known, Step(("bash",), 9)) == pytest.approx(0.5, abs=0.1)
    known = taught(model(), AGENT, Step(("bash",), 8), over=50)
    taught(known, SIBLING, READ, on=200)  # the family goes on
    assert share(known, Step(("edit",))) < 0.2 and share(known, Step(("edit",)), SIBLING) > 0.9
    taught(known, AGENT, READ, on=200)  # and the type does, but for one set of tools
    assert share(known, Step(("bash",), 9)) < 0.2 and share(known, Step(("edit",))) > 0.7


def test_what_is_ahead_of_a_type_is_what_came_behind_all_its_steps():
    known = taught(taught(model(), SIBLING, ANSWER, over=10), SIBLING, BASH, on=10)
    assert known.of(AGENT).overall_returns() == pytest.approx(0.5, abs=0.05)
    taught(known, AGENT, BASH, on=30)
    assert (
        known.of(AGENT).overall_returns() == pytest.approx(1.0)
        and known.of(STRANGER).overall_returns() == 0.5
    )


_HAPPENS = st.sampled_from(("on", "end", "no end", "turn"))


@given(st.lists(st.tuples(_HAPPENS, st.integers(1, 300), st.floats(0, 1e9, allow_nan=False)), max_size=200))
def test_probabilities_are_some_whatever_happened(history):
    graph = Graph(AGENT, Family())
    for what, turn, amount in history:
        match what:
            case "on":
                graph.went_on(ANSWER, amount)
            case "end":
                graph.ended(ANSWER, turn)
            case "no end":
                graph.was_no_end(ANSWER, turn)
            case _:
                graph.saw_turn(turn, tokens=amount, grown=amount - 1e5)
        pause, (alive, grown) = graph.expected_return(ANSWER), zip(*graph.outlook().ahead(turn), strict=True)
        assert (
            0.0 <= pause.returns <= 1.0
            and 0.0 <= pause.back(amount) <= 1.0
            and 0 <= graph.overall_returns() <= 1
        )
        assert all(0.0 <= each <= 1.0 for each in alive) and alive[0] == 1.0
        assert list(alive) == sorted(alive, reverse=True)
        assert grown[0] == 0.0 and list(grown) == sorted(grown)
        assert all(0.0 <= share <= 1.0 for _, _, share, _ in graph.edges())


# --- when? ---------------------------------------------------------------------------------------


def test_pauses_are_those_of_the_narrowest_class_with_enough_of_them():
    known = model()
    for _ in range(20):
        known.of(SIBLING).went_on(BASH, 100.0)
    graph = known.of(AGENT)
    assert graph.expected_return(BASH).quantile_s(0.5) == pytest.approx(100.0, rel=0.3)
    for _ in range(20):
        graph.went_on(READ, 10.0)
    assert graph.expected_return(BASH).quantile_s(0.5) == pytest.approx(10.0, rel=0.3)
    for count, expected_s in ((7, 10.0), (2, 1.0)):
        for _ in range(count):
            graph.went_on(BASH, 1.0)
        assert graph.expected_return(BASH).quantile_s(0.5) == pytest.approx(expected_s, rel=0.3)
    both = Step(("bash", "read"))
    assert graph.expected_return(both).quantile_s(0.5) == pytest.approx(10.0, rel=0.3), (
        "as long as the longer one"
    )
    assert graph.expected_return(ANSWER).lengths is None


def test_the_longer_it_is_silent_the_likelier_it_is_over():
    known = model()
    for _ in range(50):
        known.of(AGENT).went_on(ANSWER, 10.0)
        known.of(AGENT).ended(ANSWER, 5)
    pause = known.of(AGENT).expected_return(ANSWER)
    chances = [pause.back(silent_s) for silent_s in (0.0, 5.0, 9.0, 14.0, 1000.0)]
    assert chances[0] == pytest.approx(0.5, abs=0.02) and chances[-1] == 0.0
    assert chances == sorted(chances, reverse=True)
    assert ExpectedReturn(0.7, None).back(1e6) == 0.7


@pytest.mark.parametrize(
    ("on", "over", "likely_s"),
    [(0, 20, 0.0), (10, 20, 0.0), (40, 4, 10.0), (200, 0, 10.0)],
)
def test_for_how_long_a_return_is_likelier_than_not(on, over, likely_s):
    known = model()
    for _ in range(on):
        known.of(AGENT).went_on(ANSWER, 10.0)
    taught(known, AGENT, ANSWER, over=over)
    pause = known.of(AGENT).expected_return(ANSWER)
    assert pause.likely_s == pytest.approx(likely_s, rel=0.3)
    if likely_s:
        assert pause.back(0.5 * likely_s) > 0.5 > pause.back(1.6 * likely_s)


def test_nobody_knows_how_long_before_anybody_came_back():
    assert model().of(AGENT).expected_return(BASH).likely_s is None


# --- what follows --------------------------------------------------------------------------------


def test_what_is_likeliest_to_follow():
    graph = model().of(AGENT)
    assert graph.next(("read",)) == (("read",), 0.0)
    for last in ("edit", "edit", "edit", "test"):
        lived(graph, "read", last)
    step, chance = graph.next(("read",))
    assert step == ("edit",) and chance == pytest.approx(0.6)  # 3 of 4, and one for what was never seen
    assert graph.next(("edit",)) == (("edit",), 0.0)  # nothing but the end has followed
    shares = {(start, to): chance for start, to, chance, _ in graph.edges()}
    names = {graph.label(node): node for edge in shares for node in edge}
    assert names["START"] == START and names["END"] == END
    assert shares[START, names["read"]] == 1.0 and shares[names["read"], names["edit"]] == 0.75
    assert graph.tasks == 4


def test_nodes_are_bounded_and_the_longest_unseen_are_dropped():
    graph = model().of(AGENT)
    for number in range(200):
        lived(graph, "common", f"rare-{number}", "common")
    edges = graph.edges()
    nodes = {node for start, to, _, _ in edges for node in (start, to)}
    assert len(nodes) <= MAX_NODES + 3 and OTHER in nodes and graph.label(OTHER) == "other"
    assert graph.numbered.get(OTHER) is None
    assert all(len(node.following) <= MAX_NODES + 2 for node in graph._nodes.values())
    assert graph.next(("common",))[1] < 0.1 and graph.next(("rare-3",)) == (("rare-3",), 0.0)
    for number in range(200):
        graph.went_on(Step(("common",), number), 1.0)
    assert len(graph._nodes[("common",)].words) <= 64


def test_old_steps_count_less():
    graph = model().of(AGENT)
    for _ in range(3000):
        graph.saw_step(("a",), ("b",))
    for _ in range(1500):
        graph.saw_step(("a",), ("c",))
    assert graph.next(("a",))[0] == ("c",)


def test_tools_are_named_once_in_order_and_within_bounds():
    assert tool_set(("b", "a", "b")) == ("a", "b")
    assert tool_set(("x" * 100,)) == ("x" * 64,) and len(tool_set(tuple(map(str, range(99))))) == 16


# --- of all types --------------------------------------------------------------------------------


def test_a_type_is_known_after_tasks_or_steps_and_with_its_family():
    known = model(min_tasks=3, min_steps=10)

    def tiers() -> list[Tier]:
        return [known.tier(known.of(agent)) for agent in (AGENT, SIBLING, STRANGER)]

    taught(known, AGENT, BASH, on=9)
    assert tiers() == [Tier.UNKNOWN] * 3
    taught(known, AGENT, BASH, over=1)
    assert tiers() == [Tier.INFERRED, Tier.INFERRED, Tier.UNKNOWN]
    known.of(AGENT).was_no_end(BASH, 1)
    assert tiers() == [Tier.UNKNOWN] * 3
    for _ in range(3):
        known.of(AGENT).count(tasks=1)
    assert tiers() == [Tier.INFERRED, Tier.INFERRED, Tier.UNKNOWN]
    known.of(AGENT).count(tasks=-1)
    assert tiers() == [Tier.UNKNOWN] * 3


def test_who_has_most_types_loses_its_longest_unseen():
    known = model(max_types=10)
    taught(known, of("quiet"), BASH, over=50)
    for number in range(100):
        taught(known, of("loud", 0), BASH, over=50)
        taught(known, of("loud", number), READ, over=50)
    assert len(known) == 10 and share(known, BASH, of("quiet")) < 0.5
    assert known.known(of("loud", 5)).expected_return(READ) == ExpectedReturn(0.95, None)


def test_a_family_is_forgotten_with_the_last_of_its_types():
    known = model(max_types=2)
    taught(known, AGENT, BASH, over=50)
    for number in range(2):
        known.of(AgentKey(NOBODYS, number, 77)).went_on(READ, 1.0)
    gc.collect()
    assert len(known._families) == 1 and share(known) == UNKNOWN[BASH]


def test_to_read_of_a_type_costs_no_memory():
    known = model()
    for number in range(50):
        known.known(of("t", number)).expected_return(BASH)
    assert len(known) == 0
