"""Admission: does it harm nobody below the knee, what does it gain beyond, and what does a decision cost?

    python -m benchmarks.admission [--workload FILE --fleet FLEET.toml [--offload] [--plugin] [--kv N]]

Decisions: 5,000 sessions wait, of one tenant, of ten, and of as many tenants; sessions come, end and enter.
With a workload, too: for each seed the knee of the strong baseline (prefix cache and session affinity; native
offload, too, if asked for) is measured; then the gateway's brain, as it is by default, against that baseline
and the best fixed window in hindsight, at loads relative to the knee; and against itself with those that
wait in order of arrival. Everything is simulated. `--kv 0.3`: on replicas with so many times the memory for
KV.
"""

import argparse
import gc
import random
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from benchmarks.simulations.knee import Slow, find_knee
from benchmarks.simulations.workloads import Workload, load
from benchmarks.verdict import Verdict
from gateway.simulator.baselines.plan import Plan
from gateway.simulator.baselines.spec import parse_policies
from gateway.simulator.engine.options import EngineOptions
from gateway.simulator.experiment.parallel import run_all
from gateway.simulator.experiment.trial import Setting, Trial
from gateway.simulator.fleet import FleetSpec, decode_fleet
from gateway.simulator.measures.figures import RunFigures
from tests.admission.applicants import Play, answered

WAITING = 5000
RELATIVE = (0.9, 1.2, 1.5)
"""Loads, to the knee."""
CROWDED = 2.0
"""The load at which those who wait in order of arrival are seldom quick."""
Found = dict[str, float]
_SHARES = (0.5, 0.65, 0.8, 1.0, 1.3)
"""Fixed windows, relative to how many sessions fill the cache."""


def main() -> int:
    parser = argparse.ArgumentParser(prog="benchmarks.admission", description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--workload", type=Path, help="a workload file")
    parser.add_argument("--fleet", type=Path, help="the fleet that it is played on")
    parser.add_argument("--sessions", type=int, default=120, help="of each simulation (default 120)")
    parser.add_argument("--seeds", type=_numbers, default=[1], help="such as 3,4 (default 1)")
    parser.add_argument("--offload", action="store_true", help="native CPU offload on both sides")
    parser.add_argument("--plugin", action="store_true", help="our engines follow hints")
    parser.add_argument("--kv", type=float, default=1.0, help="times the memory for KV")
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--quick", action="store_true", help="fewer decisions, 40 sessions")
    parser.add_argument("--json", action="store_true", help="print the last line alone")
    options = parser.parse_args()
    verdict = Verdict()
    for tenants in (1, 10, WAITING):
        decision_ms, event_ms = decisions(tenants, rounds=300 if options.quick else 3000)
        verdict.at_most(f"decision_p99_ms_{tenants}_tenants", decision_ms, 2.0)
        verdict.tell(f"event_p99_ms_{tenants}_tenants", event_ms)
    if options.workload is not None:
        fleet = _scaled(decode_fleet(options.fleet.read_bytes()), options.kv)
        compare(verdict, load(options.workload, fleet), fleet, options)
    return verdict.report(is_json_alone=options.json)


def decisions(tenants: int, *, rounds: int, places: int = 20) -> tuple[float, float]:
    """The 99th percentile of what admission takes, in ms of processor time: for each session that asks
    or is let in, and for each event, which may let in several.

    An engine has KV for some `places` sessions."""
    play = Play(max_waiting=2 * WAITING).has(kv_tokens=places * 12_000)
    rng = random.Random(1)
    spent: list[tuple[float, float]] = []

    def timed(call: Any, *values: Any, **fields: Any) -> Any:
        began = time.process_time()
        found = call(*values, **fields)
        spent_s = time.process_time() - began
        spent.append((spent_s / max(1, len(found) if isinstance(found, list) else 1), spent_s))
        return found

    def comes(number: int) -> None:
        timed(
            play.ask, f"s{number}", tenant=f"t{number % tenants}", body_bytes=rng.randrange(20_000, 200_000)
        )

    for number in range(WAITING + places):
        play.now += 0.001
        comes(number)
    gc.collect()
    gc.freeze()
    spent.clear()
    for number in range(rounds):
        play.now += 0.02
        session = rng.choice(sorted({str(each.session) for each in play.running.values()}))
        timed(play.end, session, outcome=answered(tokens=10_000))
        if number % 2:
            timed(play.finish, session)
        comes(WAITING + places + number)
        if not play.running:
            play.later(0.2)
    gc.unfreeze()
    of_decisions, of_events = (sorted(each) for each in zip(*spent, strict=True))
    return of_decisions[int(0.99 * len(spent))] * 1e3, of_events[int(0.99 * len(spent))] * 1e3


def compare(verdict: Verdict, workload: Workload, fleet: FleetSpec, options: argparse.Namespace) -> None:
    sessions = 40 if options.quick else options.sessions
    setting = Setting(workload=workload.sessions, fleet=fleet, sessions=sessions, shown=0)
    strong, ours, fifo, unlimited, *fixed = policies = _policies(
        workload, fleet, is_offloading=options.offload, has_plugin=options.plugin
    )
    variants = {text: parse_policies(text)[0].variants[0] for text in policies}

    def run(texts: Sequence[str], per_h: float, seed: int) -> list[Found]:
        trials = [Trial(variants[text], per_h, seed) for text in texts]
        found = run_all(setting, trials, jobs=options.jobs, progress=_told)
        return [{name: value or 0.0 for name, value in each.metrics.items()} for each in found]

    crowded: list[list[Found]] = []
    cells: dict[float, list[list[Found]]] = {relative: [] for relative in RELATIVE}
    for seed in options.seeds:

        def measure(per_h: float, seed: int = seed) -> float:
            stock, bound = run((strong, unlimited), per_h, seed)
            return Slow(stock["slowdown_mean"], bound["slowdown_mean"]).measure

        knee, _ = find_knee(measure, 60.0, at_most=1.0)
        verdict.tell(f"knee_per_h_seed_{seed}", knee)
        for relative, of_seeds in cells.items():
            texts = (strong, ours) if relative < 1 else (strong, ours, fifo, *fixed)
            of_seeds.append(run(texts, relative * knee, seed))
        crowded.append(run((ours, fifo), CROWDED * knee, seed))
    gain = 3.0 if options.offload else 4.0
    for relative, of_seeds in cells.items():
        _judge(verdict, relative, _means(of_seeds), gain=gain)
    _judge_order(verdict, *_means(crowded))


def _judge(verdict: Verdict, relative: float, found: list[Found], *, gain: float) -> None:
    strong, ours, *others = found
    at = f"at_{relative:g}_knee"
    times = {name: ours[name] / strong[name] for name in ("completion_mean_s", "completion_p99_s")}
    if relative < 1:
        verdict.at_most(f"{at}_mean", times["completion_mean_s"], 1.02)
        verdict.at_most(f"{at}_p99", times["completion_p99_s"], 1.05)
        return
    fifo, *fixed = others
    best_s = min(each["completion_mean_s"] for each in fixed)
    verdict.at_least(f"{at}_mean_gain", 1.0 / times["completion_mean_s"], gain)
    throughput = ours["sessions_per_h"] / strong["sessions_per_h"]
    if gain == 4.0:
        verdict.at_least(f"{at}_throughput_gain", throughput, 1.8)
    else:
        verdict.tell(f"{at}_throughput_gain", throughput)
    verdict.at_most(f"{at}_mean_against_best_fixed", ours["completion_mean_s"] / best_s, 1.1)
    verdict.tell(f"{at}_within_2_against_arrival", ours["goodput_2"] / max(fifo["goodput_2"], 1e-9))
    for name in ("completion_mean_s", "goodput_2", "hit_rate", "failed"):
        verdict.tell(f"{at}_{name}", ours[name])


def _judge_order(verdict: Verdict, ours: Found, fifo: Found) -> None:
    """Where few would be quick anyway: more of them, and little of it at the others' expense."""
    at = f"at_{CROWDED:g}_knee"
    verdict.at_least(f"{at}_within_2_against_arrival", ours["goodput_2"] / max(fifo["goodput_2"], 1e-9), 1.5)
    verdict.tell(f"{at}_goodput_2", ours["goodput_2"])
    for name, bound in (("mean", 1.03), ("p90", 1.1)):
        key = f"completion_{name}_s"
        verdict.at_most(f"{at}_{name}_against_arrival", ours[key] / fifo[key], bound)


def _policies(workload: Workload, fleet: FleetSpec, *, is_offloading: bool, has_plugin: bool) -> list[str]:
    plan = Plan.of(fleet)
    tokens: float = sum(plan.kv_tokens(fleet).values())
    if is_offloading:
        host_bytes = sum(group.offload_gb * group.count for group in fleet.replicas) * 1e9
        tokens += host_bytes / plan.profile.model.kv_bytes_per_token
    fits = tokens / workload.mean_context / len(fleet.each())
    caps = sorted({max(1, round(share * fits)) for share in _SHARES})
    fixed = [f"session-cap:n={cap}" for cap in caps]
    fixed += [] if is_offloading else ["footprint:f=0.8", "footprint:f=0.9"]
    ending = "+offload" if is_offloading else ""
    own = ending + ("+plugin" if has_plugin else "")
    ours = [f"turnpike{own}", f"turnpike:order=arrival{own}"]
    return [f"affinity{ending}", *ours, "infinite-kv", *(each + ending for each in fixed)]


def _means(of_seeds: list[list[Found]]) -> list[Found]:
    """Of each policy, over the seeds."""
    return [_mean([of_seed[number] for of_seed in of_seeds]) for number in range(len(of_seeds[0]))]


def _mean(of_seeds: list[Found]) -> Found:
    return {name: sum(each[name] for each in of_seeds) / len(of_seeds) for name in of_seeds[0]}


def _told(_: int, trial: Trial, found: RunFigures) -> None:
    mean_s, hits = found.metrics["completion_mean_s"] or 0.0, found.metrics["hit_rate"] or 0.0
    print(
        f"{trial.per_h:5.1f}/h seed {trial.seed} {trial.variant.label}: mean {mean_s:.0f} s, hits {hits:.2f}",
        file=sys.stderr,
        flush=True,
    )


def _scaled(fleet: FleetSpec, times: float) -> FleetSpec:
    if times == 1.0:
        return fleet
    tokens, block_size = Plan.of(fleet).kv_tokens(fleet), EngineOptions().block_size
    blocks = int(times * min(tokens.values()) / block_size)
    replicas = tuple(msgspec.structs.replace(group, kv_blocks=blocks) for group in fleet.replicas)
    return msgspec.structs.replace(fleet, replicas=replicas)


def _numbers(text: str) -> list[int]:
    return [int(each) for each in text.split(",")]


if __name__ == "__main__":
    sys.exit(main())
