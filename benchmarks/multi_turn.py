"""vLLM's own multi-turn benchmark, behind this gateway and behind those that a user would otherwise pick.

    python -m benchmarks.multi_turn --sdist vllm-0.32.0.tar.gz [--quick] [--json]

`benchmark_serving_multi_turn.py` of vLLM's source archive, with the conversations of its own example: 12 to
18 messages, the first one of some 1500 tokens, the others of some 120. Each client waits for an answer
before it goes on with another of its conversations; so a conversation pauses while its client talks in
others, and a client that waits holds up all of its conversations. A row is how many conversations go on at a
time, by four clients, on two plain vLLM servers on the CPU with a tiny model and 1000 KV blocks of 32 tokens
each.

In a row everybody gets the same conversations, from empty prefix caches and with a gateway that has just
started; each round begins with another. Requests say nothing of the conversation that they belong to, but
to routers that want to be told they do.
"""

import argparse
import pydoc_data
import re
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any, Final

import msgspec

from benchmarks import peers
from benchmarks.command import judged
from benchmarks.live import MODEL
from benchmarks.processes import ROOT, BenchmarkError, Strangers, guarded
from benchmarks.rivals import FOR_VLLM_ROUTER, OURS, RIVALS
from benchmarks.stock_engines import PrefixCache, empty, stock_engines
from benchmarks.verdict import Verdict, percentile
from benchmarks.vllm_source import options, unpack

REPLICAS: Final = 2
CLIENTS: Final = 4
ROWS: Final = (8, 16, 32)
"""Conversations at a time; the last are more than the servers have KV for."""
CONVERSATIONS: Final = 2
"""Times those at a time, in all. A client ends when no new one is left, in the midst of its others."""
WORSE: Final = 1.05
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


class Run(msgspec.Struct, frozen=True, kw_only=True):
    requests_per_s: float
    """From the first request's start to the last one's end."""
    ttft_mean_ms: float
    ttft_p90_ms: float
    latency_mean_ms: float
    hit_rate: float
    """Of all prompt tokens that the servers looked up, those that their prefix caches held."""
    failed: int
    """Requests that were not answered well."""
    strangers: float
    """Their share of the machine meanwhile."""

    @classmethod
    def of(cls, asked: Sequence[Asked], failed: int, hit_rate: float, strangers: float) -> "Run":
        began_ms = min(each.start_time_ms for each in asked)
        ended_ms = max(each.start_time_ms + each.latency_ms for each in asked)
        ttft, latency = [each.ttft_ms for each in asked], [each.latency_ms for each in asked]
        return cls(
            requests_per_s=1e3 * len(asked) / (ended_ms - began_ms),
            ttft_mean_ms=sum(ttft) / len(ttft),
            ttft_p90_ms=percentile(ttft, 90),
            latency_mean_ms=sum(latency) / len(latency),
            hit_rate=hit_rate,
            failed=failed,
            strangers=strangers,
        )


def install() -> None:
    """Once; does nothing when it is there. Raises BenchmarkError if that is impossible."""
    stamp = _ENVIRONMENT / "installed"
    if stamp.exists() and stamp.read_text() == "\n".join(_NEEDS):
        return
    command = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--upgrade"]
    done = subprocess.run([*command, "--target", str(_ENVIRONMENT), *_NEEDS], capture_output=True, text=True)
    if done.returncode:
        raise BenchmarkError(f"what vLLM's benchmark needs cannot be installed: {done.stderr.strip()[-300:]}")
    stamp.write_text("\n".join(_NEEDS))


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


def measure(asked: argparse.Namespace, is_quick: bool, verdict: Verdict, tell: Any) -> None:
    install()
    peers.install_rust_peers()
    found: dict[int, dict[str, list[Run]]] = {}
    with ExitStack() as stack:
        at = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="multi-turn-")))
        source = unpack(asked.sdist, "benchmarks/multi_turn", at)
        engines, model = stock_engines(stack, REPLICAS, name=MODEL, flags=FOR_VLLM_ROUTER)
        names = asked.arms or list(RIVALS)

        def run(name: str, active: int, number: int) -> Run:
            rival, files = RIVALS[name], Path(stack.enter_context(tempfile.TemporaryDirectory(dir=at)))
            with rival.start(engines, files / "gateway") as url:
                empty(engines)
                before, others = PrefixCache.of(engines), Strangers()
                requests, failed = benchmark(
                    source, url, model, active, number, files, is_named=bool(rival.headers)
                )
                return Run.of(requests, failed, PrefixCache.of(engines).hit_rate_since(before), others.share)

        run(names[-1], ROWS[0], 0)  # engines are slow at first with several requests at a time
        for number in range(1 if is_quick else asked.rounds):
            first = number % len(names)
            for active in asked.rows[-1:] if is_quick else asked.rows:
                for name in names[first:] + names[:first]:
                    seen = run(name, active, number)
                    found.setdefault(active, {}).setdefault(name, []).append(seen)
                    tell(
                        f"{active} at a time, {name}: {seen.requests_per_s:.2f} requests/s, first token "
                        f"after {seen.ttft_mean_ms:.0f} ms (p90 {seen.ttft_p90_ms:.0f}), "
                        f"hits {seen.hit_rate:.3f}, {seen.failed} failed, "
                        f"{seen.strangers:.0%} of the machine to others"
                    )
    for active, row in found.items():
        judge(active, row, verdict)


def judge(active: int, row: Mapping[str, Sequence[Run]], verdict: Verdict) -> None:
    medians = {
        name: {
            figure: statistics.median(getattr(run, figure) for run in runs)
            for figure in ("requests_per_s", "latency_mean_ms", "ttft_mean_ms", "ttft_p90_ms", "hit_rate")
        }
        for name, runs in row.items()
    }
    for name, figures in medians.items():
        for figure, value in figures.items():
            verdict.tell(f"{active}.{name}.{figure}", value)
    verdict.at_most(f"{active}.failed", sum(run.failed for runs in row.values() for run in runs), 0)
    ours, others = medians.pop(OURS, None), medians.values()
    if ours is None or not others:
        return
    most = max(each["requests_per_s"] for each in others)
    verdict.at_least(f"{active}.requests_per_s_to_best", ours["requests_per_s"] / most, 1 / WORSE)
    for figure in ("latency_mean_ms", "ttft_mean_ms"):
        verdict.at_most(
            f"{active}.{figure}_to_best", ours[figure] / min(each[figure] for each in others), WORSE
        )


def main(argv: list[str] | None = None) -> int:
    own = options()
    own.add_argument("--rounds", type=int, default=3)
    own.add_argument(
        "--rows",
        type=lambda text: tuple(map(int, text.split(","))),
        default=ROWS,
        metavar="N,…",
        help="conversations at a time",
    )
    own.add_argument(
        "--arms", type=lambda text: text.split(","), metavar="NAME,…", help=f"of {', '.join(RIVALS)}"
    )
    return judged(
        __file__,
        __doc__,
        lambda is_quick, verdict, tell: measure(own.parse_known_args(argv)[0], is_quick, verdict, tell),
        quick="one round, with the most conversations alone",
        about=", ".join(each.replace("==", " ") for each in peers.PACKAGES),
        own=own,
        argv=argv,
    )


if __name__ == "__main__":
    sys.exit(main())
