"""Does a simulation tell what happens? The same workload live and simulated, by the same brain.

    python -m benchmarks.fidelity [--quick] [--json]

Live: the gateway in front of two real vLLM servers on the CPU with a tiny model, each kept to one core (where
there are two), and clients that play a workload (`turnpike play`). Gateway and clients run on the same cores,
and so does each server's own API process: what they take is part of what is calibrated. Simulated: the same
sessions and the same settings of the same brain, before engines whose steps cost what a profile says.

The profile has six numbers (`fidelity_profile.py`), fitted to one workload under one policy: prompts of all
lengths, alone and side by side. What counts is another workload, with more sessions at once than the caches
hold, under three policies. There, if costs are off by a tenth, so are completions; where sessions only just
fit, these are off by twice as much. Mean and p90 of session completion within 15 % of live, and the same
order of the policies, where they differ live by more than 5 %.
"""

import argparse
import asyncio
import os
import random
import signal
import statistics
import sys
import tempfile
from collections.abc import Iterable, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any, Final

import aiohttp
import msgspec

from benchmarks.fidelity_profile import Costs, fitted
from benchmarks.gateway import gateway
from benchmarks.processes import BenchmarkError, machine, on_cpus, revision
from benchmarks.verdict import Verdict, percentile
from gateway.assembly import assemble
from gateway.config import Config
from gateway.core.coordinator import Coordinator
from gateway.simulator.engine.options import EngineOptions
from gateway.simulator.fleet import FleetSpec, ReplicaGroup
from gateway.simulator.live.endpoint import Endpoint
from gateway.simulator.live.player import play
from gateway.simulator.results import Ignore, SessionOutcome
from gateway.simulator.run import POOL, simulate
from gateway.workload.trace.format import Session, Thread, Tool, Turn, TurnRef
from turnpike_vllm.scripted import process as scripted

Settings = dict[str, dict[str, Any]]
"""Of the gateway, by section."""
SEED: Final = 11
MODEL: Final = "scripted"
BLOCK: Final = 32
KV_BLOCKS: Final = 1_300
"""Of each server: two or three sessions at their longest."""
LONGEST: Final = 32_768
CHUNK: Final = 2_048
SEQUENCES: Final = 64
REPLICAS: Final = 2
WITHIN: Final = 0.15
APART: Final = 0.05
"""Policies that differ by less are not ranked."""
POLICIES: Final[dict[str, Settings]] = {
    "affinity": {"admission": {"policy": "concurrency"}},
    "affinity, cap of 3": {"admission": {"policy": "session-cap", "session_cap": 3}},
    "one turn a replica": {"admission": {"policy": "concurrency", "max_running_per_replica": 1}},
}
CALIBRATED_BY: Final = POLICIES["affinity"]
SCRIPT: Final = {"default": {"turns": [{"text": " and so on" * 500}]}, "scripts": {}}
"""Long enough that whoever asks for tokens gets words."""


class Kind(msgspec.Struct, frozen=True, kw_only=True):
    """Sessions of one workload."""

    name: str
    seed: int
    turns: tuple[int, int]
    first_tokens: tuple[int, int]
    grows_by: tuple[int, int]
    output_tokens: tuple[int, int]
    tool_s: float
    apart_s: float
    """Between two arrivals, on average."""


CALIBRATION: Final = Kind(
    name="calibration",
    seed=SEED,
    turns=(3, 6),
    first_tokens=(1_000, 20_000),
    grows_by=(100, 1_500),
    output_tokens=(10, 150),
    tool_s=0.4,
    apart_s=1.2,
)
TEST: Final = Kind(
    name="test",
    seed=SEED + 1,
    turns=(5, 9),
    first_tokens=(9_000, 14_000),
    grows_by=(300, 1_400),
    output_tokens=(10, 60),
    tool_s=0.8,
    apart_s=0.3,
)


def drawn(kind: Kind, count: int) -> list[Session]:
    dice = random.Random(kind.seed)
    sessions, arrival_s = [], 0.0
    for number in range(count):
        turns: list[Turn] = []
        tokens = dice.randint(*kind.first_tokens)
        for at in range(dice.randint(*kind.turns)):
            output = dice.randint(*kind.output_tokens)
            before = turns[-1].input_tokens + turns[-1].output_tokens if turns else 0
            tool = Tool(name="tool", duration_s=dice.expovariate(1 / kind.tool_s))
            turns.append(
                Turn(
                    input_tokens=tokens,
                    output_tokens=output,
                    prefix_of=TurnRef(0, at - 1) if at else None,
                    prefix_tokens=before,
                    tools=(tool,),
                )
            )
            tokens += output + dice.randint(*kind.grows_by)
        thread = Thread(turns=tuple(turns), shared_key="agent", shared_tokens=500)
        sessions.append(Session(id=f"{kind.name}-{number}", threads=(thread,), arrival_s=arrival_s))
        arrival_s += dice.expovariate(1 / kind.apart_s)
    return sessions


class Completions(Ignore):
    """How long each session took."""

    def __init__(self) -> None:
        self.seconds: dict[str, float] = {}
        self.failed = 0

    def session_done(self, outcome: SessionOutcome) -> None:
        self.seconds[outcome.id] = outcome.end_s - outcome.arrival_s
        self.failed += outcome.failed

    @property
    def mean(self) -> float:
        return statistics.mean(self.seconds.values())

    @property
    def p90(self) -> float:
        return percentile(list(self.seconds.values()), 90)


def live(sessions: Iterable[Session], engines: Sequence[str], policy: Settings, at: Path) -> Completions:
    found = Completions()

    async def run(url: str) -> None:
        connector = aiohttp.TCPConnector(limit=0)
        timeout = aiohttp.ClientTimeout(total=600)
        async with aiohttp.ClientSession(
            connector=connector, timeout=timeout, read_bufsize=1 << 20
        ) as client:
            await play(sessions, Endpoint(client, url, MODEL), found)

    with gateway(engines, at, _as_toml(policy)) as url:
        asyncio.run(run(url))
    return found


def _as_toml(settings: Settings) -> str:
    return "".join(
        f"[{section}]\n"
        + "".join(f"{key} = {msgspec.json.encode(value).decode()}\n" for key, value in keys.items())
        for section, keys in settings.items()
    )


def simulated(sessions: Iterable[Session], costs: Costs, policy: Settings) -> Completions:
    found = Completions()
    profile = costs.profile(chunk_tokens=CHUNK, kv_tokens=KV_BLOCKS * BLOCK)

    def make_brain(fleet: FleetSpec) -> Coordinator:
        replicas = [{"url": f"http://{name}", "name": name} for name, _ in fleet.each()]
        tree = {"pools": [{"name": POOL, "replicas": replicas}], **policy}
        return assemble(msgspec.convert(tree, Config), id_prefix="")

    simulate(
        sessions,
        FleetSpec(replicas=(ReplicaGroup(profile="tiny", count=REPLICAS, kv_blocks=KV_BLOCKS),)),
        make_brain,
        options=EngineOptions(max_num_seqs=SEQUENCES, max_model_len=LONGEST, block_size=BLOCK),
        seed=SEED,
        sink=found,
        load_profile=lambda _: profile,
        front=costs.front,
    )
    return found


def measure(count: int, verdict: Verdict, tell: Any) -> None:
    calibration, test = drawn(CALIBRATION, count), drawn(TEST, count)
    with ExitStack() as stack:
        at = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="fidelity-")))
        engines = start_engines(stack)
        live(calibration[: count // 3], engines, CALIBRATED_BY, at / "warm")
        seen = live(calibration, engines, CALIBRATED_BY, at / "calibration")
        lived = {}
        for number, (name, policy) in enumerate(POLICIES.items()):
            lived[name] = live(test, engines, policy, at / str(number))
            tell(f"live, {name}: mean {lived[name].mean:.2f} s, p90 {lived[name].p90:.2f} s")

    def play_with(costs: Costs) -> dict[str, float]:
        return simulated(calibration, costs, CALIBRATED_BY).seconds

    costs = fitted(play_with, seen.seconds)
    tell(f"fitted: {costs}")
    again = simulated(calibration, costs, CALIBRATED_BY)
    verdict.tell("calibration_mean_error", again.mean / seen.mean - 1)
    verdict.tell("calibration_p90_error", again.p90 / seen.p90 - 1)
    played = {name: simulated(test, costs, policy) for name, policy in POLICIES.items()}
    for name in POLICIES:
        key = name.replace(",", "").replace(" ", "_")
        tell(f"simulated, {name}: mean {played[name].mean:.2f} s, p90 {played[name].p90:.2f} s")
        verdict.at_most(f"mean_error_{key}", abs(played[name].mean / lived[name].mean - 1), WITHIN)
        verdict.at_most(f"p90_error_{key}", abs(played[name].p90 / lived[name].p90 - 1), WITHIN)
        verdict.tell(f"live_mean_{key}_s", lived[name].mean)
        verdict.tell(f"simulated_mean_{key}_s", played[name].mean)
        verdict.at_most(f"failed_{key}", lived[name].failed + played[name].failed, 0)
    ranked, disagree = disagreements(
        {name: each.mean for name, each in lived.items()}, {name: each.mean for name, each in played.items()}
    )
    verdict.tell("pairs_ranked", ranked)
    verdict.at_most("pairs_ranked_otherwise", disagree, 0)


def disagreements(lived: dict[str, float], played: dict[str, float]) -> tuple[int, int]:
    """Pairs of policies that differ live, and those of them whose order is another when simulated."""
    names = list(lived)
    pairs = [
        (one, other)
        for at, one in enumerate(names)
        for other in names[at + 1 :]
        if abs(lived[one] / lived[other] - 1) > APART
    ]
    wrong = [
        pair for pair in pairs if (lived[pair[0]] < lived[pair[1]]) != (played[pair[0]] < played[pair[1]])
    ]
    return len(pairs), len(wrong)


def start_engines(stack: ExitStack) -> list[str]:
    """Side by side, each on a core of its own as far as there are as many."""
    cores = sorted(os.sched_getaffinity(0))
    options = scripted.EngineOptions(
        served_model_names=(MODEL,),
        max_model_len=LONGEST,
        block_size=BLOCK,
        extra_args=(
            *("--num-gpu-blocks-override", str(KV_BLOCKS)),
            *("--max-num-batched-tokens", str(CHUNK)),
            *("--max-num-seqs", str(SEQUENCES)),
        ),
    )
    engines = [scripted.ScriptedEngine(SCRIPT, options) for _ in range(REPLICAS)]
    for number, engine in enumerate(engines):
        stack.callback(engine.stop)
        with on_cpus(frozenset({cores[number % len(cores)]})):
            engine.launch()
    for engine in engines:
        engine.wait_healthy()
    return [engine.url for engine in engines]


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--quick", action="store_true", help="14 sessions of each workload instead of 40")
    parser.add_argument("--json", action="store_true", help="print the last line alone")
    arguments = parser.parse_args(argv)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))  # so that all that runs is ended
    tell = (lambda *_: None) if arguments.json else print
    tell(f"seed {SEED}, {machine()}, revision {revision()}, load average {os.getloadavg()[0]:.1f}")
    verdict = Verdict()
    try:
        measure(14 if arguments.quick else 40, verdict, tell)
    except BenchmarkError as error:
        print(f"fidelity: {error}", file=sys.stderr)
        return 2
    verdict.tell("load_average", os.getloadavg()[0])
    for name, figure in verdict.figures.items():
        tell(f"{name:<42}{figure.value:>12g}   {figure.target or '':<12}{'' if figure.ok else 'MISSED'}")
    print(verdict.as_json())
    return verdict.exit_status


if __name__ == "__main__":
    sys.exit(main())
