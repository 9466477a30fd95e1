"""The papers' headlines: figures that a command yields and a page tells, bold where they fall short."""

import argparse
import re
from collections.abc import Callable

import pytest
from tests.project.test_reader import section

from benchmarks import eviction, overlap, unlike
from benchmarks.results.compares import judge
from benchmarks.results.headlines import NOT_MEASURED, Headline, Headlines, figures, rows, told_figure
from benchmarks.results.scenario import Scenario
from benchmarks.results.store import Store
from benchmarks.verdict import Figure, Verdict
from tests.benchmarks.test_overlap import runs as overlap_runs
from tests.project.test_pages import ROOT

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

    options = argparse.Namespace(sessions=2, jobs=1, seeds=2, loads=None, agents=(), knee=None, keep=None)
    unlike.mix(Still(options, verdict, lambda *_: None, is_quick=False))
    return verdict


def eviction_names() -> Verdict:
    verdict = Verdict()
    draw = dict.fromkeys(
        ("lru", "wa_lru", "no_returns", "same_reuse", "ours", "gap_distribution_known", "belady", "named"), 9
    )
    for percent in (25, 50, 75):
        eviction.judge(verdict, f"kv-cache-tester_{percent}", [{**draw, "touched": 1}] * 2, is_recorded=True)
    return verdict


def of_scenarios(*names: str) -> Verdict:
    """Of their stored runs."""
    verdict = Verdict()
    for name in names:
        judge(verdict, name, lambda other: (Scenario.read(other), Store(other)))
    return verdict


SURE = re.compile(r"([\d.]*\d)[^\d()]{0,10}\(([\d.]*\d) to ([\d.]*\d)\)")
YIELDED: dict[str, Callable[[], Verdict]] = {
    "overlap": overlap_names,
    "mix": mix_names,
    "eviction": eviction_names,
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


@pytest.mark.parametrize("source", FOUND.sources)
def test_each_figure_is_one_that_its_command_yields(source: str) -> None:
    verdict = YIELDED[source]()
    assert of_source(source)
    assert set(of_source(source)) <= verdict.figures.keys()


@pytest.mark.parametrize("source", STORED)
def test_what_is_told_of_scenarios_is_what_their_stored_runs_yield(source: str) -> None:
    told, found = figures(source), YIELDED[source]().figures
    assert {name: found[name].value for name in told} == {name: told[name].value for name in told}


@pytest.mark.parametrize("source", FOUND.sources)
def test_each_figure_stands_on_its_page_with_its_interval(source: str) -> None:
    page, _, anchor = FOUND.sources[source].page.partition("#")
    told = section(ROOT / "docs/design" / page, anchor)
    numbers = {float(each) for each in re.findall(r"\d+(?:\.\d+)?", told)}
    sure = {tuple(map(float, each)) for each in SURE.findall(told)}
    found = figures(source)
    for name in of_source(source):
        figure = [found[each].value for each in (name, f"{name}_low", f"{name}_high") if each in found]
        assert None not in figure
        scaled = [tuple(float(f"{times * (value or 0):.3g}") for value in figure) for times in (1, 100)]
        assert any(each in sure or (len(each) == 1 and each[0] in numbers) for each in scaled), name


def headline(**more: object) -> Headline:
    said = {"paper": "P", "what": "w", "theirs": "t", "differs": "d", "source": "s", "ours": {"": "x"}}
    return Headline(**{**said, **more})  # type: ignore[arg-type]


LINE = {
    name: Figure(value=value, target=None, ok=True)
    for name, value in (("x", 0.18), ("x_low", 0.14), ("x_high", 0.22), ("alone", 5.1))
}


@pytest.mark.parametrize(
    ("more", "ours"),
    [
        ({"at_least": 0.15, "shown": "less"}, "−18 % (14 to 22)"),
        ({"at_least": 0.19, "shown": "less"}, "**−18 % (14 to 22)**"),
        ({"at_most": 0.15}, "**× 0.18 (0.14 to 0.22)**"),
        ({"at_most": 0.2}, "× 0.18 (0.14 to 0.22)"),
        (
            {"at_least": 5, "shown": "gain", "ours": {"a": "alone", "b": "x"}},
            "a: ÷ 5.1; **b: ÷ 0.18 (0.14 to 0.22)**",
        ),
        ({"ours": {}}, NOT_MEASURED),
    ],
)
def test_what_falls_short_is_bold(
    more: dict[str, object], ours: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("benchmarks.results.headlines.figures", lambda source: LINE)
    source = FOUND.sources["overlap"]
    (row,) = rows(Headlines(sources={"s": source}, headlines=[headline(**more)]))
    assert row.split(" | ") == ["| P: w", "t", "–", ours, f"d ([s]({source.page})) |"]


def test_a_figure_that_was_not_told_is_an_error() -> None:
    with pytest.raises(KeyError):
        told_figure("y", LINE, "share")


def test_every_paper_has_its_rows() -> None:
    papers = {each.paper for each in FOUND.headlines}
    assert papers == {"SAGA", "Sutradhara", "Agent.xpu"}
    assert {each.source for each in FOUND.headlines} - {""} == FOUND.sources.keys()
