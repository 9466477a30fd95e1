"""Admission on real engines: two vLLM servers on the CPU, and more sessions than their caches hold.

    python -m benchmarks.live_admission [--quick] [--json]

The same sessions one after the other behind the strong baseline (prefix cache and session affinity, nobody
waits), behind the gateway as it is by default, and behind fixed caps. Engines, workload and clients are those
of `benchmarks.fidelity`; the baseline is played first and last, because what the machine does varies, and all
times are in units of its pace (`speedometer.py`).
"""

import statistics
import sys
import tempfile
from contextlib import ExitStack
from pathlib import Path
from typing import Final

import msgspec

from benchmarks.command import judged
from benchmarks.fidelity import KV_BLOCKS, REPLICAS, TEST, Settings, live
from benchmarks.fidelity_chats import Chats
from benchmarks.live import Completions, Engines, drawn
from benchmarks.verdict import Verdict

STRONG: Final[Settings] = {"admission": {"shadow": True}}
OURS: Final[Settings] = {}
CAPS: Final = (2, 4)
"""Sessions, on both together. Some three of the longest fit into each."""
LIGHT_APART_S: Final = 6.0
CROWDED_APART_S: Final = 0.5


class Run(msgspec.Struct, frozen=True):
    mean: float
    hits: float
    failed: int


def measured(found: Completions) -> Run:
    prompt = sum(turn.prompt_tokens for turn in found.turns)
    cached = sum(turn.cached_tokens for turn in found.turns)
    return Run(found.mean / found.pace_s, cached / max(1, prompt), found.failed)


def measure(count: int, verdict: Verdict) -> None:
    chats = Chats([], drawn(TEST, count))
    with ExitStack() as stack:
        at = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="live-")))
        engines = Engines(stack, at, replicas=REPLICAS, kv_blocks=KV_BLOCKS, scripts=chats.scripts)

        def played(name: str, policy: Settings, apart_s: float, sessions: int) -> Run:
            these = [
                msgspec.structs.replace(each, arrival_s=each.arrival_s * apart_s / TEST.apart_s)
                for each in chats.test[:sessions]
            ]
            seen = live(these, engines, policy, at / name, chats.ask)
            found = measured(seen)
            verdict.tell(f"{name}_mean_s", seen.mean)
            verdict.tell(f"{name}_pace_ms", 1e3 * seen.pace_s)
            told = f"{name}: mean {seen.mean:.1f} s at a pace of {1e3 * seen.pace_s:.2f} ms"
            print(f"{told}, hits {found.hits:.2f}", file=sys.stderr, flush=True)
            return found

        played("warm", STRONG, CROWDED_APART_S, count // 3)
        calm = [
            played(name, policy, LIGHT_APART_S, count // 3)
            for name, policy in (("calm", STRONG), ("calm-ours", OURS))
        ]
        before = played("strong-before", STRONG, CROWDED_APART_S, count)
        ours = played("ours", OURS, CROWDED_APART_S, count)
        caps = {
            cap: played(
                f"cap-{cap}",
                {"admission": {"policy": "session-cap", "session_cap": cap}},
                CROWDED_APART_S,
                count,
            )
            for cap in CAPS
        }
        after = played("strong-after", STRONG, CROWDED_APART_S, count)
    strong = statistics.mean((before.mean, after.mean))
    best = min(caps, key=lambda cap: caps[cap].mean)
    verdict.at_most("calm_mean_against_strong", calm[1].mean / calm[0].mean, 1.1)
    verdict.at_least("crowded_gain", strong / ours.mean, 1.3)
    verdict.at_most("crowded_mean_against_best_cap", ours.mean / caps[best].mean, 1.25)
    verdict.tell("best_cap", best)
    verdict.tell("hits", ours.hits)
    verdict.tell("hits_strong", statistics.mean((before.hits, after.hits)))
    verdict.tell("strong_after_to_before", after.mean / before.mean)
    verdict.at_most("failed", sum(run.failed for run in (*calm, before, ours, *caps.values(), after)), 0)


def main(argv: list[str] | None = None) -> int:
    return judged(
        __file__,
        __doc__,
        lambda is_quick, verdict, _: measure(12 if is_quick else 24, verdict),
        quick="12 sessions instead of 24",
        argv=argv,
    )


if __name__ == "__main__":
    sys.exit(main())
