"""AIPerf's multi-turn chats on two servers with 1000 KV blocks of 32 tokens each.

60 conversations of 10 turns, each turn 600 tokens more. A row is a pause between turns and a number of
conversations at a time; the shorter the pause, the more of them need KV at once. Without a gateway AIPerf
gives *conversations* to the servers in turn, all turns of one to the same server, so sessions stay where
their prefixes are. In a row all arms get the same prompts, from empty prefix caches and with a gateway that
has just started. AIPerf names each conversation in `X-Session-Affinity`, which Turnpike reads.
"""

import argparse
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Final

import msgspec

from benchmarks.processes import Strangers
from benchmarks.rivals import aiperf
from benchmarks.rivals.aiperf import Load, Profile
from benchmarks.rivals.arms import FOR_VLLM_ROUTER, MODEL, NONE, OURS, Arm
from benchmarks.rivals.judging import BEST_ROUTER, Bound, Figures
from benchmarks.stock_engines import PrefixCache, empty, stock_engines

ROWS: Final = {4.0: 40, 2.5: 40, 1.5: 40, 1.0: 20, 0.5: 20, 0.15: 40}
"""Pause between turns in seconds → conversations at a time."""
QUICK_ROWS: Final = (4.0, 0.15)
SHORT_OF_KV_S: Final = 0.3
"""With shorter pauses than this, Turnpike should be faster than nothing; with longer ones, no slower."""
LONGEST_PAUSE_S: Final = 4.0
ARMS: Final = (NONE, OURS, "turnpike_shadow", "vllm_router_hash")
ROUNDS: Final = 1


def bounds(pause_s: float) -> list[Bound]:
    is_short = pause_s < SHORT_OF_KV_S
    return [
        Bound(figure="ttft_p99_ms", to="", at_most=10_000.0),
        Bound(figure="duration_s", at_most=None if is_short else 1.03),
        Bound(figure="ttft_mean_ms", at_most=None if is_short else 1.05),
        Bound(figure="requests_per_s", to=NONE, at_least=1.15 if is_short else None),
        Bound(figure="requests_per_s", to=BEST_ROUTER, is_more_better=True),
        Bound(figure="requests_per_s", to="turnpike_shadow"),
        Bound(figure="ttft_mean_ms", to=NONE),
        Bound(figure="ttft_mean_ms", to=BEST_ROUTER),
        Bound(figure="ttft_p99_ms", to=NONE, at_most=1.2 if pause_s >= LONGEST_PAUSE_S else None),
        Bound(figure="ttft_p99_ms", to=BEST_ROUTER),
    ]


def figures(seen: Profile, load: Load, hit_rate: float, strangers: float) -> Figures:
    """`hit_rate`: of all prompt tokens that the engines looked up, those that their prefix caches held."""
    found: Figures = msgspec.structs.asdict(seen)
    failed = load.requests - found.pop("answered")
    return {**found, "hit_rate": hit_rate, "failed": failed, "strangers": strangers}


class Play:
    def __init__(self, stack: ExitStack, at: Path, options: argparse.Namespace, *, rounds: int) -> None:
        aiperf.install()
        self._loads: Mapping[str, Load] = {
            f"{pause_s:g}s.": Load(
                pause_s=pause_s,
                concurrency=at_a_time,
                conversations=options.conversations or (40 if options.quick else 60),
                turns=options.turns,
            )
            for pause_s, at_a_time in rows_of(options.rows, is_quick=options.quick).items()
        }
        self.rows: Sequence[str] = tuple(self._loads)
        self._engines, self._model = stock_engines(stack, 2, name=MODEL, flags=FOR_VLLM_ROUTER)

    def bounds(self, row: str) -> Sequence[Bound]:
        return bounds(self._loads[row].pause_s)

    def run(self, name: str, arm: Arm, row: str, number: int, at: Path) -> dict[str, Figures]:
        load = self._loads[row]
        with arm.start(self._engines, at / "gateway") as urls:
            empty(self._engines)
            before, others = PrefixCache.of(self._engines), Strangers()
            seen = aiperf.profile(
                load, urls, at / "aiperf", model=MODEL, tokenizer=self._model, environment=arm.aiperf
            )
            hit_rate = PrefixCache.of(self._engines).hit_rate_since(before)
        return {name: figures(seen, load, hit_rate, others.share)}


def rows_of(text: str | None, *, is_quick: bool = False) -> dict[float, int]:
    """`4,0.15`, or with the number of conversations at a time: `4:40,2:30`."""
    if text is None:
        return {pause: ROWS[pause] for pause in (QUICK_ROWS if is_quick else ROWS)}
    rows = {}
    for each in text.split(","):
        pause, _, at_a_time = each.partition(":")
        rows[float(pause)] = int(at_a_time) if at_a_time else ROWS.get(float(pause), 40)
    return rows
