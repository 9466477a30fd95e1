"""What somebody waits for beside background work, on one small device, on a pair, and on unlike ones.

    python -m benchmarks.unlike [--quick] [--json] [--part NAME ...] [--seeds N] [--jobs N]

Simulated; each policy plays the same requests, seed by seed. Ratios are means over the seeds, with
bootstrapped 95 % intervals (`_low`, `_high`). Fleets that are unlike otherwise are scenarios of
`benchmarks.results`: `unlike-devices`, `routing-unlike`, `rented`.

`mix`: Agent.xpu's requests, a few a minute, on its device (`simulations/mix.py`), where what somebody waits
for runs beside background work. `fcfs` is its strongest baseline (continuous batching on one device, chunks
of 256 tokens), `serial` one request at a time, `vllm` the former with vLLM's own priorities. `_pair`: a
second device computes prompts, as in the paper; `agent_xpu` is its policy there. Latencies and throughput.

`unseen`: these requests on one fast and two slow devices, the first two and a half minutes; and where a slow
device, or the fast one, comes after fifty seconds. A gateway without a `profile` against one with it
(`told`).
"""

import argparse
import statistics
import sys
from collections.abc import Sequence
from typing import Any, Final

from benchmarks.command import judged
from benchmarks.simulations.mix import UNSEEN, Arm, Figures, Ground, Played, by_processes, play
from benchmarks.verdict import Verdict, bootstrapped


class Bench:
    """Plays policies seed by seed, and compares them."""

    def __init__(self, options: argparse.Namespace, verdict: Verdict, tell: Any, *, is_quick: bool) -> None:
        self.verdict = verdict
        self.is_quick = is_quick
        self._tell = tell
        self._jobs: int = options.jobs
        self._seeds = range(1, options.seeds + 1)

    def compare(
        self,
        name: str,
        ours: Sequence[Figures],
        theirs: Sequence[Figures],
        metric: str,
        *,
        least: float | None,
    ) -> None:
        """How many times as much of the metric others take; `least`: of times, if there is a target."""
        times = bootstrapped([their[metric] / our[metric] for our, their in zip(ours, theirs, strict=True)])
        if least is not None:
            self.verdict.at_least(name, times.mean, least)
        else:
            self.verdict.tell(name, times.mean)
        self.verdict.tell(f"{name}_low", times.low)
        self.verdict.tell(f"{name}_high", times.high)

    def mixed(self, name: str, arm: Arm, ground: Played, *, part: str = "mix") -> list[Figures]:
        runs = list(by_processes(play, [(arm, ground, seed) for seed in self._seeds], jobs=self._jobs))
        means = {metric: statistics.fmean(run[metric] for run in runs) for metric in runs[0]}
        self._tell(f"{ground.name}, {name}: " + ", ".join(f"{k} {v:.4g}" for k, v in means.items()))
        for metric in ("reactive_s", "reactive_p90_s", "background_s", "background_tokens_per_s"):
            self.verdict.tell(f"{part}_{ground.name}_{name}_{metric}", means[metric])
        return runs


ARMS: Final = {
    "serial": Arm("affinity", places=1),
    "fcfs": Arm("affinity"),
    "vllm": Arm("reactive-first"),
    "turnpike": Arm("turnpike"),
    "plugin": Arm("turnpike+plugin"),
    "fcfs_pair": Arm("split:threshold=0", is_pair=True),
    "agent_xpu_pair": Arm("agent-xpu", is_pair=True),
    "plugin_pair": Arm("turnpike+plugin:connectors=1", is_pair=True),
}
BASELINES: Final = ("serial", "fcfs")
GROUNDS: Final = (Ground("8b", 3, 6), Ground("3b", 4, 30))
"""Rates of the paper; 30 a minute, its most, saturate the smaller model."""
SOONER: Final = 1 / 0.03
"""The paper prints 97 % less reactive latency."""
AS_SOON: Final = 0.7
"""Of how long people wait where profiles are told, to where they are not, while little is known."""
MIXED: Final = ("reactive_s", "reactive_p90_s", "reactive_per_token_s", "background_per_token_s")


def mix(bench: Bench) -> None:
    for ground in GROUNDS[:1] if bench.is_quick else GROUNDS:
        found = {name: bench.mixed(name, arm, ground) for name, arm in ARMS.items()}
        for base in BASELINES:
            theirs, at = found[base], f"mix_{ground.name}_{base}_to"
            for name in [name for name in ARMS if name not in BASELINES]:
                ours, is_judged = found[name], name.startswith("plugin")
                for metric in MIXED:
                    least = SOONER if is_judged and metric == "reactive_s" else None
                    bench.compare(f"{at}_{name}_{metric}", ours, theirs, metric, least=least)
                throughput = f"mix_{ground.name}_{name}_to_{base}_throughput"
                least = 1.0 if is_judged else None
                bench.compare(throughput, theirs, ours, "background_tokens_per_s", least=least)
            alone = [{"reactive_s": run["reactive_alone_s"]} for run in theirs]
            bench.compare(f"{at}_alone_reactive_s", alone, theirs, "reactive_s", least=None)


BY_CLASS: Final = ("reactive_s", "reactive_p99_s", "reactive_per_token_s", "background_s")


def unseen(bench: Bench) -> None:
    for ground in UNSEEN[:2] if bench.is_quick else UNSEEN:
        arms = (("untold", "turnpike+plugin"), ("told", "turnpike:profiles=told+plugin"))
        ours, theirs = (bench.mixed(name, Arm(policy), ground, part="unseen") for name, policy in arms)
        for metric in BY_CLASS:
            least = AS_SOON if metric == "reactive_s" else None
            bench.compare(f"unseen_{ground.name}_told_to_ours_{metric}", ours, theirs, metric, least=least)


PARTS: Final = {"mix": mix, "unseen": unseen}


def main(argv: list[str] | None = None) -> int:
    own = argparse.ArgumentParser(add_help=False)
    own.add_argument("--part", nargs="+", choices=PARTS, help="these alone (default: all)")
    own.add_argument("--seeds", type=int, default=6, help="runs of each policy at each load (default 6)")
    own.add_argument("--jobs", type=int, default=1, help="processes (default 1)")
    asked, _ = own.parse_known_args(argv)

    def measure(is_quick: bool, verdict: Verdict, tell: Any) -> None:
        if is_quick:
            asked.seeds = min(asked.seeds, 2)
        bench = Bench(asked, verdict, tell, is_quick=is_quick)
        for part in asked.part or PARTS:
            PARTS[part](bench)

    quick = "two seeds, and fewer grounds"
    return judged(__file__, __doc__, measure, quick=quick, own=own, argv=argv)


if __name__ == "__main__":
    sys.exit(main())
