"""Stored runs: what is missing, how they compare, what the page says of them; and they come out again."""

import argparse
import gc
import math
import sys
from pathlib import Path
from types import FrameType, SimpleNamespace
from typing import Any

import msgspec
import pytest

from benchmarks import sensitivity
from benchmarks.processes import ROOT
from benchmarks.results import compares, page, store
from benchmarks.results.__main__ import PAGE, README, Bench, fill
from benchmarks.results.figures import KEPT, cells, ratio, strongest
from benchmarks.results.scenario import Compare, Scenario, names
from benchmarks.results.store import (
    BASELINES_EXECUTE,
    FOLDER,
    OURS_EXECUTES,
    Making,
    Run,
    Store,
    code_of,
    fields_of,
    played_sha256,
    sources,
    sources_sha256,
)
from benchmarks.verdict import Verdict
from gateway.config.profiles import load_profile
from lab.simulator.experiment.trial import Trial
from lab.simulator.fleet import FleetSpec, ReplicaGroup

FLEET = FleetSpec(replicas=(ReplicaGroup(profile="qwen3-coder-30b-a3b@h200"),))


def run(policy: str, per_h: float, seed: int, mean_s: float) -> Run:
    metrics: dict[str, float | None] = dict.fromkeys(KEPT, mean_s)
    metrics["goodput_2"] = 1 / mean_s
    return Run(
        policy=policy,
        per_h=per_h,
        seed=seed,
        metrics=metrics,
        revision="abc",
        making=Making(sources="0", scenario="0", sessions="0", vllm="0"),
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


def test_no_seed_is_left_out_of_a_ratio_for_its_value(scenario, runs):
    [turnpike] = [each for each in runs if each.policy == "turnpike" and each.seed == 2]
    turnpike.metrics["completion_mean_s"], turnpike.metrics["ttft_p90_s"] = None, 0.0
    by_label = {cell.label: cell for cell in cells(scenario, runs, 1.2)}
    for metric in ("completion_mean_s", "ttft_p90_s"):
        assert ratio(by_label["turnpike"], by_label["affinity"], metric) is None
    assert ratio(by_label["turnpike"], by_label["affinity"], "completion_p90_s") is not None


def test_a_run_that_is_made_again_takes_the_place_of_its_former_one(tmp_path):
    store = Store("x", tmp_path)
    for mean_s in (1.0, 2.0):
        store.add(run("affinity", 120.0, 1, mean_s))
        store.add(run("turnpike", 120.0, 1, mean_s))
    assert (tmp_path / "x.jsonl").read_text().count("\n") == 2
    assert {each.metrics["completion_mean_s"] for each in Store("x", tmp_path).runs.values()} == {2.0}


def test_another_device_differs_in_efficiency_and_overhead_alone(tmp_path):
    for name in ("qwen3-coder-30b-a3b@h200", "llama-3-70b@4xa100-80"):
        found = load_profile(str(sensitivity.profile_of(name, 0.4, 0.009, tmp_path)))
        expected = {"compute_efficiency": 0.4, "step_overhead_s": 0.009}
        assert found == msgspec.structs.replace(load_profile(name), **expected)


def test_sensitivity_has_the_interval_of_each_ratio(scenario, monkeypatch):
    means = {"affinity": (8.0, 8.0, 8.0), "turnpike": (2.0, 4.0, 8.0)}
    found = [run(policy, 120.0, seed, of[seed - 1]) for policy, of in means.items() for seed in (1, 2, 3)]
    monkeypatch.setattr(sensitivity, "runs", lambda *_: (SimpleNamespace(scenario=scenario), found))
    verdict = Verdict()
    options = argparse.Namespace(name="recorded", loads=[1.2], seeds=3)
    sensitivity.measure(options, is_quick=False, verdict=verdict, tell=lambda _: None)
    told = {name: figure["value"] for name, figure in msgspec.json.decode(verdict.as_json()).items()}
    at = "0.4_9ms_1.2.to_affinity"
    assert told[f"{at}_low"] < told[at] < told[f"{at}_high"] <= 1.0
    assert told["greatest.to_affinity"] == told[at] == pytest.approx(0.5)


def test_every_scenario_can_be_read_and_names_what_it_compares():
    assert names()
    for name in names():
        scenario = Scenario.read(name)
        policies = {text for text, _ in scenario.variants()}
        assert any(text.startswith("turnpike") for text in policies), name
        groups = {f".{group}" for group in scenario.tenants}
        for compare in scenario.compares:
            assert {compare.policy, *compare.against} <= policies, name
            assert set(compare.loads) <= set(scenario.loads), name
            assert compare.policy in Scenario.read(compare.beside or name).policies, name
            for metric in compare.metrics:
                assert metric in KEPT or metric.endswith(tuple(groups)), metric
        for group in scenario.tenants.values():
            assert group, name
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
        runs = store.runs.values()
        assert {run.making.scenario for run in runs} == {played_sha256(scenario)}
        assert len({(run.making.sessions, run.making.vllm) for run in runs}) == 1
        made = {(run.policy, run.making.sources) for run in runs}
        assert len(made) == len({policy for policy, _ in made}), "a policy's runs are of one making"
        assert not any(run.revision.endswith("-dirty") for run in store.runs.values())


def test_the_page_is_that_of_the_stored_runs():
    assert page.whole() == PAGE.read_text(encoding="utf-8"), "run: python -m benchmarks.results --page"
    assert page.gains() in README.read_text(encoding="utf-8"), "the same"


def test_remedies_are_compared_over_the_seeds_that_all_have():
    scenario, store = Scenario.read("remedies"), Store("x", None)
    [per_h] = map(scenario.per_h, scenario.loads)
    for _, variant in scenario.variants():
        is_ours = variant.label.startswith("turnpike")
        is_best = variant.label in ("session-cap:n=10", "session-cap:n=14+offload")
        for seed, mean_s in ((6001, 40.0 if is_ours else 60.0 if is_best else 80.0), (6002, 20.0)):
            if seed == 6001 or not is_ours:
                store.add(run(variant.label, per_h, seed, mean_s))
    lines = list(page._remedies(scenario, store))
    assert any(line.endswith(" 1 seeds.") for line in lines)
    [ours] = [line for line in lines if line.startswith("| Turnpike |")]
    assert ours.startswith("| Turnpike | 0.50 ")
    [cap] = [line for line in lines if "fixed cap" in line]
    assert "sessions a replica: 10, with offload 14 | 0.75 " in cap


def judged(scenario: Scenario, runs: list[Run]) -> dict[str, tuple[float | None, str | None, bool]]:
    store, verdict = Store("x", None), Verdict()
    for each in runs:
        store.add(each)
    compares.judge(verdict, "x", lambda name: (scenario, store))
    return {name: (each.value, each.target, each.ok) for name, each in verdict.figures.items()}


def test_a_target_is_of_the_mean_ratio_or_of_its_whole_interval(scenario):
    runs = [run(policy, 120.0, seed, 1.0) for policy in ("affinity", "infinite-kv") for seed in (1, 2, 3)]
    runs += [run("turnpike", 120.0, seed, mean_s) for seed, mean_s in ((1, 0.7), (2, 0.9), (3, 1.1))]

    def with_target(**target: Any) -> dict[str, Any]:
        compare = Compare(policy="turnpike", against=["affinity"], **target)
        return judged(msgspec.structs.replace(scenario, compares=[compare]), runs)

    name = "x at 1.2: completion_mean_s turnpike / affinity"
    found = with_target(at_most=1.0)
    assert found[name][0] == pytest.approx((0.7 * 0.9 * 1.1) ** (1 / 3), rel=1e-3)
    assert found[name][1:] == ("<= 1", True)
    assert found[f"{name}_low"][0] < found[name][0] < found[f"{name}_high"][0]
    sure = with_target(at_most=1.0, is_sure=True)
    assert sure[name][1:] == (None, True) and sure[f"{name}_high"][1:] == ("<= 1", False)
    assert with_target(at_least=0.6, is_sure=True)[f"{name}_low"][1:] == (">= 0.6", True)
    assert not with_target(at_least=0.9)[name][2]
    assert not with_target(loads=[1.5])


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
        tenants={"all": ["default"]},
    )
    monkeypatch.setattr(Scenario, "read", classmethod(lambda cls, name, changes=(): small))
    bench = Bench("small", {}, 1)
    fill(bench, Store("small", tmp_path), seeds=1, until_s=math.inf)
    first = Store("small", tmp_path).runs
    assert len(first) == 2
    for each in first.values():
        slowdowns = [slowdown for of_tenant in each.slowdowns.values() for slowdown in of_tenant]
        assert len(slowdowns) == 6 and min(slowdowns) >= 1
        assert sum(slowdown <= 2 for slowdown in slowdowns) / 6 == pytest.approx(each.metrics["goodput_2"])
    fill(bench, Store("small", tmp_path), seeds=2, until_s=math.inf)
    again = Store("small", tmp_path).runs
    assert len(again) == 4
    assert {key: again[key] for key in first} == first
    (fresh,) = bench.run(
        [trial for trial in bench.missing(Store("none", None), 1) if trial.variant.label == "turnpike"]
    )
    assert fresh.metrics == first[fresh.key].metrics


def test_cells_are_of_the_code_that_a_simulated_run_passes():
    found = {str(path.relative_to(ROOT)) for path in sources("turnpike+plugin")}
    assert "gateway/admission/balance_and_admit.py" in found
    assert "engine_ext/turnpike_vllm/scheduler.py" in found
    assert "gateway/cost/profiles/hardware/h200.toml" in found
    assert not any(path.startswith(("gateway/server/", "gateway/dashboard/")) for path in found)
    of_baselines = {str(path.relative_to(ROOT)) for path in sources("mars+offload")}
    assert {path for path in of_baselines if not path.startswith("lab/simulator/baselines/")} < found
    assert {"gateway/cost/formula.py", "lab/simulator/engine/replica.py"} <= of_baselines
    assert not any(path.startswith(("gateway/admission/", "engine_ext/")) for path in of_baselines)
    assert {"lab/simulator/baselines/cpu_pressure.py", "lab/simulator/baselines/offload.py"} <= of_baselines
    assert "lab/simulator/baselines/saga.py" not in found | of_baselines


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
@pytest.mark.timeout(300)
def test_a_baseline_executes_of_the_gateway_what_its_cells_are_of():
    """One of each kind that any scenario has; what prefills apart needs a fleet of its own."""
    bench = Bench("mars-h100", {}, 1, ['mix = "mars-ilr1"', "sessions = 1", "pool = 2"])
    variants = [variant for name in names() for _, variant in Scenario.read(name).variants()]
    known = {variant.label.partition(":")[0]: variant for variant in variants}
    baselines = [each for kind, each in known.items() if not kind.startswith(("turnpike", "split"))]
    executed: set[str] = set()

    def look(frame: FrameType, event: str, _: object) -> None:
        if event == "call":
            executed.add(frame.f_globals.get("__name__", ""))

    gc.collect()
    gc.freeze()  # a generator of another test's would be closed, which counts as a call
    sys.setprofile(look)
    try:
        found = list(bench.run([Trial(each, 100.0, 1) for each in baselines]))
    finally:
        sys.setprofile(None)
        gc.unfreeze()
    assert len(found) == len(baselines) > 10
    of_gateway = {name for name in executed if name.startswith(("gateway.", "turnpike_vllm"))}
    assert "gateway.cost.formula" in of_gateway
    assert of_gateway <= BASELINES_EXECUTE
    assert executed.isdisjoint(OURS_EXECUTES)
    theirs = {path for each in baselines for path in sources(each.label)}
    of_lab = {Path(sys.modules[name].__file__ or "") for name in executed if name.startswith("lab.simulator")}
    assert of_lab <= theirs


def test_code_makes_cells_old_and_the_records_only_those_of_baselines(monkeypatch):
    fresh = sources_sha256.__wrapped__
    before = {policy: fresh(policy) for policy in ("turnpike", "mars")}
    with monkeypatch.context() as patch:
        patch.setattr(store, "fields_of", lambda text: f"{fields_of(text)} changed")
        assert fresh("turnpike") == before["turnpike"]
        assert fresh("mars") != before["mars"]
    with monkeypatch.context() as patch:
        patch.setattr(store, "code_of", lambda text, **how: f"{code_of(text, **how)} changed")
        assert all(fresh(policy) != before[policy] for policy in before)


def test_words_about_code_do_not_make_cells_old():
    code = "x = 1\n\n\ndef f():\n    return x\n"
    told = (
        '"""A module."""\n\nx = 1\n"""A field."""\n\n\ndef f():\n    """What."""\n    # Why.\n    return x\n'
    )
    assert code_of(told) == code_of(code) != code_of(code.replace("1", "2"))
    assert fields_of(code) == fields_of("x = 1\n") != fields_of(code.replace("1", "2"))
