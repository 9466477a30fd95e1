"""Runs that were made, one line each, so that a machine that is switched off loses one run.

A line says which policy, load and seed it is of, what came out, and by what: the revision of this repository,
vLLM's version, and the hash of the sessions. Runs are deterministic: the same line comes out again.
"""

import hashlib
from pathlib import Path
from typing import Final

import msgspec

from lab.workload.trace.format import Session

FOLDER: Final = Path(__file__).with_name("runs")


class Run(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    policy: str
    """The variant's label."""
    per_h: float
    seed: int
    metrics: dict[str, float | None]
    revision: str
    vllm: str
    sessions_sha256: str
    slowdowns: dict[str, list[float]] = {}
    """Each session's, by tenant, where a scenario compares tenants."""

    @property
    def key(self) -> tuple[str, float, int]:
        return self.policy, self.per_h, self.seed


class Store:
    """Of one scenario."""

    def __init__(self, name: str, folder: Path | None = FOLDER) -> None:
        """Without a folder runs are kept for as long as the process lives."""
        self.path = None if folder is None else folder / f"{name}.jsonl"
        lines = self.path.read_bytes().splitlines() if self.path is not None and self.path.exists() else []
        self.runs = {run.key: run for run in (msgspec.json.decode(line, type=Run) for line in lines)}

    def add(self, run: Run) -> None:
        self.runs[run.key] = run
        if self.path is None:
            return
        self.path.parent.mkdir(parents=True, exist_ok=True)
        with self.path.open("ab") as file:
            file.write(msgspec.json.encode(run) + b"\n")


def sha256_of(sessions: list[Session]) -> str:
    """Of what is drawn from; 12 hexadecimal digits."""
    return hashlib.sha256(msgspec.json.encode(sessions)).hexdigest()[:12]
