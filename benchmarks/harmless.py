"""Does the gateway harm anybody, at any load, pause and context?

    python -m benchmarks.harmless [--quick] [--json] [--points N] [--draw SEED] [--at NAME ...] [--seeds N]
        [--workload FILE ... --engine NAME --times N ...]

Simulated: vLLM's own scheduler on three engines (a tiny model on a core, a dense 70B on four A100, a sparse
30B on an H200), sessions of some ten turns whose tools or people pause for 0 to 30 s, contexts from 2,000 to
80,000 tokens, and so many at a time that half to eight times as much is held as fits, with and without a host
tier. At each point the gateway's brain, as it is by default, plays against no admission (each session's turns
on one replica) and against fixed windows, of which the best in hindsight counts. These know when a session is
over; the gateway is not told. It plays twice: once when it has just started, and once more when the same
sessions have come once before, so that it has learned.

Points are drawn from the whole grid, by `--draw`, so that those that were tuned on are not those that are
reported; `--workload` plays sessions of files (docs/contribute/workloads.md) instead. Losses come first. The
live half is `benchmarks.rivals aiperf`.
"""

import argparse
import itertools
import random
import statistics
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import msgspec

from benchmarks.command import judged
from benchmarks.processes import BenchmarkError
from benchmarks.simulations.workloads import load
from benchmarks.verdict import Verdict
from lab.simulator.baselines.plan import Plan
from lab.simulator.baselines.spec import parse_policies
from lab.simulator.experiment.parallel import run_all
from lab.simulator.experiment.trial import Setting, Trial
from lab.simulator.fleet import FleetSpec, ReplicaGroup
from lab.workload.trace.format import Session, Thread, Tool, Turn, TurnRef


class Engine(msgspec.Struct, frozen=True):
    profile: str
    replicas: int
    contexts: tuple[int, ...]
    """Tokens that sessions hold on average."""
    output_tokens: int
    token_s: float
    """Of an answer, while some others decode: only to say how long a session takes."""


ENGINES: Final = {
    "tiny": Engine(str(Path(__file__).with_name("simulations") / "tiny.toml"), 2, (2_000, 3_500), 30, 0.004),
    "a100": Engine("llama-3-70b@4xa100-80", 1, (6_000, 20_000, 40_000), 200, 0.03),
    "h200": Engine("qwen3-coder-30b-a3b@h200", 1, (6_000, 20_000, 40_000, 80_000), 200, 0.0075),
}
PAUSES_S: Final = (0.0, 0.5, 1.5, 4.0, 15.0, 30.0)
TIMES: Final = (0.5, 1.0, 1.5, 3.0, 8.0)
"""As many sessions as fit, so many times."""
WINDOWS: Final = (0.6, 0.9, 1.3)
"""Fixed ones, relative to as many as fit a replica."""
HOST_GB: Final = 128.0
LONGEST: Final = 110_000
"""A session ends where its next prompt would have more tokens: the models take 131,072."""
SESSIONS: Final = (40, 240)
"""At least and at most, of a run."""
DONE, LATE, THRASHES = 0.97, 1.5, 0.9
"""Of what the best gets done; first tokens to no admission's; no admission thrashes if it gets less done than
so much of the best."""


class Point(msgspec.Struct, frozen=True):
    engine: str
    pause_s: float
    context: int
    times: float
    who: str
    """`tools` or `people`."""
    is_offloading: bool

    @property
    def name(self) -> str:
        behind = "_offload" if self.is_offloading else ""
        return f"{self.engine}_{self.pause_s:g}s_{self.context}_x{self.times:g}_{self.who}{behind}"


class Recorded(msgspec.Struct, frozen=True):
    """Sessions of a file, instead of such as a point describes."""

    path: Path
    engine: str
    times: float
    is_offloading: bool = False

    @property
    def name(self) -> str:
        return f"{self.path.stem}_{self.engine}_x{self.times:g}{'_offload' if self.is_offloading else ''}"


QUICK: Final = (
    Point("tiny", 4.0, 3_500, 3.0, "tools", False),
    Point("tiny", 0.5, 3_500, 1.0, "tools", False),
    Point("a100", 4.0, 40_000, 1.0, "people", False),
    Point("h200", 15.0, 6_000, 1.5, "tools", False),
    Point("h200", 4.0, 40_000, 3.0, "tools", False),
    Point("h200", 15.0, 40_000, 1.5, "tools", True),
)


def grid() -> list[Point]:
    return [
        Point(name, pause_s, context, times, who, is_offloading)
        for name, engine in ENGINES.items()
        for pause_s, context, times, who, is_offloading in itertools.product(
            PAUSES_S, engine.contexts, TIMES, ("tools", "people"), (False, True)
        )
        if not (is_offloading and name == "tiny") and not (who == "people" and pause_s < 1.0)
    ]


def sessions(point: Point, count: int, output_tokens: int) -> list[Session]:
    """Each begins at half of the mean context, and ends at about one and a half times as much."""
    dice = random.Random(point.name)
    return [_session(point, number, dice, output_tokens) for number in range(count)]


def _session(point: Point, number: int, dice: random.Random, output_tokens: int) -> Session:
    turns: list[Turn] = []
    tokens = int(point.context * dice.uniform(0.4, 0.6))
    count = dice.randint(6, 14)
    for at in range(count):
        if tokens > LONGEST:
            turns[-1] = msgspec.structs.replace(turns[-1], tools=())
            break
        output = max(4, int(output_tokens * dice.expovariate(1.0)))
        pause_s = point.pause_s * dice.expovariate(1.0)
        are_people = point.who == "people"
        tools = () if are_people or at + 1 == count else (Tool(name="tool", duration_s=pause_s),)
        before = turns[-1].input_tokens + turns[-1].output_tokens if turns else 0
        turns.append(
            Turn(
                input_tokens=tokens,
                output_tokens=output,
                prefix_of=TurnRef(0, at - 1) if at else None,
                prefix_tokens=before,
                tools=tools,
                pause_s=pause_s if are_people and at else 0.0,
                is_pause_human=are_people and at > 0,
            )
        )
        tokens += output + max(1, int(point.context * dice.uniform(0.05, 0.15)) - output)
    shared = min(500, point.context // 8)
    thread = Thread(turns=tuple(turns), shared_key="agent", shared_tokens=shared)
    return Session(id=f"s{number}", threads=(thread,))


def chosen(names: Sequence[str] | None, *, points: int, draw: int) -> list[Point]:
    """The named points of the grid; without names, so many that are drawn. Raises BenchmarkError for a name
    that none has."""
    everything = grid()
    if not names:
        return random.Random(draw).sample(everything, min(points, len(everything)))
    of_name = {point.name: point for point in everything}
    if unknown := [name for name in names if name not in of_name]:
        raise BenchmarkError(
            f"no point of the grid is called {unknown[0]!r}; one is called {everything[0].name!r}"
        )
    return [of_name[name] for name in names]


Figures = dict[str, float]


class Played(msgspec.Struct, frozen=True):
    none: Figures
    windows: list[Figures]
    ours: Figures
    """Of a gateway that has just started."""
    learned: Figures
    """Of one that the same sessions have come to once before."""

    def to_best(self, ours: Figures, name: str, *, is_most: bool) -> float:
        choose = max if is_most else min
        return ours[name] / choose(each[name] for each in (self.none, *self.windows))

    @property
    def most_to_best(self) -> float:
        """Mean completion, the longer one of both."""
        return max(
            self.to_best(ours, "completion_mean_s", is_most=False) for ours in (self.ours, self.learned)
        )

    @property
    def thrashes(self) -> bool:
        best = max(each["sessions_per_h"] for each in (self.none, *self.windows))
        return self.none["sessions_per_h"] < THRASHES * best

    def ratios(self, ours: Figures) -> Figures:
        return {
            "mean to none": ours["completion_mean_s"] / self.none["completion_mean_s"],
            "mean to best": self.to_best(ours, "completion_mean_s", is_most=False),
            "throughput to best": self.to_best(ours, "sessions_per_h", is_most=True),
            "TTFT p99 to none": self.ttft_p99_to_none(ours),
            "hits": ours["hit_rate"],
        }

    def ttft_p99_to_none(self, ours: Figures) -> float:
        return ours["ttft_p99_s"] / max(self.none["ttft_p99_s"], 1e-3)


class Laid(msgspec.Struct, frozen=True):
    """A point, as it is played."""

    setting: Setting
    per_h: float
    """Sessions that arrive."""
    caps: list[int]
    """The fixed windows to compare with, in sessions on a replica."""
    ending: str
    """Of a policy's name."""


def laid_out(point: Point | Recorded) -> Laid:
    engine = ENGINES[point.engine]
    group = ReplicaGroup(profile=engine.profile, count=engine.replicas, offload_gb=HOST_GB)
    fleet = FleetSpec(replicas=(group,))
    plan = Plan.of(fleet)
    tokens: float = sum(plan.kv_tokens(fleet).values())
    if point.is_offloading:
        tokens += engine.replicas * HOST_GB * 1e9 / plan.profile.model.kv_bytes_per_token
    recorded = load(point.path, fleet).sessions if isinstance(point, Recorded) else []
    fit = tokens / (_held(recorded) if isinstance(point, Recorded) else point.context)
    at_once = max(1.0, point.times * fit)
    least, most = SESSIONS
    count = int(min(most, max(least, 3 * at_once)))
    if isinstance(point, Recorded):
        workload = recorded
        session_s = statistics.fmean(_takes_s(each, engine) for each in recorded)
    else:
        workload = sessions(point, count, engine.output_tokens)
        session_s = 10 * (point.pause_s + engine.output_tokens * engine.token_s + 0.1)
    setting = Setting(workload=workload, fleet=fleet, sessions=count, shown=0)
    caps = sorted({max(1, round(share * fit / engine.replicas)) for share in WINDOWS})
    ending = "+offload" if point.is_offloading else ""
    return Laid(setting, at_once / session_s * 3600, caps, ending)


def _held(recorded: Sequence[Session]) -> float:
    """Tokens, over their turns."""
    turns = [turn for each in recorded for turn in each.threads[0].turns]
    return statistics.fmean(turn.input_tokens + turn.output_tokens for turn in turns)


def _takes_s(session: Session, engine: Engine) -> float:
    """Such a session, about."""
    turns = session.threads[0].turns
    tools_s = sum(max((tool.duration_s for tool in turn.tools), default=0.0) for turn in turns)
    return tools_s + sum(turn.pause_s + turn.output_tokens * engine.token_s + 0.1 for turn in turns)


def play(point: Point | Recorded, seeds: Sequence[int], *, jobs: int) -> Played:
    laid = laid_out(point)
    texts = ["affinity", *(f"session-cap:n={cap}" for cap in laid.caps)]
    none, *windows = _played(
        laid.setting, [text + laid.ending for text in texts], laid.per_h, seeds, jobs=jobs
    )
    untold = msgspec.structs.replace(laid.setting, says_when_over=False)
    twice = msgspec.structs.replace(untold, comes_twice=True)
    ours, learned = (
        _played(setting, [f"turnpike{laid.ending}"], laid.per_h, seeds, jobs=jobs)[0]
        for setting in (untold, twice)
    )
    return Played(none=none, windows=windows, ours=ours, learned=learned)


def _played(
    setting: Setting, texts: Sequence[str], per_h: float, seeds: Sequence[int], *, jobs: int
) -> list[Figures]:
    """Of each policy, the mean over the seeds."""
    variants = [parse_policies(text)[0].variants[0] for text in texts]
    trials = [Trial(each, per_h, seed) for each in variants for seed in seeds]
    found = run_all(setting, trials, jobs=jobs, progress=lambda *_: None)
    return [
        _mean([run.metrics for run in found[at : at + len(seeds)]]) for at in range(0, len(found), len(seeds))
    ]


def _mean(of_seeds: Sequence[dict[str, float | None]]) -> Figures:
    return {name: statistics.fmean(each[name] or 0.0 for each in of_seeds) for name in of_seeds[0]}


def judge(verdict: Verdict, point: Point | Recorded, played: Played) -> None:
    for when, ours in (("", played.ours), ("learned.", played.learned)):
        name, ratios = f"{point.name}.{when}", played.ratios(ours)
        verdict.at_most(f"{name}mean_to_best", ratios["mean to best"], 1 / DONE)
        verdict.at_least(f"{name}throughput_to_best", ratios["throughput to best"], DONE)
        bound = 1.0 if played.thrashes else LATE
        verdict.at_most(f"{name}ttft_p99_to_none", ratios["TTFT p99 to none"], bound)


def lines(found: Mapping[Point | Recorded, Played]) -> Iterator[str]:
    """The greatest loss first. Of two figures the first is of a gateway that has just started, the second of
    one that has learned."""
    for point, played in sorted(found.items(), key=lambda each: -each[1].most_to_best):
        started, learned = played.ratios(played.ours), played.ratios(played.learned)
        both = [f"{name} {started[name]:.2f} · {learned[name]:.2f}" for name in started]
        yield f"{point.name}: {', '.join(both)} (hits of none {played.none['hit_rate']:.2f})"


def main(argv: list[str] | None = None) -> int:
    own = argparse.ArgumentParser(add_help=False)
    own.add_argument("--points", type=int, default=40, help="drawn from the grid (default 40)")
    own.add_argument(
        "--at", nargs="+", metavar="NAME", help="these points of the grid, as the table names them"
    )
    own.add_argument("--workload", nargs="+", type=Path, help="sessions of these files, at each of --times")
    own.add_argument("--engine", choices=ENGINES, default="h200", help="that these are played on")
    own.add_argument("--times", nargs="+", type=float, default=TIMES, help="as many at once as fit, so often")
    own.add_argument("--draw", type=int, default=1, help="which points are drawn (default 1)")
    own.add_argument("--seeds", type=int, default=1, help="runs of each policy at each point (default 1)")
    own.add_argument("--jobs", type=int, default=2, help="processes (default 2)")
    asked, _ = own.parse_known_args(argv)

    def measure(is_quick: bool, verdict: Verdict, tell: Any) -> None:
        found: dict[Point | Recorded, Played] = {}
        points: Sequence[Point | Recorded] = QUICK
        if asked.workload:
            points = [Recorded(path, asked.engine, times) for path in asked.workload for times in asked.times]
        elif not is_quick:
            points = chosen(asked.at, points=asked.points, draw=asked.draw)
        for point in points:
            found[point] = played = play(point, range(1, asked.seeds + 1), jobs=asked.jobs)
            tell(f"{point.name}: mean {played.most_to_best:.3f} of the best's")
            judge(verdict, point, played)
        tell("\n".join(lines(found)))

    return judged(
        __file__, __doc__, measure, quick=f"{len(QUICK)} points that are always the same", own=own, argv=argv
    )


if __name__ == "__main__":
    sys.exit(main())
