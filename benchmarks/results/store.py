"""Runs that were made, one line each, so that a machine that is switched off loses one run.

A line says which policy, load and seed it is of, what came out, and by what: the revision of this repository,
the hash of the sources that decide what comes out, vLLM's version, and the hash of the sessions. Runs are
deterministic: the same line comes out again. A run of other sources is made anew, so that all cells of a
table are of the same ones. A baseline's sources are fewer than Turnpike's, so its cells outlive changes
of the gateway.
"""

import ast
import hashlib
import subprocess
from functools import cache
from pathlib import Path
from typing import Final

import grimp
import msgspec

from benchmarks.processes import ROOT
from benchmarks.results.scenario import OURS
from lab.workload.trace.format import Session

FOLDER: Final = Path(__file__).with_name("runs")
_FOLDERS: Final = {"gateway": "gateway", "lab": "lab", "turnpike_vllm": "engine_ext/turnpike_vllm"}
_SIMULATE: Final = ("lab.simulator", "turnpike_vllm")
_PLAY: Final = ("benchmarks/simulations", "benchmarks/results/world.py")
BASELINES_EXECUTE: Final = frozenset(
    {
        "gateway.config.profiles",
        "gateway.cost.formula",
        "gateway.cost.profile",
        "gateway.tool_probe.quantiles",
        "gateway.workflow.retention",
    }
)
"""Of the gateway's modules."""
OURS_EXECUTES: Final = (
    "lab.simulator.baselines.turnpike",
    "lab.simulator.invariants",
    "lab.simulator.several",
)
"""Of the simulator's modules, those that no baseline does."""
_RECORDS: Final = ("gateway.domain.", "gateway.core.commands", "gateway.core.events")


class Run(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    policy: str
    """The variant's label."""
    per_h: float
    seed: int
    metrics: dict[str, float | None]
    revision: str
    vllm: str
    sessions_sha256: str
    sources: str
    """`sources_sha256` when it was made."""
    slowdowns: dict[str, list[float]] = {}
    """Each session's, by tenant, where a scenario compares tenants."""

    @property
    def is_ours(self) -> bool:
        return self.policy.startswith(OURS)

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
def sources_sha256(*, is_ours: bool) -> str:
    """Of all code that a simulated run may pass, without comments and docstrings, and of profiles; 12
    hexadecimal digits. `is_ours`: a run of Turnpike; a baseline's passes none of the gateway's decisions."""
    found = hashlib.sha256()
    for path in sources(is_ours=is_ours):
        text = path.read_text(encoding="utf-8")
        found.update(f"{path.relative_to(ROOT)}\n".encode())
        found.update((code_of(text) if path.suffix == ".py" else text).encode())
    for path in () if is_ours else _records():
        found.update(f"{path.relative_to(ROOT)}\n{fields_of(path.read_text(encoding='utf-8'))}".encode())
    return found.hexdigest()[:12]


def sources_are_committed() -> bool:
    command = ["git", "status", "--porcelain", "--", *map(str, sources(is_ours=True))]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    return done.returncode == 0 and not done.stdout


@cache
def sources(*, is_ours: bool) -> list[Path]:
    """The simulator, what of the gateway its runs execute, and the profiles; of Turnpike's runs also the
    plugin, and all that either imports."""
    graph = _graph()
    found = {module for module in graph.modules if module.startswith(_SIMULATE)}
    for package in _SIMULATE:
        found |= graph.find_upstream_modules(package, as_package=True)
    if not is_ours:
        lab = {module for module in found if module.startswith("lab.")}
        found = lab.difference(OURS_EXECUTES) | BASELINES_EXECUTE
    paths = [_path(module) for module in found]
    paths += [each for folder in _FOLDERS.values() for each in (ROOT / folder).rglob("*.toml")]
    for each in _PLAY:
        paths += [ROOT / each] if each.endswith(".py") else (ROOT / each).iterdir()
    return sorted(each for each in paths if each.suffix in (".py", ".toml"))


def _records() -> list[Path]:
    """What baselines exchange with the simulator as the gateway's brain does: data, whose methods they do not
    call."""
    graph = _graph()
    lab = [module for module in graph.modules if module.startswith("lab.simulator")]
    found = set().union(*map(graph.find_modules_directly_imported_by, lab))
    return sorted(_path(module) for module in found if module.startswith(_RECORDS))


@cache
def _graph() -> grimp.ImportGraph:
    return grimp.build_graph(*_FOLDERS, cache_dir=None)


def _path(module: str) -> Path:
    top, *rest = module.split(".")
    path = ROOT / _FOLDERS[top] / Path(*rest)
    return path / "__init__.py" if path.is_dir() else path.with_suffix(".py")


def fields_of(text: str) -> str:
    """Code without its functions."""
    return code_of(text, without=ast.FunctionDef)


def code_of(text: str, *, without: type[ast.stmt] | tuple[()] = ()) -> str:
    """Without comments and docstrings."""
    tree = ast.parse(text)
    for node in ast.walk(tree):
        body = getattr(node, "body", None)
        if isinstance(body, list):
            node.body = [each for each in body if not _is_text(each) and not isinstance(each, without)]  # type: ignore[attr-defined]
    return ast.dump(tree)


def _is_text(node: ast.AST) -> bool:
    """A docstring, of a field too."""
    is_constant = isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)
    return is_constant and isinstance(node.value.value, str)  # type: ignore[attr-defined]


def sha256_of(sessions: list[Session]) -> str:
    """Of what is drawn from; 12 hexadecimal digits."""
    return hashlib.sha256(msgspec.json.encode(sessions)).hexdigest()[:12]
