"""AIPerf, the load generator of others: installed at pinned versions, run once, its export read.

It comes from PyPI, into an environment of its own (`.cache/aiperf`). Of its conversations each turn brings
the history and, in the header `X-Session-Affinity`, the same name for all turns of one. With the same seed
it sends the same prompts.

The tokenizer's directory lies in a cache of Hugging Face's hub of its own, and the hub is offline: some of
AIPerf's processes take a directory for a repository's name otherwise.
"""

import os
import signal
import statistics
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
_RECORDS: Final = "profile_export.jsonl"
_REQUEST_TIMEOUT_S: Final = 300
"""A request that takes longer counts as failed."""
_SESSION: Final = ("/bin/sh", "-c", '"$@"; exit $?', "aiperf")
"""Runs it, and is what the guardian knows the session by: AIPerf's own processes overwrite the environment
that the kernel shows of them."""
_TOKENIZER: Final = "local/tokenizer"
"""Its name in the hub's cache."""
_REVISION: Final = "0" * 40
_STOP_S: Final = 10.0


class Load(msgspec.Struct, frozen=True, kw_only=True):
    """Conversations that AIPerf holds, all of the same length."""

    pause_s: float
    """Between an answer and the next turn."""
    concurrency: int
    """Conversations at a time; when one ends, the next begins."""
    conversations: int
    turns: int
    input_tokens: int = 600
    """That each turn adds."""
    output_tokens: int = 30

    @property
    def requests(self) -> int:
        return self.conversations * self.turns

    def arguments(self) -> list[str]:
        return [
            *("--conversation-num", str(self.conversations), "--conversation-turn-mean", str(self.turns)),
            *("--conversation-turn-delay-mean", f"{self.pause_s * 1e3:g}"),
            *("--synthetic-input-tokens-mean", str(self.input_tokens)),
            *("--output-tokens-mean", str(self.output_tokens)),
            *("--extra-inputs", f"max_tokens:{self.output_tokens}"),
            *("--concurrency", str(self.concurrency)),
        ]


class Replay(msgspec.Struct, frozen=True, kw_only=True):
    """A file in Mooncake's format: prompts of these lengths, with the same blocks in common."""

    file: Path
    requests: int
    block: int
    """Tokens of each hash."""
    sessions: int = 0
    """With the file's delays between turns; 0: each line is one, at its own time."""
    concurrency: int = 0
    """Sessions at a time."""

    def arguments(self) -> list[str]:
        found = ["--input-file", str(self.file), "--custom-dataset-type", "mooncake_trace"]
        found += ["--isl-block-size", str(self.block)]
        if not self.sessions:
            return [*found, "--fixed-schedule"]
        found += ["--no-fixed-schedule", "--conversation-num", str(self.sessions)]
        return [*found, "--concurrency", str(self.concurrency)]


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
    completion_mean_s: float
    """Of conversations, from the first request to the end of the last answer."""


class _Times(msgspec.Struct):
    x_correlation_id: str
    """One for all requests of a conversation."""
    credit_issued_ns: int
    """When the request was due."""
    request_end_ns: int


class _Record(msgspec.Struct):
    metadata: _Times


def install() -> None:
    """Minutes, and 1.2 GB."""
    processes.install(
        "aiperf", f"aiperf=={VERSION}", "--constraint", str(_CONSTRAINTS), what=f"AIPerf {VERSION}"
    )


def agentic(directory: Path, sizes: Mapping[str, Any], sessions: int) -> Path:
    """AIPerf's own agentic coding sessions, of these `sizes` (its `--config`), as a file for `Replay`."""
    directory.mkdir(parents=True)
    config = directory / "sizes.json"
    config.write_bytes(msgspec.json.encode(sizes))
    command = [str(_ENVIRONMENT / "bin/python"), "-m", "aiperf", "synthesize", "agentic-code"]
    command += ["--num-sessions", str(sessions), "--seed", str(SEED)]
    command += ["--config", str(config), "--output", str(directory)]
    done = subprocess.run(command, env=_environment(directory), capture_output=True, text=True)
    if done.returncode:
        raise BenchmarkError(f"AIPerf made no agentic sessions: {done.stderr[-800:] or done.stdout[-800:]}")
    return next(directory.glob("*/dataset.jsonl"))


def profile(
    load: Load | Replay,
    urls: Sequence[str],
    directory: Path,
    *,
    model: str,
    tokenizer: Path,
    environment: Mapping[str, str] | None = None,
    within_s: float = 1200.0,
) -> Profile:
    """Runs it against these servers, in turn if there are several. `directory` is for files, and is made."""
    snapshots = directory / "hub/hub" / f"models--{_TOKENIZER.replace('/', '--')}" / "snapshots"
    snapshots.mkdir(parents=True)
    (snapshots / _REVISION).symlink_to(tokenizer)
    refs = snapshots.with_name("refs")
    refs.mkdir()
    (refs / "main").write_text(_REVISION)
    log = directory / "output.txt"
    with log.open("w") as written:
        process = subprocess.Popen(
            [*_SESSION, *_command(load, urls, directory, model)],
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
    return read(export.read_bytes(), (directory / _RECORDS).read_bytes())


def completion_mean_s(records: bytes) -> float:
    spans: dict[str, tuple[int, int]] = {}
    for record in msgspec.json.Decoder(_Record).decode_lines(records):
        times = record.metadata
        begin, end = spans.get(times.x_correlation_id, (times.credit_issued_ns, 0))
        spans[times.x_correlation_id] = (
            min(begin, times.credit_issued_ns),
            max(end, times.request_end_ns),
        )
    return statistics.fmean(end - begin for begin, end in spans.values()) / 1e9


def read(export: bytes, records: bytes) -> Profile:
    """Its JSON export, and a line of each request.

    Raises BenchmarkError if it did not get to the end, or not one request succeeded."""
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
            completion_mean_s=completion_mean_s(records),
        )
    except KeyError as missing:
        errors = [each["error_details"]["type"] for each in found.get("error_summary") or ()]
        raise BenchmarkError(f"AIPerf's export lacks {missing}; requests failed with {errors}") from None


def _command(load: Load | Replay, urls: Sequence[str], directory: Path, model: str) -> list[str]:
    return [
        *(str(_ENVIRONMENT / "bin/python"), "-m", "aiperf"),  # its script names where it was installed
        *("profile", "--model", model, "--tokenizer", _TOKENIZER),
        *("--endpoint-type", "chat", "--streaming"),
        *(word for url in urls for word in ("--url", url)),
        *load.arguments(),
        *("--extra-inputs", "ignore_eos:true", "--random-seed", str(SEED)),
        *("--request-timeout-seconds", str(_REQUEST_TIMEOUT_S)),
        *("--artifact-dir", str(directory), "--ui", "none", "--export-level", "records"),
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
        "HF_HUB_OFFLINE": "1",
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
