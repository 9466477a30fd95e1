"""What is gained when prefill and tools overlap, and does anybody pay for it?

    python -m benchmarks.overlap [--quick] [--json] [--seeds N] [--sessions N] [--jobs N]
        [--part NAME ...] [--workload FILE] [--knee PER_H]

Simulated, in four parts.

`paper`: Sutradhara's own set-up (arXiv 2601.12967, §5.1): Qwen3-14B on one A100-80GB, prompts in chunks of
256 tokens, sessions of many calls whose system prompt changes with the tools that were called (`AGENT_KINDS`'
`orchestrator`, where stands what is printed and what is assumed), 120 of them as Poisson arrivals, at 0.0075
to 0.015 a second. The baseline is vLLM with its prefix cache, tasks in order of their arrival. Turnpike
computes next prompts ahead, agents dispatch tools while their calls are decoded; each alone and both. Figures
are of the time to the final answer's first token (FTR), seed by seed on the same sessions, of a gateway that
these came to once before; and, where that is said (`at_first`), of one that has just started.

`short`: the same, at the lowest load, with tools scaled so that they take 12.9 % of the baseline's FTR, as
§5.3 says of the evaluation; §3.3 says 32 % of the trace.

`coin`: the same, at loads up to what the device bears, but that the next system prompt is one of two, by
chance: half of all guesses are wrong, and nobody is to pay more than 1 % for that.

`recorded`: agents that only append, from `--workload` (docs/contribute/workloads.md), on an H200: below, at
and above the knee, with and without vLLM's own CPU offload; prefill ahead is never to cost anybody more than
1 %.
"""

import argparse
import itertools
import statistics
import sys
from collections.abc import Sequence
from pathlib import Path
from random import Random
from typing import Any, Final

import msgspec

from benchmarks.command import judged
from benchmarks.processes import BenchmarkError
from benchmarks.simulations.workloads import changed, load, with_tools
from benchmarks.verdict import Interval, Verdict
from lab.simulator.baselines.spec import parse_policies
from lab.simulator.experiment.knee import SLOW, find_knee
from lab.simulator.experiment.parallel import run_all
from lab.simulator.experiment.trial import Setting, Trial
from lab.simulator.fleet import FleetSpec, ReplicaGroup
from lab.workload.trace.agent_kinds import ORCHESTRATOR
from lab.workload.trace.agents import session_of
from lab.workload.trace.format import Session, Turn

PARTS: Final = ("paper", "short", "coin", "recorded")
BASELINE: Final = "oldest-first"
OURS: Final = "turnpike:ahead=on+dispatch"
LEARNED: Final = "learned "
"""Before a policy: its sessions came once before, and the gateway has learned which prompt follows what."""
VARIANTS: Final = {
    "dispatch": "turnpike+dispatch",
    "ahead": f"{LEARNED}turnpike:ahead=on",
    "ahead_at_first": "turnpike:ahead=on",
    "both": f"{LEARNED}{OURS}",
    "both_at_first": OURS,
    "split": "sutradhara:cache=0",
    "sutradhara": "sutradhara+dispatch",
}
"""The last two are the paper's own: of an orchestrator that knows the next system prompt."""
QPS: Final = (0.0075, 0.01, 0.0125, 0.015)
COIN_QPS: Final = (0.0075, 0.015, 0.045)
"""At the last one the device is busy all the time."""
GAIN, MORE_LOAD = 0.15, 1.77
"""Sutradhara's, of the median FTR and of the load at the same."""
PRINTED_FTR_S, PRINTED_E2E_S = 37.45, 61.57
SHORT_TOOLS: Final = 0.129 / 0.32
SESSIONS: Final = 120
"""As in the paper."""
POOL: Final = 400
"""Sessions to draw from."""
RELATIVE: Final = (0.7, 1.0, 1.3)
WORSE: Final = 1.01
PROFILE: Final = str(Path(__file__).with_name("simulations") / "qwen3-14b-a100-256.toml")
A100: Final = FleetSpec(replicas=(ReplicaGroup(profile=PROFILE),), noise=0.02)
H200: Final = FleetSpec(
    replicas=(ReplicaGroup(profile="qwen3-coder-30b-a3b@h200", offload_gb=128.0),), noise=0.02
)

_TOLD: Final = ("final_ttft_p50_s", "completion_p50_s", "hit_rate", "busy")

Figures = dict[str, float]


def orchestrated(count: int, *, tools: float = 1.0) -> list[Session]:
    """`tools`: how many times as long as usual these take."""
    dice = Random("orchestrated")
    made = [session_of(ORCHESTRATOR, dice, id_=f"s{number}") for number in range(count)]
    return (
        made
        if tools == 1.0
        else [with_tools(each, duration_s=lambda tool: tool.duration_s * tools) for each in made]
    )


def tossed(sessions: Sequence[Session]) -> list[Session]:
    """Each system prompt that was put before a conversation is one of two, by chance."""
    dice = Random("coin")

    def toss(turn: Turn) -> Turn:
        key = turn.shared_key
        return msgspec.structs.replace(turn, shared_key=f"{key}/{dice.randrange(2)}") if key else turn

    return [changed(session, toss) for session in sessions]


class Runs:
    """Plays policies at loads, seed by seed."""

    def __init__(self, setting: Setting, seeds: Sequence[int], jobs: int, tell: Any) -> None:
        self._setting = setting
        self._seeds = seeds
        self._jobs = jobs
        self._tell = tell

    def __call__(self, policies: Sequence[str], per_h: float) -> dict[str, list[Figures]]:
        """Of each policy, by seed."""
        by_policy = {}
        for policy in policies:
            text = policy.removeprefix(LEARNED)
            setting = msgspec.structs.replace(self._setting, comes_twice=text != policy)
            variant = parse_policies(text)[0].variants[0]
            trials = [Trial(variant, per_h, seed) for seed in self._seeds]
            found = run_all(setting, trials, jobs=self._jobs, progress=lambda *_: None)
            runs = [{name: value or 0.0 for name, value in run.metrics.items()} for run in found]
            by_policy[policy] = runs
            told = ", ".join(f"{name} {mean(runs, name):.4g}" for name in _TOLD)
            self._tell(f"{per_h:.1f} an hour, {policy}: {told}")
        return by_policy


def mean(runs: Sequence[Figures], name: str) -> float:
    return statistics.fmean(run[name] for run in runs)


def ratio(ours: Sequence[Figures], theirs: Sequence[Figures], name: str) -> Interval:
    return Interval.of([our[name] / their[name] for our, their in zip(ours, theirs, strict=True)])


def load_at(curve: Sequence[tuple[float, float]], time_s: float) -> float:
    """The load at which a curve of (load, time) comes to that time; at its end, if it never does."""
    curve = sorted(curve)
    if curve[0][1] >= time_s:
        return curve[0][0]
    for (low, low_s), (high, high_s) in itertools.pairwise(curve):
        if high_s >= time_s:
            return low + (high - low) * (time_s - low_s) / (high_s - low_s)
    return curve[-1][0]


def judge_ablation(name: str, found: dict[str, list[Figures]], verdict: Verdict) -> None:
    """Each variant against the baseline, at one load."""
    baseline = found[BASELINE]
    for variant, policy in VARIANTS.items():
        if policy not in found:
            continue
        less = ratio(found[policy], baseline, "final_ttft_p50_s")
        figure = f"{name}_{variant}_ftr_p50_less"
        if variant == "both" and name == "paper":
            verdict.at_least(figure, 1 - less.mean, GAIN)
        else:
            verdict.tell(figure, 1 - less.mean)
        verdict.tell(f"{figure}_low", 1 - less.high)
        verdict.tell(f"{figure}_high", 1 - less.low)
        for metric, short in (("final_ttft_p90_s", "ftr_p90"), ("completion_p50_s", "e2e_p50")):
            verdict.tell(f"{name}_{variant}_{short}_less", 1 - ratio(found[policy], baseline, metric).mean)
        verdict.tell(f"{name}_{variant}_hit_rate", mean(found[policy], "hit_rate"))
    verdict.tell(f"{name}_baseline_hit_rate", mean(baseline, "hit_rate"))
    verdict.tell(f"{name}_baseline_ftr_p50_s", mean(baseline, "final_ttft_p50_s"))
    verdict.tell(f"{name}_baseline_e2e_p50_s", mean(baseline, "completion_p50_s"))


def judge_curves(curves: dict[str, dict[float, list[Figures]]], verdict: Verdict) -> None:
    """How much more load is borne at the same median FTR: the most, over the baseline's loads."""
    medians = {
        policy: [(qps, mean(runs, "final_ttft_p50_s")) for qps, runs in sorted(by_load.items())]
        for policy, by_load in curves.items()
    }
    for qps, time_s in medians[BASELINE]:
        verdict.tell(f"paper_baseline_ftr_p50_s_at_{qps:g}", time_s)
    for name in ("both", "sutradhara"):
        policy = VARIANTS[name]
        times = [load_at(medians[policy], time_s) / qps for qps, time_s in medians[BASELINE]]
        if name == "both":
            verdict.at_least("paper_both_load_at_equal_ftr_p50", max(times), MORE_LOAD)
        else:
            verdict.tell(f"paper_{name}_load_at_equal_ftr_p50", max(times))
        for qps, runs in sorted(curves[policy].items()):
            less = ratio(runs, curves[BASELINE][qps], "final_ttft_p50_s") if qps in curves[BASELINE] else None
            verdict.tell(f"paper_{name}_ftr_p50_s_at_{qps:g}", mean(runs, "final_ttft_p50_s"))
            if less is not None:
                verdict.tell(f"paper_{name}_ftr_p50_less_at_{qps:g}", 1 - less.mean)


def judge_harm(name: str, on: Sequence[Figures], off: Sequence[Figures], verdict: Verdict) -> None:
    """`on` and `off`: with and without prefill ahead."""
    for metric in ("ttft_mean_s", "ttft_p90_s", "completion_mean_s", "completion_p90_s"):
        verdict.at_most(f"{name}_{metric}", ratio(on, off, metric).mean, WORSE)


def paper(runs: Runs, verdict: Verdict, *, is_quick: bool) -> None:
    lowest = runs([BASELINE, *VARIANTS.values()], QPS[0] * 3600)
    judge_ablation("paper", lowest, verdict)
    if is_quick:
        return
    compared = (BASELINE, VARIANTS["both"], VARIANTS["sutradhara"])
    curves = {policy: {QPS[0]: lowest[policy]} for policy in compared}
    for qps in QPS[1:]:
        for policy, found in runs(compared, qps * 3600).items():
            curves[policy][qps] = found
    beyond = 2 * QPS[-1] - QPS[-2]
    for policy, found in runs(compared[1:], beyond * 3600).items():
        curves[policy][beyond] = found
    judge_curves(curves, verdict)


def recorded(
    path: Path, knee: float | None, options: argparse.Namespace, verdict: Verdict, tell: Any
) -> None:
    sessions = load(path, H200).sessions
    setting = Setting(workload=sessions, fleet=H200, sessions=options.sessions, shown=0)
    runs = Runs(setting, range(1, options.seeds + 1), options.jobs, tell)
    if knee is None:
        one = Runs(setting, [1], 1, tell)
        knee, _ = find_knee(
            lambda per_h: mean(one(["turnpike"], per_h)["turnpike"], "slowdown_mean"), 60.0, at_most=SLOW
        )
    verdict.tell("recorded_knee_per_h", knee)
    for relative in RELATIVE:
        for ending in ("", "+offload"):
            off, on = f"turnpike{ending}", f"turnpike:ahead=on{ending}"
            found = runs([off, on], relative * knee)
            name = f"recorded_at_{relative:g}{ending.replace('+', '_')}"
            judge_harm(name, found[on], found[off], verdict)


def main(argv: list[str] | None = None) -> int:
    own = argparse.ArgumentParser(add_help=False)
    own.add_argument("--part", nargs="+", choices=PARTS, help="these alone (default: all that can be)")
    own.add_argument("--seeds", type=int, default=8, help="runs of each policy at each load (default 8)")
    own.add_argument("--sessions", type=int, default=SESSIONS, help=f"of each run (default {SESSIONS})")
    own.add_argument("--jobs", type=int, default=2, help="processes (default 2)")
    own.add_argument("--workload", type=Path, help="recorded sessions, for the part of that name")
    own.add_argument("--knee", type=float, help="of these, in sessions an hour (default: measured)")
    asked, _ = own.parse_known_args(argv)

    def measure(is_quick: bool, verdict: Verdict, tell: Any) -> None:
        if is_quick:
            asked.seeds, asked.sessions = min(asked.seeds, 2), asked.sessions // 2
        seeds = range(1, asked.seeds + 1)
        parts = asked.part or [part for part in PARTS if part != "recorded" or asked.workload]
        if "recorded" in parts and asked.workload is None:
            raise BenchmarkError("say with --workload where recorded sessions are")

        def runs(workload: Sequence[Session]) -> Runs:
            setting = Setting(workload=workload, fleet=A100, sessions=asked.sessions, shown=0)
            return Runs(setting, seeds, asked.jobs, tell)

        if "paper" in parts:
            paper(runs(orchestrated(POOL)), verdict, is_quick=is_quick)
            verdict.tell("paper_printed_ftr_p50_s", PRINTED_FTR_S)
            verdict.tell("paper_printed_e2e_p50_s", PRINTED_E2E_S)
        if "short" in parts:
            few = [BASELINE, *(VARIANTS[name] for name in ("dispatch", "ahead", "both", "sutradhara"))]
            short = runs(orchestrated(POOL, tools=SHORT_TOOLS))
            judge_ablation("short", short(few, QPS[0] * 3600), verdict)
        if "coin" in parts:
            coin, off, on = runs(tossed(orchestrated(POOL))), "turnpike", f"{LEARNED}turnpike:ahead=on"
            for qps in COIN_QPS:
                found = coin([off, on], qps * 3600)
                judge_harm(f"coin_at_{qps:g}", found[on], found[off], verdict)
        if "recorded" in parts:
            recorded(asked.workload, asked.knee, asked, verdict, tell)

    quick = "two seeds, half of the sessions, and the lowest load alone"
    return judged(__file__, __doc__, measure, quick=quick, own=own, argv=argv)


if __name__ == "__main__":
    sys.exit(main())
