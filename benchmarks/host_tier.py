"""Do paused sessions leave the GPU for the host's memory, and come back in time, and does it pay?

    python -m benchmarks.host_tier [--quick] [--json]

The real scheduler, and the scheduler side of vLLM's native offload, on a virtual clock; copies take 25 GB/s
each way, 96 KiB a token. Sixteen sessions with tool calls of 1 to 60 s, whose footprints are two and a half
times the KV cache, beside 4, 8 and 12 strangers a second. The gateway says at the pause when it expects the
next turn, wrong by a factor of e^±0.3; or it says nothing.

Four engines, all with the offload: stock; the plugin without the host tier, which holds for a minute; the
plugin; the plugin that is not told when a session returns. Of each: TTFT of later turns, completion of
sessions, of strangers, and of all, and the blocks that were held while somebody waited.
"""

import math
import statistics
import sys
from typing import Any

from benchmarks.command import judged
from benchmarks.engine_bench import ABOUT, SEED, bias_count, hint
from benchmarks.retention import BLOCK, Agent, Mix, Play, Run
from benchmarks.verdict import Verdict, percentile
from lab.engine.simulated import SimulatedOptions
from lab.engine.simulated_host import HostMemory

BLOCKS = 1_601
MIX = Mix(sessions=16, turns=5, opening=12_000, observation=1_500, answer=120)
SECONDS = 30.0
"""So long they come; then all end."""
ERROR = 0.3
COUNTED = ("demoted", "gave_way", "brought_back", "still_there", "no_room", "back_here", "back_away")
KINDS: dict[str, dict[str, Any]] = {
    "stock": {"is_biased": False},
    "no_tier": {"turnpike": {"host_tier": False}},
    "tier": {},
    "untold": {},
}


def main() -> int:
    return judged(__file__, __doc__, measure, quick="one seed instead of three", about=ABOUT)


def measure(is_quick: bool, verdict: Verdict, say: Any) -> None:
    seeds = (SEED,) if is_quick else (SEED, SEED + 1, SEED + 2)
    for rate in (4, 8, 12):
        runs = {kind: [Trips(kind, rate, seed).play() for seed in seeds] for kind in KINDS}
        judge(verdict, str(rate), runs)


def judge(verdict: Verdict, rate: str, runs: "dict[str, list[Run]]") -> None:
    means: dict[tuple[str, str], float] = {}
    for kind, each in runs.items():
        for what in ("hit_rate", "turn_ttft_s", "session_s", "stranger_s", "all_s", "held_block_s"):
            means[what, kind] = statistics.mean(getattr(run, what) for run in each)
            verdict.tell(f"{what}_at_{rate}_{kind}", means[what, kind])
        waits = [run.engine.done[name].ttft_s for run in each for name in run.turns]
        verdict.tell(f"turn_ttft_p90_s_at_{rate}_{kind}", percentile(waits, 90))
    for kind in ("stock", "no_tier"):
        ratio = means["turn_ttft_s", "tier"] / means["turn_ttft_s", kind]
        verdict.at_most(f"turn_ttft_ratio_to_{kind}_at_{rate}", ratio, 0.9)
    verdict.at_most(f"all_ratio_at_{rate}", means["all_s", "tier"] / means["all_s", "stock"], 1.01)
    for what in COUNTED:
        count = sum(bias_count(run.engine, "host_tier", what) for run in runs["tier"])
        if what in ("demoted", "brought_back"):
            verdict.at_least(f"{what}_at_{rate}", count, 1)
        else:
            verdict.tell(f"{what}_at_{rate}", count)


class Trips(Play):
    """Play it with a host tier, and measure what is held."""

    retain_s = 60.0

    def __init__(self, kind: str, rate: float, seed: int) -> None:
        host = HostMemory(blocks=8 * BLOCKS)
        options = SimulatedOptions(blocks=BLOCKS, block_size=BLOCK, host=host, **KINDS[kind])
        super().__init__(options, rate, seed, SECONDS, is_windowed=False, mix=MIX)
        self.is_told = kind != "untold"

    def pause(self, agent: Agent, now: float) -> None:
        gap_s = 60 ** agent.rng.random()
        told_s = gap_s * math.exp(agent.rng.gauss(0.0, ERROR))
        if self.is_told:
            self.engine.hint(hint(agent.name, prefetch_in_s=told_s))
        self.later(now + gap_s, agent)


if __name__ == "__main__":
    sys.exit(main())
