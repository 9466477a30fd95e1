"""Runs that were made, one line each, so that a machine that is switched off loses one run.

A line says which policy, load and seed it is of, what came out, and by what: the revision of this repository,
the hash of the sources that decide what comes out, vLLM's version, and the hash of the sessions. Runs are
deterministic: the same line comes out again. A run of other sources is made anew, so that all cells of a
table are of the same ones.
"""

import hashlib
import subprocess
from functools import cache
from pathlib import Path
from typing import Final

import msgspec

from benchmarks.processes import ROOT
from lab.workload.trace.format import Session

FOLDER: Final = Path(__file__).with_name("runs")
_DECIDE: Final = ("gateway", "lab", "engine_ext/turnpike_vllm", "benchmarks/simulations")


class Run(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    policy: str
    """The variant's label."""
    per_h: float
    seed: int
    metrics: dict[str, float | None]
    revision: str
    vllm: str
    sessions_sha256: str
    sources: str = ""
    """`sources_sha256()` when it was made; empty: not recorded."""
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
        takes_the_place = run.key in self.runs
        self.runs[run.key] = run
        if self.path is None:
            return
        self.path.parent.mkdir(parents=True, exist_ok=True)
        with self.path.open("wb" if takes_the_place else "ab") as file:
            for each in self.runs.values() if takes_the_place else (run,):
                file.write(msgspec.json.encode(each) + b"\n")


@cache
def sources_sha256() -> str:
    """Of gateway, simulator, plugin and profiles, as they are now; 12 hexadecimal digits."""
    found = hashlib.sha256()
    for folder in _DECIDE:
        for path in sorted((ROOT / folder).rglob("*")):
            if path.suffix in (".py", ".toml"):
                found.update(f"{path.relative_to(ROOT)}\n".encode() + path.read_bytes())
    return found.hexdigest()[:12]


def sources_are_committed() -> bool:
    command = ["git", "status", "--porcelain", "--", *_DECIDE]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    return done.returncode == 0 and not done.stdout


def sha256_of(sessions: list[Session]) -> str:
    """Of what is drawn from; 12 hexadecimal digits."""
    return hashlib.sha256(msgspec.json.encode(sessions)).hexdigest()[:12]
