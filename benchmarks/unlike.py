"""What are roles and unlike devices worth on a fleet?

    python -m benchmarks.unlike [--quick] [--json] [--part NAME ...] [--seeds N] [--sessions N] [--jobs N]
        [--knee PART=PER_H ...] [--loads KNEES ...] [--agents NAME ...] [--keep FILE]

Simulated, in six parts; each policy plays the same sessions, seed by seed. Ratios are means over the seeds,
with bootstrapped 95 % intervals (`_low`, `_high`).

`apart`: four H200 with Qwen3-Coder-30B-A3B and 400 Gbit/s each, on agents that read long documents and on
coding agents (those whose conversations end within 40,000 tokens, so that a run takes seconds), at 0.6, 1
and 1.4 × the knee (where affinity takes 1.6 × what sessions take alone). Turnpike with two replicas for
prompts and two for decoding, against its own brain with every prompt computed where it is decoded; beside
them a static split by a threshold (llm-d, Dynamo) and affinity. Mean completion; and the share of turns that
miss a goal of 4 s to the first token or 20 ms for each other one.

`devices`: two H200, two A100 and two L40S with Qwen3-14B and 200 Gbit/s each, on coding agents at the knee,
where Turnpike takes 1.6 × what sessions take alone on an H200: against affinity, SAGA's rule, and static
splits whose prompts the fastest or the slowest two compute. Mean completion.

`rented`: four H200, of which one costs 4 an hour while it is worth 0.002 that a turn is done a second sooner;
coding agents at a quarter of the knee and at it. The share of turns that it gets, with that price and
without, and mean completion against a fleet without prices, and against one of three.

`mix`: Agent.xpu's requests, a few a minute, on its device (`simulations/mix.py`), where what somebody waits
for runs beside background work. `fcfs` is its strongest baseline (continuous batching on one device, chunks
of 256 tokens), `serial` one request at a time, `vllm` the former with vLLM's own priorities. `_pair`: a
second device computes prompts, as in the paper; `agent_xpu` is its policy there. Latencies and throughput.

`classes`: what somebody waits for beside background work, on fast devices and slow ones
(`simulations/devices.py`): Agent.xpu's requests on three small ones, agents on two H200 and two L40S.
`turnpike`, with the plugin, against vLLM's priorities by class with affinity (`vllm`), and background work
bound to the slow devices (`bound`). Latencies and throughput.

`unseen`: the first two and a half minutes of these requests; and where a slow device, or the fast one, comes
after fifty seconds. A gateway that is told no `profile` against one that is (`told`).
"""

import argparse
import statistics
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from random import Random
from typing import Any, Final

import msgspec

from benchmarks.command import judged
from benchmarks.simulations.devices import DEVICES, DOCUMENTS, UNSEEN
from benchmarks.simulations.kept import Kept
from benchmarks.simulations.knee import SLOW, find_knee
from benchmarks.simulations.mix import Arm, Ground, Played
from benchmarks.simulations.mix import play as play_mix
from benchmarks.simulations.played import Figures, Game, by_processes, play_all
from benchmarks.verdict import Verdict, bootstrapped
from lab.simulator.fleet import FleetSpec, ReplicaGroup
from lab.workload.trace.agent_kinds import CODING
from lab.workload.trace.agents import AgentKind, session_of
from lab.workload.trace.format import Session

PARTS: Final = ("apart", "devices", "rented", "mix", "classes", "unseen")
RELATIVE: Final = (0.6, 1.0, 1.4)
NOISE: Final = 0.02
GAIN: Final = 1.2
PRICE_PER_S: Final = 0.002
"""Where an hour of a replica costs 4: a second there counts as 0.56 more."""

TOGETHER, APART = "turnpike:legs=off", "turnpike:prefill=0.1"
PLAIN: Final = "turnpike"


def _fleet(gbit_s: float, *kinds: tuple[str, int]) -> FleetSpec:
    groups = [ReplicaGroup(profile=profile, count=count, network_gbit_s=gbit_s) for profile, count in kinds]
    return FleetSpec(replicas=tuple(groups), noise=NOISE)


LIKE: Final = _fleet(400, ("qwen3-coder-30b-a3b@h200", 4))
UNLIKE: Final = _fleet(200, ("qwen3-14b@h200", 2), ("qwen3-14b@a100-80", 2), ("qwen3-14b@l40s", 2))


def sessions_of(kind: AgentKind, longest: int) -> list[Session]:
    dice = Random(f"unlike {kind.name}")
    made = [session_of(kind, dice, id_=f"{kind.name}-{number}") for number in range(300)]
    return [session for session in made if session.peak_tokens <= longest]


class Bench:
    """Plays policies seed by seed, and compares them."""

    def __init__(self, options: argparse.Namespace, verdict: Verdict, tell: Any, *, is_quick: bool) -> None:
        self.verdict = verdict
        self.is_quick = is_quick
        self.sessions: int = options.sessions
        self._tell = tell
        self._jobs: int = options.jobs
        self._seeds = range(1, options.seeds + 1)
        self.loads: Sequence[float] = options.loads or (RELATIVE[1:2] if is_quick else RELATIVE)
        self.agents: Sequence[str] = options.agents
        self._knees: Mapping[str, float] = dict(options.knee or ())
        self._kept = Kept(options.keep)

    def __call__(
        self, policies: Sequence[str], game: Game, *, seeds: Sequence[int] = ()
    ) -> dict[str, list[Figures]]:
        found = {}
        for policy in policies:
            known = {seed: self._kept.get(policy, game, seed) for seed in seeds or self._seeds}
            missing = [seed for seed, figures in known.items() if figures is None]
            for seed, figures in play_all(policy, game, missing, jobs=self._jobs):
                known[seed] = figures
                self._kept.put(policy, game, seed, figures)
            runs = found[policy] = [figures for figures in known.values() if figures is not None]
            means = {name: statistics.fmean(run[name] for run in runs) for name in game.told}
            self._tell(f"{game.name}, {policy}: " + ", ".join(f"{k} {v:.4g}" for k, v in means.items()))
        return found

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
        runs = list(by_processes(play_mix, [(arm, ground, seed) for seed in self._seeds], jobs=self._jobs))
        means = {metric: statistics.fmean(run[metric] for run in runs) for metric in runs[0]}
        self._tell(f"{ground.name}, {name}: " + ", ".join(f"{k} {v:.4g}" for k, v in means.items()))
        for metric in ("reactive_s", "reactive_p90_s", "background_s", "background_tokens_per_s"):
            self.verdict.tell(f"{part}_{ground.name}_{name}_{metric}", means[metric])
        return runs

    def knee(self, name: str, policy: str, game: Game, guess: float) -> float:
        """Sessions an hour."""
        known = self._knees.get(name)
        if known is None:
            seeds = [101]  # none that is measured with
            known, _ = find_knee(
                lambda per_h: self([policy], at(game, per_h), seeds=seeds)[policy][0]["slowdown"],
                guess,
                at_most=SLOW,
            )
        self.verdict.tell(f"{name}_knee_per_h", known)
        return known


def at(game: Game, per_h: float) -> Game:
    return msgspec.structs.replace(game, name=f"{game.name} at {per_h:.0f} an hour", per_h=per_h)


def game_of(name: str, kind: AgentKind, fleet: FleetSpec, longest: int, count: int) -> Game:
    return Game(
        name=name,
        fleet=fleet,
        pool=sessions_of(kind, longest),
        count=count,
        told=("completion_s", "slowdown", "ttft_s", "token_s", "late", "legs"),
    )


def apart(bench: Bench) -> None:
    rivals = ("split:prefill=0.1", "affinity")
    for kind, longest, guess in ((DOCUMENTS, 120_000, 2_000.0), (CODING, 40_000, 4_000.0)):
        if kind.name not in bench.agents:
            continue
        game = game_of(kind.name, kind, LIKE, longest, bench.sessions)
        knee = bench.knee(kind.name, "affinity", game, guess)
        for relative in bench.loads:
            found = bench([APART, TOGETHER, *rivals], at(game, relative * knee))
            name = f"apart_{kind.name}_at_{relative:g}"
            for policy, short in zip(found, ("apart", "together", "split", "affinity"), strict=True):
                runs = found[policy]
                bench.verdict.tell(f"{name}_{short}_s", statistics.fmean(run["completion_s"] for run in runs))
                bench.verdict.tell(f"{name}_{short}_late", statistics.fmean(run["late"] for run in runs))
                if policy != APART:
                    bench.compare(f"{name}_{short}", found[APART], runs, "completion_s", least=None)


def devices(bench: Bench) -> None:
    game = game_of("devices", CODING, UNLIKE, 60_000, bench.sessions)
    knee = bench.knee("devices", TOGETHER, game, 500.0)
    rivals = {
        "affinity": "affinity",
        "saga": "turnpike:legs=off:placement=affinity",
        "split_fast": "split:prefill=0.1",
        "split_slow": "split:prefill=4.5",
    }
    found = bench([PLAIN, TOGETHER, *rivals.values()], at(game, knee))
    for short, policy in rivals.items():
        bench.compare(f"devices_{short}", found[PLAIN], found[policy], "completion_s", least=GAIN)
    bench.compare("devices_together", found[PLAIN], found[TOGETHER], "completion_s", least=None)


def rented(bench: Bench) -> None:
    owned, dear = LIKE.replicas[0], msgspec.structs.replace(LIKE.replicas[0], count=1, price_per_h=4.0)
    fleet = msgspec.structs.replace(
        LIKE, replicas=(msgspec.structs.replace(owned, count=3), dear), price_per_s=PRICE_PER_S
    )
    game = game_of("rented", CODING, fleet, 40_000, bench.sessions)
    game = msgspec.structs.replace(game, told=("completion_s", "on_last"))
    free = msgspec.structs.replace(game, name="not rented", fleet=LIKE)
    three = FleetSpec(replicas=(msgspec.structs.replace(owned, count=3),), noise=NOISE)
    without = msgspec.structs.replace(game, name="without", fleet=three)
    knee = bench.knee("rented", TOGETHER, free, 1_800.0)
    for relative in (0.25, 1.0):
        priced, unpriced, alone = (
            bench([TOGETHER], at(each, relative * knee))[TOGETHER] for each in (game, free, without)
        )
        name = f"rented_at_{relative:g}"
        bench.verdict.tell(f"{name}_share", statistics.fmean(run["on_last"] for run in priced))
        bench.verdict.tell(f"{name}_share_unpriced", statistics.fmean(run["on_last"] for run in unpriced))
        bench.compare(f"{name}_unpriced", priced, unpriced, "completion_s", least=None)
        bench.compare(f"{name}_without", priced, alone, "completion_s", least=None)


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


def classes(bench: Bench) -> None:
    for ground in DEVICES[:1] if bench.is_quick else DEVICES:
        arms = {
            "turnpike": "turnpike:profiles=told+plugin",
            "vllm": "reactive-first",
            "bound": f"class-bound:background={ground.slow}",
        }
        found = {
            name: bench.mixed(name, Arm(policy), ground, part="classes") for name, policy in arms.items()
        }
        ours = found.pop("turnpike")
        for name, theirs in found.items():
            for metric in BY_CLASS:
                bench.compare(
                    f"classes_{ground.name}_{name}_to_ours_{metric}", ours, theirs, metric, least=None
                )
            throughput = f"classes_{ground.name}_ours_to_{name}_throughput"
            bench.compare(throughput, theirs, ours, "background_tokens_per_s", least=None)


def unseen(bench: Bench) -> None:
    for ground in UNSEEN[:2] if bench.is_quick else UNSEEN:
        arms = (("untold", "turnpike+plugin"), ("told", "turnpike:profiles=told+plugin"))
        ours, theirs = (bench.mixed(name, Arm(policy), ground, part="unseen") for name, policy in arms)
        for metric in BY_CLASS:
            least = AS_SOON if metric == "reactive_s" else None
            bench.compare(f"unseen_{ground.name}_told_to_ours_{metric}", ours, theirs, metric, least=least)


def _knee(text: str) -> tuple[str, float]:
    name, _, per_h = text.partition("=")
    return name, float(per_h)


def main(argv: list[str] | None = None) -> int:
    own = argparse.ArgumentParser(add_help=False)
    own.add_argument("--part", nargs="+", choices=PARTS, help="these alone (default: all)")
    own.add_argument("--seeds", type=int, default=6, help="runs of each policy at each load (default 6)")
    own.add_argument("--sessions", type=int, default=60, help="of each run (default 60)")
    own.add_argument(
        "--keep", type=Path, help="a file for runs that are over: cut off, it goes on from there"
    )
    own.add_argument("--loads", type=float, nargs="+", help="of `apart`, in knees (default: 0.6 1 1.4)")
    own.add_argument(
        "--agents", nargs="+", default=("documents", "coding"), help="of `apart` (default: both)"
    )
    own.add_argument("--jobs", type=int, default=1, help="processes (default 1)")
    own.add_argument(
        "--knee", type=_knee, nargs="+", help="PART=PER_H, where it is known (default: measured)"
    )
    asked, _ = own.parse_known_args(argv)

    def measure(is_quick: bool, verdict: Verdict, tell: Any) -> None:
        if is_quick:
            asked.seeds, asked.sessions = min(asked.seeds, 2), asked.sessions // 2
        bench = Bench(asked, verdict, tell, is_quick=is_quick)
        parts = {
            "apart": apart,
            "devices": devices,
            "rented": rented,
            "mix": mix,
            "classes": classes,
            "unseen": unseen,
        }
        for part in asked.part or PARTS:
            parts[part](bench)

    quick = "two seeds, half of the sessions, and the knee alone"
    return judged(__file__, __doc__, measure, quick=quick, own=own, argv=argv)


if __name__ == "__main__":
    sys.exit(main())
