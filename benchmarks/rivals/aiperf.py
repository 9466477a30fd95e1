"""AIPerf, the load generator of others: installed at pinned versions, run once, its export read.

It comes from PyPI, into an environment of its own (`.cache/aiperf`). Of its conversations each turn brings
the history and, in the header `X-Session-Affinity`, the same name for all turns of one. With the same seed
it sends the same prompts.

What keeps it from the network: `--tokenizer` is a directory, and the hub's address is one where nobody
listens. `HF_HUB_OFFLINE` would do the opposite: offline, 0.13 takes a directory for a hub's repository and
fails.
"""

import os
import signal
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import msgspec

from benchmarks import processes
from benchmarks.processes import ROOT, BenchmarkError, guarded

VERSION: Final = "0.13.0"
SEED: Final = 7
SESSION_ID: Final = {"AIPERF_HTTP_X_SESSION_ID_FROM_CORRELATION_ID": "true"}
"""Sends `X-Session-ID` as well, for routers that want that."""
NAMELESS: Final = {"AIPERF_HTTP_X_SESSION_AFFINITY_FROM_CORRELATION_ID": "false"}
"""Names no conversation in a header that gateways read; `X-Correlation-ID` stays."""
_CONSTRAINTS: Final = Path(__file__).with_name("aiperf.txt")
_ENVIRONMENT: Final = ROOT / ".cache/aiperf"
_EXPORT: Final = "profile_export_aiperf.json"
_REQUEST_TIMEOUT_S: Final = 300
"""A request that takes longer counts as failed."""
_SESSION: Final = ("/bin/sh", "-c", '"$@"; exit $?', "aiperf")
"""Runs it, and is what the guardian knows the session by: AIPerf's own processes overwrite the environment
that the kernel shows of them."""
_NOBODY: Final = "http://127.0.0.1:9"
_STOP_S: Final = 10.0


class Load(msgspec.Struct, frozen=True, kw_only=True):
    """Conversations that AIPerf holds, all of the same length."""

    pause_s: float
    """Between an answer and the next turn."""
    concurrency: int
    """Conversations at a time; when one ends, the next begins."""
    conversations: int = 60
    turns: int = 10
    input_tokens: int = 600
    """That each turn adds."""
    output_tokens: int = 30

    @property
    def requests(self) -> int:
        return self.conversations * self.turns


class Profile(msgspec.Struct, frozen=True, kw_only=True):
    """What AIPerf measured of one run. Times to first token are of requests that succeeded."""

    duration_s: float
    requests_per_s: float
    ttft_mean_ms: float
    ttft_p50_ms: float
    ttft_p90_ms: float
    ttft_p99_ms: float
    answered: int
    """Requests that succeeded."""


def install() -> None:
    """Minutes, and 1.2 GB."""
    processes.install(
        "aiperf", f"aiperf=={VERSION}", "--constraint", str(_CONSTRAINTS), what=f"AIPerf {VERSION}"
    )


def profile(
    load: Load,
    urls: Sequence[str],
    directory: Path,
    *,
    model: str,
    tokenizer: Path,
    environment: Mapping[str, str] | None = None,
    within_s: float = 1200.0,
) -> Profile:
    """Runs it against these servers, in turn if there are several. `directory` is for files, and is made."""
    directory.mkdir(parents=True)
    log = directory / "output.txt"
    with log.open("w") as written:
        process = subprocess.Popen(
            [*_SESSION, *_command(load, urls, directory, model, tokenizer)],
            cwd=directory,
            stdin=subprocess.DEVNULL,
            stdout=written,
            stderr=subprocess.STDOUT,
            env=_environment(directory) | dict(environment or {}),
            start_new_session=True,
        )
    try:
        status = process.wait(within_s)
    except subprocess.TimeoutExpired:
        raise BenchmarkError(f"AIPerf did not end within {within_s:.0f} s") from None
    finally:
        _end(process)
    export = directory / _EXPORT
    if not export.exists():
        said = " | ".join(log.read_text(errors="replace").split("\n")[-12:])
        raise BenchmarkError(f"AIPerf ended with status {status} and exported nothing: {said}")
    return read(export.read_bytes())


def read(export: bytes) -> Profile:
    """Its JSON export. Raises BenchmarkError if it did not get to the end, or not one request succeeded."""
    found: dict[str, Any] = msgspec.json.decode(export)
    if found.get("was_cancelled"):
        raise BenchmarkError("AIPerf was cancelled")
    try:
        ttft = found["time_to_first_token"]
        return Profile(
            duration_s=found["benchmark_duration"]["avg"],
            requests_per_s=found["request_throughput"]["avg"],
            ttft_mean_ms=ttft["avg"],
            ttft_p50_ms=ttft["p50"],
            ttft_p90_ms=ttft["p90"],
            ttft_p99_ms=ttft["p99"],
            answered=round(found["request_count"]["avg"]),
        )
    except KeyError as missing:
        errors = [each["error_details"]["type"] for each in found.get("error_summary") or ()]
        raise BenchmarkError(f"AIPerf's export lacks {missing}; requests failed with {errors}") from None


def _command(load: Load, urls: Sequence[str], directory: Path, model: str, tokenizer: Path) -> list[str]:
    return [
        *(str(_ENVIRONMENT / "bin/python"), "-m", "aiperf"),  # its script names where it was installed
        *("profile", "--model", model, "--tokenizer", str(tokenizer)),
        *("--endpoint-type", "chat", "--streaming"),
        *(word for url in urls for word in ("--url", url)),
        *("--conversation-num", str(load.conversations), "--conversation-turn-mean", str(load.turns)),
        *("--conversation-turn-delay-mean", f"{load.pause_s * 1e3:g}"),
        *("--synthetic-input-tokens-mean", str(load.input_tokens)),
        *("--output-tokens-mean", str(load.output_tokens)),
        *("--extra-inputs", "ignore_eos:true", "--extra-inputs", f"max_tokens:{load.output_tokens}"),
        *("--concurrency", str(load.concurrency), "--random-seed", str(SEED)),
        *("--request-timeout-seconds", str(_REQUEST_TIMEOUT_S)),
        *("--artifact-dir", str(directory), "--ui", "none", "--export-level", "summary"),
        *("--no-gpu-telemetry", "--no-server-metrics"),
    ]


def _environment(directory: Path) -> dict[str, str]:
    """The caller's, without what has the tokenizer looked for elsewhere, or traffic sent to a proxy."""
    left_out = (
        "http_proxy",
        "https_proxy",
        "all_proxy",
        "no_proxy",
        "hf_hub_offline",
        "transformers_offline",
    )
    kept = {
        key: value
        for key, value in guarded().items()
        if key.lower() not in left_out and not key.startswith(("AIPERF_", "PYTHON"))
    }
    return kept | {
        "HF_ENDPOINT": _NOBODY,
        "HF_HOME": str(directory / "hub"),
        "HF_HUB_DISABLE_TELEMETRY": "1",
        "DO_NOT_TRACK": "1",
    }


def _end(process: "subprocess.Popen[bytes]") -> None:
    """The process and its services, if they still run."""
    for number in (signal.SIGTERM, signal.SIGKILL):
        try:
            os.killpg(process.pid, number)
            process.wait(_STOP_S)
        except ProcessLookupError:
            break
        except subprocess.TimeoutExpired:
            continue
    process.wait()
