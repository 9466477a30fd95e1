"""Stored runs: what is missing, how they compare, what the page says of them; and they come out again."""

import math
from pathlib import Path
from random import Random

import pytest

from benchmarks.results import page
from benchmarks.results.__main__ import Bench, fill
from benchmarks.results.figures import KEPT, bootstrapped, cells, ratio, strongest
from benchmarks.results.scenario import Scenario, names
from benchmarks.results.store import FOLDER, Run, Store
from gateway.simulator.fleet import FleetSpec, ReplicaGroup

FLEET = FleetSpec(replicas=(ReplicaGroup(profile="qwen3-coder-30b-a3b@h200"),))


def run(policy: str, per_h: float, seed: int, mean_s: float) -> Run:
    metrics: dict[str, float | None] = dict.fromkeys(KEPT, mean_s)
    metrics["goodput_2"] = 1 / mean_s
    return Run(
        policy=policy, per_h=per_h, seed=seed, metrics=metrics, revision="abc", vllm="0", sessions_sha256="0"
    )


@pytest.fixture
def scenario() -> Scenario:
    return Scenario(
        title="made up",
        source="nowhere",
        fleet=FLEET,
        policies=["affinity", "session-cap:n=4/8", "affinity+offload", "turnpike", "infinite-kv"],
        sessions=10,
        knee_per_h=100.0,
        loads=[1.2],
        seeds=3,
    )


@pytest.fixture
def runs() -> list[Run]:
    means = {
        "affinity": 100.0,
        "session-cap:n=4": 80.0,
        "session-cap:n=8": 40.0,
        "affinity+offload": 10.0,
        "turnpike": 50.0,
        "infinite-kv": 1.0,
    }
    return [run(policy, 120.0, seed, mean_s * seed) for policy, mean_s in means.items() for seed in (1, 2, 3)]


def test_the_strongest_baseline_is_the_best_one_of_the_same_memory_that_knows_no_more(scenario, runs):
    at = cells(scenario, runs, 1.2)

    def label(metric: str, *, has_offload: bool) -> str:
        cell = strongest(at, metric, has_offload=has_offload)
        assert cell is not None
        return cell.label

    assert label("completion_mean_s", has_offload=False) == "session-cap:n=8"
    assert label("goodput_2", has_offload=False) == "session-cap:n=8"
    assert label("completion_mean_s", has_offload=True) == "affinity+offload"


def test_seeds_are_compared_one_by_one(scenario, runs):
    at = {cell.policy: cell for cell in cells(scenario, runs, 1.2)}
    found = ratio(at["turnpike"], at["affinity"], "completion_mean_s")
    assert found is not None
    assert (found.mean, found.low, found.high) == pytest.approx((0.5, 0.5, 0.5))


def test_an_interval_holds_the_mean_as_often_as_it_says():
    dice, inside = Random(1), 0
    for _ in range(200):
        logs = [dice.gauss(0.1, 0.2) for _ in range(10)]
        found = bootstrapped(logs)
        assert found is not None
        inside += found.low <= math.exp(0.1) <= found.high
    assert 170 <= inside < 200


def test_a_loss_is_bold_whichever_way_is_better():
    lower, higher = "completion_mean_s", "goodput_2"
    interval = bootstrapped([math.log(1.2)] * 3)
    assert page.told_ratio(interval, lower) == "**1.20 (1.20–1.20)**"
    assert page.told_ratio(interval, higher) == "1.20 (1.20–1.20)"
    assert page.told_ratio(bootstrapped([math.log(0.8)] * 3), higher) == "**0.80 (0.80–0.80)**"


def test_every_scenario_can_be_read_and_names_what_it_compares():
    assert names()
    for name in names():
        scenario = Scenario.read(name)
        policies = {text for text, _ in scenario.variants()}
        assert any(text.startswith("turnpike") for text in policies), name
        for claim in scenario.claims:
            assert claim.policy in policies, name
            assert not claim.against or claim.against in policies, name


def test_every_run_that_is_stored_is_of_a_scenario_as_it_is_now():
    stored = sorted(FOLDER.glob("*.jsonl"))
    assert stored
    for path in stored:
        scenario = Scenario.read(path.stem)
        known = {variant.label for _, variant in scenario.variants()}
        loads = {scenario.per_h(load) for load in scenario.loads}
        store = Store(path.stem)
        assert {run.policy for run in store.runs.values()} <= known
        assert {run.per_h for run in store.runs.values()} <= loads
        assert len({run.sessions_sha256 for run in store.runs.values()}) == 1


def test_the_page_is_that_of_the_stored_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    written = page.IMAGES.parent / "design/results.md"
    monkeypatch.setattr(page, "IMAGES", tmp_path)
    assert page.whole() == written.read_text(encoding="utf-8"), "run: python -m benchmarks.results --page"


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")  # vLLM's imports are loud
def test_what_was_begun_is_gone_on_with_and_comes_out_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    small = Scenario(
        title="small",
        source="MARS",
        fleet=FLEET,
        policies=["affinity", "turnpike"],
        mix="mars-ilr1",
        pool=12,
        sessions=6,
        knee_per_h=600.0,
        loads=[1.0],
        seeds=2,
    )
    monkeypatch.setattr(Scenario, "read", classmethod(lambda cls, name: small))
    monkeypatch.setattr("benchmarks.results.store.FOLDER", tmp_path)
    monkeypatch.setattr(Store.__init__, "__defaults__", (tmp_path,))
    bench = Bench("small", {}, 1)
    fill(bench, seeds=1, until_s=math.inf)
    first = Store("small").runs
    assert len(first) == 2
    fill(bench, seeds=2, until_s=math.inf)
    again = Store("small").runs
    assert len(again) == 4
    assert {key: again[key] for key in first} == first
    (fresh,) = bench.run(
        [trial for trial in bench.missing(Store("none"), 1) if trial.variant.label == "turnpike"]
    )
    assert fresh.metrics == first[fresh.key].metrics
