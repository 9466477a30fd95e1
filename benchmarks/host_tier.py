"""Do paused sessions leave the GPU for the host's memory, and come back in time, and does it pay?

    python -m benchmarks.host_tier [--quick] [--json]

The real scheduler, and the scheduler side of vLLM's native offload, on a virtual clock; copies take 25 GB/s each
way. Twelve sessions with tool calls of 1 to 60 s, whose footprints together are half as large again as the KV
cache, beside strangers at 0.5 and 0.8 of the rate that saturates the engine. The gateway says at the pause when
it expects the next turn, wrong by a factor of e^±0.3; or it says nothing.

Four engines, all with the offload: stock; the plugin without the host tier, which holds for a minute; the
plugin; the plugin that is not told when a session returns. Of each: TTFT of later turns, completion of sessions
and of strangers, and how much of the KV cache was held for nobody who ran.
"""

import math
import statistics
import sys
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from benchmarks.engine_bench import SEED, Bench, bias_count, hint
from benchmarks.retention import BLOCK, Agent, Mix, Play, Run
from benchmarks.verdict import percentile
from turnpike_vllm.simulated import SimulatedOptions
from turnpike_vllm.simulated_host import HostMemory

BLOCKS = 1_601
MIX = Mix(sessions=16, turns=5, opening=12_000, observation=1_500, answer=120)
ERROR = 0.3
KINDS: dict[str, dict[str, Any]] = {
    "stock": {"is_biased": False},
    "no_tier": {"turnpike": {"host_tier": False}},
    "tier": {},
    "untold": {},
}


def main() -> int:
    bench = Bench("host_tier", __doc__, sys.argv[1:], quick="one seed and 60 s instead of three and 120 s")
    return bench.run(lambda: measure(bench))


def measure(bench: Bench) -> None:
    seeds, seconds = ((SEED,), 60.0) if bench.is_quick else ((SEED, SEED + 1, SEED + 2), 120.0)
    saturation = saturating_rate()
    bench.verdict.tell("saturating_strangers_per_s", saturation)
    for load in (0.5, 0.8):
        runs = {
            kind: [Trips(kind, load * saturation, seed, seconds).play() for seed in seeds] for kind in KINDS
        }
        judge(bench, f"{load:g}", runs)


def judge(bench: Bench, load: str, runs: "dict[str, list[Run]]") -> None:
    verdict = bench.verdict
    for kind, each in runs.items():
        for what in ("hit_rate", "turn_ttft_s", "session_s", "stranger_s", "all_s", "held"):
            verdict.tell(f"{what}_at_{load}_{kind}", statistics.mean(getattr(run, what) for run in each))
        waits = [run.engine.done[name].ttft_s for run in each for name in run.turns]
        verdict.tell(f"turn_ttft_p90_s_at_{load}_{kind}", percentile(waits, 90))
        if kind != "stock":
            for what in sorted({w for run in each for w in run.engine.biases.counters()["host_tier"]}):
                count = sum(bias_count(run.engine, "host_tier", what) for run in each)
                verdict.tell(f"{what}_at_{load}_{kind}", count)


class Trips(Play):
    """Play it with a host tier, and measure what is held."""

    retain_s = 60.0

    def __init__(self, kind: str, rate: float, seed: int, seconds: float) -> None:
        options = SimulatedOptions(
            blocks=BLOCKS, block_size=BLOCK, host=HostMemory(blocks=8 * BLOCKS), **KINDS[kind]
        )
        super().__init__(options, rate, seed, seconds, is_windowed=False, mix=MIX)
        self.is_told = kind != "untold"

    def pause(self, agent: Agent, now: float) -> None:
        gap_s = 60 ** agent.rng.random()
        told_s = gap_s * math.exp(agent.rng.gauss(0.0, ERROR))
        if self.is_told:
            self.engine.hint(hint(agent.name, turn=agent.turn, prefetch_in_s=told_s))
        self.later(now + gap_s, agent)


def saturating_rate() -> float:
    """Strangers a second that stock vLLM gets done beside the sessions, if there are always more."""
    seconds = 20.0
    play = Trips("stock", 60.0, SEED, seconds)
    run = play.play()
    done = [each for each in run.engine.done.values() if each.prompt_tokens == MIX.stranger]
    return sum(1 for each in done if each.finished is not None and each.finished < seconds) / seconds


if __name__ == "__main__":
    sys.exit(main())
