"""The papers' headlines: figures that a command yields and a page tells, bold where they fall short."""

from collections.abc import Callable

import pytest

from benchmarks.results.compares import judge
from benchmarks.results.headlines import Headlines, figures
from benchmarks.results.scenario import Scenario
from benchmarks.results.store import Store
from benchmarks.verdict import Verdict

FOUND = Headlines.read()


def of_scenarios(*names: str) -> Verdict:
    verdict = Verdict()
    for name in names:
        judge(verdict, name, lambda other: (Scenario.read(other), Store(other)))
    return verdict


YIELDED: dict[str, Callable[[], Verdict]] = {
    "fairness": lambda: of_scenarios("fairness"),
    "scaling": lambda: of_scenarios("saga-64-gpus", "saga-8-gpus"),
    "placement": lambda: of_scenarios("routing-like", "routing-unlike"),
}


def of_source(source: str) -> list[str]:
    return [
        name
        for each in FOUND.headlines
        if each.source == source
        for name in (*each.policy.values(), *each.ours.values())
    ]


@pytest.mark.parametrize("source", YIELDED)
def test_what_is_told_of_scenarios_is_what_their_stored_runs_yield(source: str) -> None:
    told, found = figures(source), YIELDED[source]().figures
    assert of_source(source) and set(of_source(source)) <= found.keys()
    assert {name: found[name].value for name in told} == {name: told[name].value for name in told}


def test_every_paper_has_its_rows() -> None:
    papers = {each.paper for each in FOUND.headlines}
    assert papers == {"SAGA", "Sutradhara", "Agent.xpu"}
    assert {each.source for each in FOUND.headlines} - {""} == FOUND.sources.keys()
