"""vLLM's own multi-turn benchmark on two servers with 1000 KV blocks of 32 tokens each.

`benchmark_serving_multi_turn.py` of vLLM's source archive, with the conversations of its own example: 12 to
18 messages, the first one of some 1500 tokens, the others of some 120. Each client waits for an answer
before it goes on with another of its conversations; so a conversation pauses while its client talks in
others, and a client that waits holds up all of its conversations. A row is how many conversations go on at a
time, by four clients. Everybody gets the same conversations, from empty prefix caches and with a gateway that
has just started.
"""

import argparse
import pydoc_data
import re
import subprocess
import sys
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any, Final

import msgspec

from benchmarks.processes import ROOT, BenchmarkError, Strangers, guarded, install
from benchmarks.rivals.arms import FOR_VLLM_ROUTER, MODEL, ROUTED, Arm
from benchmarks.rivals.judging import Bound, Figures
from benchmarks.stock_engines import PrefixCache, empty, stock_engines
from benchmarks.verdict import percentile
from tools.vllm_tests.source import unpack

CLIENTS: Final = 4
ROWS: Final = (8, 16, 32)
"""Conversations at a time; the last are more than the servers have KV for."""
CONVERSATIONS: Final = 2
"""Times those at a time, in all. A client ends when no new one is left, in the midst of its others."""
WORSE: Final = 1.05
BOUNDS: Final = (
    Bound(figure="requests_per_s", at_least=1 / WORSE, is_more_better=True),
    Bound(figure="latency_mean_ms", at_most=WORSE),
    Bound(figure="ttft_mean_ms", at_most=WORSE),
)
ARMS: Final = ROUTED
ROUNDS: Final = 3
_TEXT: Final = Path(pydoc_data.__file__).with_name("topics.py")
"""English that every Python has: the benchmark cuts its prompts from a text."""
_NEEDS: Final = ("pandas==2.3.3", "python-dateutil==2.9.0", "pytz==2026.6", "tzdata==2026.6", "six==1.17.0")
"""Of what the benchmark imports, what vLLM itself does not need."""
_ENVIRONMENT: Final = ROOT / ".cache/multi-turn"
_WITHIN_S: Final = 1200.0
_FAILURES: Final = re.compile(r"num_failures=(\d+)")


class Asked(msgspec.Struct, frozen=True, kw_only=True):
    """A request, as the benchmark measured it."""

    ttft_ms: float
    latency_ms: float
    start_time_ms: float


def figures(asked: Sequence[Asked], failed: int, hit_rate: float, strangers: float) -> Figures:
    """`requests_per_s`: from the first request's start to the last one's end."""
    began_ms = min(each.start_time_ms for each in asked)
    ended_ms = max(each.start_time_ms + each.latency_ms for each in asked)
    ttft_ms = [each.ttft_ms for each in asked]
    return {
        "requests_per_s": 1e3 * len(asked) / (ended_ms - began_ms),
        "ttft_mean_ms": sum(ttft_ms) / len(ttft_ms),
        "ttft_p90_ms": percentile(ttft_ms, 90),
        "latency_mean_ms": sum(each.latency_ms for each in asked) / len(asked),
        "hit_rate": hit_rate,
        "failed": failed,
        "strangers": strangers,
    }


def benchmark(
    source: Path, url: str, model: Path, active: int, seed: int, at: Path, *, is_named: bool
) -> tuple[list[Asked], int]:
    """What it asked, and how much of that failed. `source`: of vLLM; `at`: a folder for files; `is_named`:
    requests say their conversation."""
    folder = source / "benchmarks/multi_turn"
    example: dict[str, Any] = msgspec.json.decode((folder / "generate_multi_turn.json").read_bytes())
    wanted, stats, log = at / "conversations.json", at / "stats.json", at / "output"
    wanted.write_bytes(
        msgspec.json.encode(
            example | {"text_files": [str(_TEXT)], "num_conversations": CONVERSATIONS * active}
        )
    )
    command = [
        *(sys.executable, "benchmark_serving_multi_turn.py", "--model", str(model)),
        *("--served-model-name", MODEL, "--url", url, "--input-file", str(wanted), "--seed", str(seed)),
        *("--num-clients", str(CLIENTS), "--max-active-conversations", str(active), "--no-early-stop"),
        *("--stats-json-output", str(stats), *(("--send-conversation-id",) if is_named else ())),
    ]
    environment = guarded() | {"PYTHONPATH": str(_ENVIRONMENT), "HF_HUB_OFFLINE": "1"}
    with log.open("wb") as output:
        try:
            subprocess.run(
                command,
                cwd=folder,
                env=environment,
                stdout=output,
                stderr=output,
                check=True,
                timeout=_WITHIN_S,
            )
        except (subprocess.CalledProcessError, subprocess.TimeoutExpired) as error:
            raise BenchmarkError(f"vLLM's benchmark: {error}: {log.read_text()[-500:]}") from None
    failed = sum(map(int, _FAILURES.findall(log.read_text())))
    return msgspec.json.decode(stats.read_bytes(), type=list[Asked]), failed


class Play:
    def __init__(self, stack: ExitStack, at: Path, options: argparse.Namespace, *, rounds: int) -> None:
        if options.sdist is None:
            raise BenchmarkError("say with --sdist where vLLM's source archive is")
        install("multi-turn", "--no-deps", *_NEEDS, what="what vLLM's benchmark needs", isolated=False)
        rows = [int(each) for each in options.rows.split(",")] if options.rows else ROWS
        self.rows: Sequence[str] = [f"{row}." for row in (rows[-1:] if options.quick else rows)]
        self._source = unpack(options.sdist, "benchmarks/multi_turn", at)
        self._engines, self._model = stock_engines(stack, 2, name=MODEL, flags=FOR_VLLM_ROUTER)

    def bounds(self, _: str) -> Sequence[Bound]:
        return BOUNDS

    def run(self, name: str, arm: Arm, row: str, number: int, at: Path) -> dict[str, Figures]:
        with arm.start(self._engines, at / "gateway") as (url, *_):
            empty(self._engines)
            before, others = PrefixCache.of(self._engines), Strangers()
            active, is_named = int(row[:-1]), bool(arm.headers)
            asked, failed = benchmark(self._source, url, self._model, active, number, at, is_named=is_named)
            hit_rate = PrefixCache.of(self._engines).hit_rate_since(before)
        return {name: figures(asked, failed, hit_rate, others.share)}
