"""The workloads to compare policies on: files, or mixes that `turnpike workload synth` composes."""

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import msgspec

from lab.simulator.baselines.plan import Plan
from lab.simulator.engine.options import EngineOptions
from lab.simulator.experiment.draw import fitting
from lab.simulator.fleet import FleetSpec
from lab.workload.trace.files import read_workload
from lab.workload.trace.format import Header, Session, Tool, Turn

MIXES = ("saga-tenants", "mars-ilr3", "sutradhara-fan-out")


class Workload(msgspec.Struct, frozen=True, kw_only=True):
    header: Header
    sessions: list[Session]
    """Those that fit a replica."""
    left_out: int

    @property
    def name(self) -> str:
        return self.header.name


def composed(mix: str, folder: Path, *, count: int) -> Path:
    """A file with so many sessions of one of the papers' mixes."""
    target = folder / f"{mix}.jsonl"
    command = ["workload", "synth", "--preset", mix, "--count", str(count), "--per-hour", "60"]
    subprocess.run(
        [sys.executable, "-m", "gateway", *command, "-o", str(target)], check=True, stdout=subprocess.DEVNULL
    )
    return target


def load(path: Path, fleet: FleetSpec) -> Workload:
    header, sessions = read_workload(str(path))
    everything = list(sessions)
    kv_tokens = min(Plan.of(fleet).kv_tokens(fleet).values())
    fits = fitting(everything, kv_tokens=kv_tokens, max_model_len=EngineOptions().max_model_len)
    return Workload(header=header, sessions=fits, left_out=len(everything) - len(fits))


def changed(session: Session, change: Callable[[Turn], Turn]) -> Session:
    """The same, and each turn as that makes it."""
    replace = msgspec.structs.replace
    threads = (replace(thread, turns=tuple(map(change, thread.turns))) for thread in session.threads)
    return replace(session, threads=tuple(threads))


def with_tools(session: Session, **fields: Callable[[Tool], float]) -> Session:
    """The same, and each tool with fields as those make them of it."""
    replace = msgspec.structs.replace

    def change(turn: Turn) -> Turn:
        tools = (replace(tool, **{name: of(tool) for name, of in fields.items()}) for tool in turn.tools)
        return replace(turn, tools=tuple(tools))

    return changed(session, change)
