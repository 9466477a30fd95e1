"""What do engines that follow hints gain, behind the same gateway?

    python -m benchmarks.plugin_gain WORKLOAD [--fleet FLEET.toml] [--quick] [--json] [--seeds N] [--knee N]

Simulated: the sessions of a workload file (docs/reference/workloads.md), whose clients say nothing but their
requests, at 1.2 and 1.5 × the knee of stock vLLM, and with its native offload at 1.2 × that knee. Behind the
gateway's brain as it is by default, engines with the plugin against those without, on the same sessions,
seed by seed: mean and p90 of completion as ratios, and of all sessions those more that end within 1.5, 2 and
4 × what they take alone; means with their 95 % intervals. All of it is told, nothing is a target: the page
that quotes it is docs/design/engine.md.
"""

import argparse
import math
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Final

from benchmarks.command import judged
from benchmarks.simulations.knee import Slow, find_knee
from benchmarks.simulations.workloads import load
from benchmarks.verdict import Interval, Verdict
from gateway.simulator.baselines.spec import parse_policies
from gateway.simulator.experiment.parallel import run_all
from gateway.simulator.experiment.trial import Setting, Trial
from gateway.simulator.fleet import decode_fleet
from gateway.simulator.measures.goodput import ALPHAS

RELATIVE: Final = {"": (1.2, 1.5), "+offload": (1.2,)}
"""Loads to the knee, by what the engines have beside a prefix cache."""
_FLEET: Final = Path(__file__).with_name("simulations") / "h200.toml"
Found = dict[str, float]
Run = Callable[[Sequence[str], float, Sequence[int]], list[list[Found]]]


def runner(setting: Setting, *, jobs: int) -> Run:
    """Plays policies at a load: by policy, by seed."""

    def run(texts: Sequence[str], per_h: float, seeds: Sequence[int]) -> list[list[Found]]:
        variants = [parse_policies(text)[0].variants[0] for text in texts]
        trials = [Trial(each, per_h, seed) for each in variants for seed in seeds]
        found = run_all(setting, trials, jobs=jobs, progress=lambda *_: None)
        figures = [{name: value or 0.0 for name, value in each.metrics.items()} for each in found]
        return [figures[at : at + len(seeds)] for at in range(0, len(figures), len(seeds))]

    return run


def knee_per_h(run: Run, behind: str, guess: float) -> float:
    def measure(per_h: float) -> float:
        (stock,), (unlimited,) = run((f"affinity{behind}", "infinite-kv"), per_h, [1])
        return Slow(stock["slowdown_mean"], unlimited["slowdown_mean"]).measure

    return find_knee(measure, guess, at_most=1.0)[0]


def tell(verdict: Verdict, at: str, without: Sequence[Found], with_it: Sequence[Found]) -> None:
    pairs = list(zip(with_it, without, strict=True))
    for name in ("completion_mean_s", "completion_p90_s"):
        _tell(verdict, f"{at}_{name.removesuffix('_s')}", [on[name] / off[name] for on, off in pairs])
    for alpha in ALPHAS:
        name = f"goodput_{alpha:g}"
        verdict.tell(f"{at}_{name}_without", sum(off[name] for _, off in pairs) / len(pairs))
        _tell(verdict, f"{at}_{name}_more", [on[name] - off[name] for on, off in pairs])
    for name in ("completion_mean_s", "hit_rate", "preemptions"):
        for which, found in (("without", without), ("with", with_it)):
            verdict.tell(f"{at}_{name}_{which}", sum(each[name] for each in found) / len(found))


def _tell(verdict: Verdict, name: str, values: Sequence[float]) -> None:
    interval = Interval.of(values)
    verdict.tell(name, interval.mean)
    if math.isfinite(interval.low):
        verdict.tell(f"{name}_low", interval.low)
        verdict.tell(f"{name}_high", interval.high)


def main(argv: list[str] | None = None) -> int:
    own = argparse.ArgumentParser(add_help=False)
    own.add_argument("workload", type=Path, help="a workload file")
    own.add_argument("--fleet", type=Path, default=_FLEET, help="that it is played on (default: an H200)")
    own.add_argument("--knee", type=float, nargs="+", help="sessions an hour, without and with offload")
    own.add_argument("--seeds", type=int, default=8, help="of each point (default 8)")
    own.add_argument("--sessions", type=int, default=40, help="of each run (default 40)")
    own.add_argument("--jobs", type=int, default=1, help="processes (default 1)")
    asked, _ = own.parse_known_args(argv)

    def measure(is_quick: bool, verdict: Verdict, say: Any) -> None:
        fleet = decode_fleet(asked.fleet.read_bytes())
        setting = Setting(
            workload=load(asked.workload, fleet).sessions,
            fleet=fleet,
            sessions=asked.sessions,
            shown=0,
            says_when_over=False,
        )
        run = runner(setting, jobs=asked.jobs)
        knee = 100.0
        for number, (behind, loads) in enumerate(RELATIVE.items()):
            known = asked.knee or []
            knee = known[number] if number < len(known) else knee_per_h(run, behind, knee)
            name = behind.removeprefix("+") or "stock"
            verdict.tell(f"{name}_knee_per_h", knee)
            for relative in loads[:1] if is_quick else loads:
                policies = (f"turnpike{behind}", f"turnpike{behind}+plugin")
                without, with_it = run(
                    policies, relative * knee, range(1, 3 if is_quick else asked.seeds + 1)
                )
                tell(verdict, f"{name}_{relative:g}", without, with_it)
                mean = verdict.figures[f"{name}_{relative:g}_completion_mean"].value
                say(f"{name} at {relative:g} × {knee:.0f} an hour: mean {mean} × with the plugin")

    return judged(
        __file__, __doc__, measure, quick="two seeds of each, without the load of 1.5", own=own, argv=argv
    )


if __name__ == "__main__":
    sys.exit(main())
