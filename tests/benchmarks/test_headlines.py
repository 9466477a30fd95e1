"""The papers' headlines: figures that a command yields and a page tells, bold where they fall short."""

import argparse
from collections.abc import Callable

import pytest

from benchmarks import overlap, unlike
from benchmarks.results.compares import judge
from benchmarks.results.headlines import Headlines, figures
from benchmarks.results.scenario import Scenario
from benchmarks.results.store import Store
from benchmarks.verdict import Verdict
from tests.benchmarks.test_overlap import runs as overlap_runs

FOUND = Headlines.read()


def overlap_names() -> Verdict:
    verdict, played = (
        Verdict(),
        dict.fromkeys((overlap.BASELINE, *overlap.VARIANTS.values()), overlap_runs(40, 44)),
    )
    for part in ("paper", "short"):
        overlap.judge_ablation(part, played, verdict)
    overlap.judge_curves(
        {policy: dict.fromkeys(overlap.QPS, found) for policy, found in played.items()}, verdict
    )
    return verdict


def mix_names() -> Verdict:
    verdict = Verdict()

    class Still(unlike.Bench):
        def mixed(self, name: str, arm: object, ground: object, *, part: str = "") -> list[dict[str, float]]:
            told = (*unlike.MIXED, "background_tokens_per_s", "reactive_alone_s")
            return [dict.fromkeys(told, 1.0), dict.fromkeys(told, 2.0)]

    options = argparse.Namespace(jobs=1, seeds=2)
    unlike.mix(Still(options, verdict, lambda *_: None, is_quick=False))
    return verdict


def of_scenarios(*names: str) -> Verdict:
    """Of their stored runs."""
    verdict = Verdict()
    for name in names:
        judge(verdict, name, lambda other: (Scenario.read(other), Store(other)))
    return verdict


YIELDED: dict[str, Callable[[], Verdict]] = {
    "overlap": overlap_names,
    "mix": mix_names,
    "fairness": lambda: of_scenarios("fairness"),
    "scaling": lambda: of_scenarios("saga-64-gpus", "saga-8-gpus"),
    "placement": lambda: of_scenarios("routing-like", "routing-unlike"),
}
STORED = ("fairness", "scaling", "placement")


def of_source(source: str) -> list[str]:
    return [
        name
        for each in FOUND.headlines
        if each.source == source
        for name in (*each.policy.values(), *each.ours.values())
    ]


@pytest.mark.parametrize("source", YIELDED)
def test_each_figure_is_one_that_its_command_yields(source: str) -> None:
    verdict = YIELDED[source]()
    assert of_source(source)
    assert set(of_source(source)) <= verdict.figures.keys()


@pytest.mark.parametrize("source", STORED)
def test_what_is_told_of_scenarios_is_what_their_stored_runs_yield(source: str) -> None:
    told, found = figures(source), YIELDED[source]().figures
    assert {name: found[name].value for name in told} == {name: told[name].value for name in told}


def test_every_paper_has_its_rows() -> None:
    papers = {each.paper for each in FOUND.headlines}
    assert papers == {"SAGA", "Sutradhara", "Agent.xpu"}
    assert {each.source for each in FOUND.headlines} - {""} == FOUND.sources.keys()
