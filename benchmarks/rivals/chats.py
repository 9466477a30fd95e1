"""AIPerf's loads on two servers with 500 KV blocks of 32 tokens each.

Conversations of 6 turns, each turn 600 tokens more. A row is a pause between turns, a number of conversations
at a time, and of how many: of 20, 20 at a time is one burst; of 60, each one's end lets the next begin. The
shorter the pause, the more of them need KV at once. Without a gateway AIPerf gives *conversations* to the
servers in turn, all turns of one to the same server, so sessions stay where their prefixes are. In a row all
arms get the same prompts, from empty prefix caches and with a gateway that has just started. AIPerf names
each conversation in `X-Session-Affinity`, which Turnpike reads.

The row `agentic` is AIPerf's agentic coding sessions, its default's sizes divided so that a CPU holds them.
`--trace FILE` adds the row `mooncake`: the first 45 s of a trace in Mooncake's format, of the requests that
a server's longest context takes, each at its time.
"""

import argparse
import gzip
import statistics
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any, Final, Self

import msgspec

from benchmarks.processes import BenchmarkError, Strangers
from benchmarks.rivals import aiperf
from benchmarks.rivals.aiperf import Load, Profile, Replay
from benchmarks.rivals.arms import FOR_VLLM_ROUTER, MODEL, NONE, OURS, Arm
from benchmarks.rivals.judging import BEST_ROUTER, Bound, Figures
from benchmarks.speedometer import pace_s
from benchmarks.stock_engines import BLOCK, LONGEST, PrefixCache, empty, stock_engines

AGENTIC: Final = "agentic"
ROWS: Final = ("4", "1.5", "0.15", "1.5:20:60", "0.15:20:60", f"{AGENTIC}:8:12")
QUICK_ROWS: Final = ("4", "0.15")
_AT_A_TIME: Final = 20
_KV_BLOCKS: Final = 500
_TEMPLATE: Final = 64
"""Tokens that a chat template may add."""
SHORT_OF_KV_S: Final = 0.3
"""With shorter pauses than this, Turnpike should be faster than nothing; with longer ones, no slower."""
LONGEST_PAUSE_S: Final = 4.0
_SIZES: Final[dict[str, Any]] = {
    "new_tokens_per_turn": {"mean": 400, "median": 300, "max": 1500, "bias": 1.1},
    "generation_length": {"mean": 40, "median": 30, "max": 100},
    "inter_turn_delay": {
        "agentic_fraction": 0.8,
        "agentic_delay": {"mean": 2500, "median": 1800, "max": 10000},
        "human_delay": {"mean": 8000, "median": 5000, "max": 24000},
        "max": None,
    },
    "reset": {"base_probability": 0.01, "context_scaling": 1.5},
    "max_prompt_tokens": 7000,
    "block_size": BLOCK,
    "cache": {
        "layer1_tokens": 1600,
        "layer1_5_tokens": 0,
        "layer2": {"mean": 600, "median": 400, "max": 1500},
        "layer1_5_groups": {"num_groups": 1, "zipf_alpha": 0.6},
    },
}
"""Tokens of its default divided by about 24, people's pauses by 5; delays of tools as they are, in ms."""
_MOONCAKE: Final = "mooncake"
_MOONCAKES_BLOCK: Final = 512
"""Tokens."""
_FIRST_MS: Final = 45_000
ARMS: Final = (NONE, OURS, "vllm_router_sticky", "smg")
ROUNDS: Final = 4


class Row(msgspec.Struct, frozen=True):
    pause_s: float | None
    """Between an answer and the next turn; None: agentic sessions, which have their own."""
    at_a_time: int
    conversations: int

    @classmethod
    def read(cls, text: str) -> Self:
        """`4`, `4:20`, `agentic:8:12`: the last numbers are conversations at a time, and in all."""
        name, *numbers = text.split(":")
        try:
            at_a_time = int(numbers[0]) if numbers else _AT_A_TIME
            conversations = int(numbers[1]) if numbers[1:] else at_a_time
            return cls(None if name == AGENTIC else float(name), at_a_time, conversations)
        except ValueError:
            raise BenchmarkError(f"--rows: {text!r} is no row") from None

    @property
    def name(self) -> str:
        """Of its figures; ends in a dot."""
        if self.pause_s is None:
            return f"{AGENTIC}."
        is_burst = self.conversations <= self.at_a_time
        return f"{self.pause_s:g}s{'' if is_burst else f'_of_{self.conversations}'}."


class Line(msgspec.Struct):
    """Of a trace in Mooncake's format."""

    timestamp: float
    input_length: int
    output_length: int
    hash_ids: list[int]


def bounds(pause_s: float) -> list[Bound]:
    is_short = pause_s < SHORT_OF_KV_S
    return [
        Bound(figure="ttft_p99_ms", to="", at_most=10_000.0),
        Bound(figure="duration_s", at_most=None if is_short else 1.03),
        Bound(figure="ttft_mean_ms", at_most=None if is_short else 1.05),
        Bound(figure="requests_per_s", to=NONE, at_least=1.15 if is_short else None),
        Bound(figure="requests_per_s", to=BEST_ROUTER, is_more_better=True),
        Bound(figure="completion_mean_s", to=NONE),
        Bound(figure="completion_mean_s", to=BEST_ROUTER),
        Bound(figure="ttft_mean_ms", to=NONE),
        Bound(figure="ttft_mean_ms", to=BEST_ROUTER),
        Bound(figure="ttft_p99_ms", to=NONE, at_most=1.2 if pause_s >= LONGEST_PAUSE_S else None),
        Bound(figure="ttft_p99_ms", to=BEST_ROUTER),
    ]


def figures(seen: Profile, load: Load | Replay, hit_rate: float, strangers: float) -> Figures:
    """`hit_rate`: of all prompt tokens that the engines looked up, those that their prefix caches held."""
    found: Figures = msgspec.structs.asdict(seen)
    failed = load.requests - found.pop("answered")
    return {**found, "hit_rate": hit_rate, "failed": failed, "strangers": strangers}


class Play:
    def __init__(self, stack: ExitStack, at: Path, options: argparse.Namespace, *, rounds: int) -> None:
        texts = options.rows.split(",") if options.rows else QUICK_ROWS if options.quick else ROWS
        rows = [Row.read(text) for text in texts]
        aiperf.install()
        self._loads: dict[str, Load | Replay] = {}
        for row in rows:
            if row.pause_s is not None:
                self._loads[row.name] = Load(
                    pause_s=row.pause_s,
                    concurrency=row.at_a_time,
                    conversations=row.conversations,
                    turns=options.turns,
                )
            else:
                file = aiperf.agentic(at / AGENTIC, _SIZES, row.conversations)
                requests = len(file.read_bytes().splitlines())
                self._loads[row.name] = Replay(
                    file=file,
                    requests=requests,
                    block=BLOCK,
                    sessions=row.conversations,
                    concurrency=row.at_a_time,
                )
        if options.trace is not None:
            self._loads[f"{_MOONCAKE}."] = beginning(options.trace, at / "mooncake.jsonl")
        self.rows: Sequence[str] = tuple(self._loads)
        self._engines, self._model = stock_engines(
            stack, 2, kv_blocks=_KV_BLOCKS, name=MODEL, flags=FOR_VLLM_ROUTER
        )

    def bounds(self, row: str) -> Sequence[Bound]:
        load = self._loads[row]
        return bounds(load.pause_s if isinstance(load, Load) else LONGEST_PAUSE_S)

    def run(self, name: str, arm: Arm, row: str, number: int, at: Path) -> dict[str, Figures]:
        load = self._loads[row]
        with arm.start(self._engines, at / "gateway") as urls:
            empty(self._engines)
            before_s = pace_s()
            before, others = PrefixCache.of(self._engines), Strangers()
            seen = aiperf.profile(
                load, urls, at / "aiperf", model=MODEL, tokenizer=self._model, environment=arm.aiperf
            )
            found = figures(seen, load, PrefixCache.of(self._engines).hit_rate_since(before), others.share)
            found["pace_ms"] = statistics.fmean((before_s, pace_s())) * 1e3
        return {name: found}


def beginning(trace: Path, file: Path) -> Replay:
    """The requests of its first 45 s that fit an engine, written to `file`."""
    read = gzip.decompress if trace.suffix == ".gz" else bytes
    lines = msgspec.json.Decoder(Line).decode_lines(read(trace.read_bytes()))
    fit = [
        line
        for line in lines
        if line.timestamp < _FIRST_MS and line.input_length + line.output_length <= LONGEST - _TEMPLATE
    ]
    if not fit:
        raise BenchmarkError(f"{trace}: no request of its first {_FIRST_MS // 1000} s fits {LONGEST} tokens")
    file.write_bytes(msgspec.json.Encoder().encode_lines(fit))
    return Replay(file=file, requests=len(fit), block=_MOONCAKES_BLOCK)
