"""Whether conversations go on, and when: counts, classes that are leaned on, ends that are taken back."""

import gc
from typing import Any

import msgspec
import pytest

from gateway.domain.ids import TenantId
from gateway.workflow.agent_types import AgentType
from gateway.workflow.return_model import ReturnModel, ReturnModelConfig, Returns
from gateway.workflow.steps import Step

AGENT = AgentType(1, 2)
SIBLING = AgentType(9, 2)
STRANGER = AgentType(1, 3)
BASH, READ, ANSWER = Step(("bash",)), Step(("read",)), Step()
UNKNOWN = {BASH: 0.95, ANSWER: 0.5}


def model(**settings: Any) -> ReturnModel:
    return ReturnModel(msgspec.convert(settings, ReturnModelConfig))


def taught(known: ReturnModel, agent: AgentType, step: Step, *, on: int = 0, over: int = 0) -> ReturnModel:
    for _ in range(on):
        known.went_on(agent, step, 2.0)
    for _ in range(over):
        known.ended(agent, step)
    return known


def share(known: ReturnModel, step: Step = BASH, agent: AgentType = AGENT) -> float:
    return known.behind(agent, step).share


def test_nothing_is_known():
    known = model()
    for step, expected in UNKNOWN.items():
        assert known.behind(AGENT, step) == Returns(expected, None, is_own=False)
    assert known.ahead(AGENT) == 0.5 and not known.is_known(AGENT)


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
    known.ended(AGENT, Step(("bash",), 7))
    assert share(known) < share(never) - 0.05
    known.was_no_end(AGENT, Step(("bash",), 7))
    for step in (Step(("bash",), 7), Step(("bash",), 8), READ):
        for agent in (AGENT, SIBLING):
            assert share(known, step, agent) == pytest.approx(share(never, step, agent), abs=2e-3)
    known.was_no_end(AGENT, BASH)
    assert 0.0 <= share(known) <= 1.0


def test_a_step_leans_on_its_set_of_tools_its_type_and_its_family():
    """Each class in which something is known changes what is said, and none beyond the family."""
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
        (step, AgentType(1, 2, is_child=True)),
        (step, AgentType(1, 2, owner=TenantId("other"))),
    ):
        assert share(taught(model(), agent, taught_by, over=50), step) == UNKNOWN[BASH]


def test_the_narrower_class_counts_more():
    known = taught(model(), AGENT, Step(("bash",), 8), over=50)
    taught(known, AGENT, Step(("bash",), 7), on=50)
    assert share(known, Step(("bash",), 7)) > 0.9 and share(known, Step(("bash",), 8)) < 0.2
    assert share(known, Step(("bash",), 9)) == pytest.approx(0.5, abs=0.1)
    taught(known, AGENT, READ, on=50)
    assert share(known, READ) > 0.9


def test_each_class_is_leaned_on_before_the_broader_ones():
    known = taught(model(), AGENT, Step(("bash",), 8), over=50)
    taught(known, SIBLING, READ, on=200)  # the family goes on
    assert share(known, Step(("edit",))) < 0.2 and share(known, Step(("edit",)), SIBLING) > 0.9
    taught(known, AGENT, READ, on=200)  # and the type does, but for one set of tools
    assert share(known, Step(("bash",), 9)) < 0.2 and share(known, Step(("edit",))) > 0.7


def test_gaps_are_those_of_the_narrowest_class_with_enough_of_them():
    known = model()
    for _ in range(20):
        known.went_on(SIBLING, BASH, 100.0)
    assert known.behind(AGENT, BASH).quantile_s(0.5) == pytest.approx(100.0, rel=0.3)
    for _ in range(20):
        known.went_on(AGENT, READ, 10.0)
    behind = known.behind(AGENT, BASH)
    assert behind.quantile_s(0.5) == pytest.approx(10.0, rel=0.3) and not behind.is_own
    for _ in range(7):
        known.went_on(AGENT, BASH, 1.0)
    assert not known.behind(AGENT, BASH).is_own
    for _ in range(2):
        known.went_on(AGENT, BASH, 1.0)
    behind = known.behind(AGENT, BASH)
    assert behind.is_own and behind.quantile_s(0.5) == pytest.approx(1.0, rel=0.3)
    pauses = known.pauses(AGENT, ("bash",))
    assert pauses is not None and pauses.weight == pytest.approx(9.0, abs=0.2)
    assert known.pauses(AGENT, ("edit",)) is None and known.behind(AGENT, ANSWER).gaps is None


def test_what_is_ahead_of_a_type_is_what_came_behind_all_its_steps():
    known = taught(taught(model(), SIBLING, ANSWER, over=10), SIBLING, BASH, on=10)
    assert known.ahead(AGENT) == pytest.approx(0.5, abs=0.05)
    taught(known, AGENT, BASH, on=30)
    assert known.ahead(AGENT) == pytest.approx(1.0) and known.ahead(STRANGER) == 0.5


def test_a_type_is_known_after_tasks_or_steps_and_with_its_family():
    known = model(min_tasks=3, min_steps=10)
    taught(known, AGENT, BASH, on=9)
    assert not known.is_known(AGENT)
    taught(known, AGENT, BASH, over=1)
    assert known.is_known(AGENT) and known.is_known(SIBLING) and not known.is_known(STRANGER)
    known.was_no_end(AGENT, BASH)
    assert not known.is_known(AGENT)
    for _ in range(3):
        known.saw_task(AGENT)
    assert known.is_known(AGENT) and known.is_known(SIBLING)
    known.saw_task(AGENT, -1)
    assert not known.is_known(AGENT) and not known.is_known(SIBLING)


def test_who_has_most_types_loses_its_longest_unseen():
    known = model(max_types=10)
    quiet = AgentType(1, 2, owner=TenantId("quiet"))
    taught(known, quiet, BASH, over=50)
    loud = [AgentType(number, 2, owner=TenantId("loud")) for number in range(100)]
    for agent in loud:
        taught(known, loud[0], BASH, over=50)
        taught(known, agent, READ, over=50)
    assert len(known) == 10 and share(known, BASH, quiet) < 0.5
    pauses = [known.pauses(agent, ("read",)) for agent in loud]
    assert share(known, BASH, loud[0]) < 0.1 and pauses == [None] * 100


def test_a_family_is_forgotten_with_the_last_of_its_types():
    known = model(max_types=2)
    taught(known, AGENT, BASH, over=50)
    for number in range(2):
        known.went_on(AgentType(number, 77), READ, 1.0)
    gc.collect()
    assert len(known._families) == 1 and share(known, BASH) == UNKNOWN[BASH]


def test_steps_of_a_type_are_bounded_and_the_longest_unseen_are_dropped():
    known = model()
    taught(known, AGENT, Step(("kept",), 1), over=50)
    for number in range(1, 2000):
        if number % 50 == 0:
            known.ended(AGENT, Step(("kept",), 1))
        known.went_on(AGENT, Step((f"tool-{number}",), number), 1.0)
    kept = known._type(AGENT)
    assert len(kept.by_step) <= 256 and len(kept.by_tools) <= 64
    assert share(known, Step(("kept",), 1)) < 0.1
    assert share(known, Step(("tool-3",), 3)) == pytest.approx(share(known, Step(("never",))), abs=1e-9)
