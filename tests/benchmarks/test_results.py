"""Stored runs: what is missing, how they compare, what the page says of them; and they come out again."""

import math
from pathlib import Path
from random import Random
from typing import Any

import msgspec
import pytest

from benchmarks.processes import BenchmarkError
from benchmarks.results import __main__ as runner
from benchmarks.results import compares, page
from benchmarks.results.__main__ import Bench, fill
from benchmarks.results.figures import KEPT, cells, of_logs, ratio, strongest
from benchmarks.results.scenario import Compare, Scenario, names
from benchmarks.results.store import FOLDER, Run, Store
from benchmarks.results.world import World, on_cores
from benchmarks.simulations.workloads import Workload
from benchmarks.verdict import Verdict
from lab.simulator.baselines.spec import parse_policies
from lab.simulator.experiment.trial import Setting, Staged, Trial, usual
from lab.simulator.fleet import Change, FleetSpec, ReplicaGroup
from lab.simulator.measures.figures import RunFigures
from lab.workload.trace.format import Header, Session, Thread, Tool, Turn

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


@pytest.mark.slow
def test_an_interval_holds_the_mean_as_often_as_it_says():
    dice, inside = Random(1), 0
    for _ in range(200):
        logs = [dice.gauss(0.1, 0.2) for _ in range(10)]
        found = of_logs(logs)
        assert found is not None
        inside += found.low <= math.exp(0.1) <= found.high
    assert 170 <= inside < 200


def test_a_loss_is_bold_whichever_way_is_better():
    lower, higher = "completion_mean_s", "goodput_2"
    interval = of_logs([math.log(1.2)] * 3)
    assert page.told_ratio(interval, lower) == "**1.20 (1.20–1.20)**"
    assert page.told_ratio(interval, higher) == "1.20 (1.20–1.20)"
    alone = of_logs([math.log(1.2)])
    assert alone is not None and (alone.low, alone.high) == (0.0, math.inf), "one run has no bounds"
    assert page.told_ratio(of_logs([math.log(0.8)] * 3), higher) == "**0.80 (0.80–0.80)**"


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
        assert len({run.sessions_sha256 for run in store.runs.values()}) == 1


def test_the_page_is_that_of_the_stored_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    written = page.IMAGES.parent / "design/results.md"
    monkeypatch.setattr(page, "IMAGES", tmp_path)
    assert page.whole() == written.read_text(encoding="utf-8"), "run: python -m benchmarks.results --page"


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


def test_shares_are_told_as_differences(scenario):
    runs = [run(policy, 120.0, seed, 1.0) for policy in ("affinity", "turnpike") for seed in (1, 2)]
    for each in runs:
        each.metrics["goodput_2"] = 0.5 if each.policy == "affinity" else 0.5 + 0.1 * each.seed
    compare = Compare(policy="turnpike", against=["affinity"], metrics=("goodput_2",), is_difference=True)
    found = judged(msgspec.structs.replace(scenario, compares=[compare]), runs)
    name = "x at 1.2: goodput_2 turnpike - affinity"
    assert [found[f"{name}{side}"][0] for side in ("", "_low", "_high")] == [0.15, 0.1, 0.2]


def test_a_single_seed_is_never_sure(scenario):
    runs = [run("affinity", 120.0, 1, 1.0), run("turnpike", 120.0, 1, 2.0)]
    compare = Compare(policy="turnpike", against=["affinity"], at_most=1.0, is_sure=True)
    (figure,) = judged(msgspec.structs.replace(scenario, compares=[compare]), runs).values()
    assert figure == (2.0, None, True)


def test_tenants_are_compared_with_all_seeds_as_one(scenario):
    def of(policy: str, seed: int, **slowdowns: list[float]) -> Run:
        return msgspec.structs.replace(run(policy, 120.0, seed, 1.0), slowdowns=slowdowns)

    runs = [
        of("affinity", 1, a=[4.0], b=[1.0]),
        of("affinity", 2, a=[8.0], b=[1.0]),
        of("turnpike", 1, a=[1.0, 2.0], b=[9.0]),
        of("turnpike", 2, a=[3.0, 2.0], b=[9.0]),
    ]
    metrics = ("slowdown_p99.first", "slowdown_mean.first", "goodput_1.5.first")
    compared = [
        Compare(policy="turnpike", metrics=metrics),
        Compare(policy="turnpike", against=["affinity"], metrics=("slowdown_p99.both",)),
    ]
    groups = {"first": ["a"], "both": ["a", "b"]}
    found = judged(msgspec.structs.replace(scenario, tenants=groups, compares=compared), runs)
    assert [value for value, _, _ in found.values()] == [3.0, 2.0, 0.25, 1.125]
    # A seed that one of the two has not yet counts for neither.
    means = Compare(policy="turnpike", against=["affinity"], metrics=("slowdown_mean.both",))
    begun = [runs[0], *runs[2:]]
    found = judged(msgspec.structs.replace(scenario, tenants=groups, compares=[means]), begun)
    assert [value for value, _, _ in found.values()] == [4.0 / 2.5]
    nobody = msgspec.structs.replace(scenario, tenants={"first": ["z"]}, compares=compared[:1])
    assert [value for value, _, _ in judged(nobody, runs).values()] == [None] * 3


def test_the_same_policy_is_set_beside_another_scenario(scenario):
    other = Store("calm", None)
    other.add(run("turnpike", 120.0, 1, 2.0))
    store, verdict = Store("x", None), Verdict()
    store.add(run("turnpike", 120.0, 1, 3.0))
    changed = msgspec.structs.replace(scenario, compares=[Compare(policy="turnpike", beside="calm")])
    compares.judge(verdict, "x", lambda name: (scenario, other) if name == "calm" else (changed, store))
    (figure,) = verdict.figures.values()
    assert figure.value == 1.5


def test_a_scenario_says_what_its_base_does_not_and_a_command_line_more():
    base, like = Scenario.read("routing-like"), Scenario.read("routing-unlike")
    assert like.policies == base.policies and like.fleet.noise == base.fleet.noise
    assert {group.profile for group in like.fleet.replicas} > {group.profile for group in base.fleet.replicas}
    changed = Scenario.read("routing-like", ["seeds = 2", "first_seed = 21", "fleet.noise = 0.0"])
    assert list(changed.all_seeds) == [21, 22]
    assert changed.fleet == msgspec.structs.replace(base.fleet, noise=0.0)
    for wrong in ("seeds", "no_such = 1", "seeds = 'x'"):
        with pytest.raises(BenchmarkError, match="routing-like: "):
            Scenario.read("routing-like", [wrong])
    with pytest.raises(BenchmarkError, match="there is no scenario 'x'"):
        Scenario.read("x")


def session(name: str, tokens: int = 100, tenant: str = "default") -> Session:
    turn = Turn(input_tokens=tokens, output_tokens=2, tools=(Tool(name="t", duration_s=1.0),))
    return Session(id=name, tenant=tenant, threads=(Thread(turns=(turn,)),))


def staged(world: World, pool: list[Session]) -> Staged:
    setting = Setting(workload=pool, fleet=FLEET, sessions=20)
    return world.stage(setting, Trial(parse_policies("affinity")[0].variants[0], 3600.0, 1))


def test_the_load_changes_after_as_many_sessions_as_come_behind_it():
    pool = [session(f"s{number}") for number in range(30)]
    found = staged(World(load_times=2.0, settles_s=5.0), pool)
    arrivals = [each.arrival_s for each in found.sessions]
    assert arrivals == sorted(arrivals) and len({each.id for each in found.sessions}) == 40
    early, late = ([each.id.removesuffix("/late") for each in found.sessions[at:][:20]] for at in (0, 20))
    assert early != late
    assert 10 < arrivals[19] <= 20 < arrivals[20] and arrivals[-1] <= 30
    assert found.measured == frozenset(each.id for each in found.sessions if each.arrival_s >= 25)
    assert found.fleet == FLEET


def test_contexts_grow_and_the_fleet_changes():
    pool = [session(f"s{number}", tokens=100 + number) for number in range(30)]
    found = staged(World(grows=True, tool_speed=0.2), pool)
    tokens = [each.threads[0].turns[0].input_tokens for each in found.sessions]
    assert max(tokens[:20]) < 110 and min(tokens[20:]) >= 120
    assert found.fleet.changes == (Change(at_s=20.0, tool_speed=0.2),)


def test_a_tenant_floods_the_fleet_while_the_others_come_as_they_did():
    pool = [session(f"s{number}", tenant=f"t{number % 3}") for number in range(30)]
    found = staged(World(flooded_by="t1"), pool)
    more = [each for each in found.sessions if each.id.startswith("more-")]
    others = [each for each in found.sessions if not each.id.startswith("more-")]
    assert len(more) == 20 and {each.tenant for each in more} == {"t1"}
    setting = Setting(workload=pool, fleet=FLEET, sessions=20)
    assert others == usual(setting, Trial(parse_policies("affinity")[0].variants[0], 3600.0, 1)).sessions
    assert [each.arrival_s for each in found.sessions] == sorted(each.arrival_s for each in found.sessions)


def test_every_tool_asks_for_cores():
    (turn,) = on_cores(session("a"), 2.0).threads[0].turns
    assert [tool.cpu_cores for tool in turn.tools] == [2.0]


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


@pytest.mark.parametrize(
    ("said", "told"), [(None, [True, False]), (True, [True, True]), (False, [False, False])]
)
def test_baselines_are_told_of_ends_and_turnpike_is_not_unless_a_scenario_says_so(
    scenario, said, told, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    changed = msgspec.structs.replace(scenario, says_when_over=said, mix="mix", tool_cores=2.0)
    workload = Workload(header=Header(name="w"), sessions=[session("a")], left_out=0)
    settings: list[Setting] = []

    def seen(setting: Setting, _: list[Trial], **__: object) -> list[RunFigures]:
        settings.append(setting)
        return []

    monkeypatch.setattr(Scenario, "read", classmethod(lambda cls, name, changes=(): changed))
    monkeypatch.setattr(runner, "composed", lambda *_, count: tmp_path)
    monkeypatch.setattr(runner, "load", lambda *_: workload)
    monkeypatch.setattr(runner, "run_all", seen)
    bench = Bench("small", {}, 1)
    for policy in ("affinity", "turnpike"):
        trials = [each for each in bench.missing(Store("none", None), 1) if each.variant.label == policy]
        with pytest.raises(ValueError, match="zip"):  # nothing was found
            list(bench.run(trials))
    assert [each.says_when_over for each in settings] == told
    assert settings[0].workload == [on_cores(session("a"), 2.0)]
