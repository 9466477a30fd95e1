"""A scenario: a workload, a fleet, loads relative to a measured knee, policies, seeds, what a paper claims,
and what is compared with what.

A file may name another one as its `base`: what it does not say stands there.
"""

import tomllib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final, Self

import msgspec

from benchmarks.processes import BenchmarkError
from benchmarks.results.world import World
from lab.simulator.baselines.spec import Variant, parse_policies
from lab.simulator.fleet import FleetSpec

FOLDER: Final = Path(__file__).with_name("scenarios")
OURS: Final = "turnpike"


class Claim(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A paper's headline on its own ground."""

    what: str
    metric: str
    """As `lab.simulator.measures.figures.METRICS` names it."""
    theirs: str
    """As printed."""
    policy: str
    """The paper's policy as it is built here."""
    differs: str
    against: str = ""
    """A baseline; if empty, the strongest one at each load."""
    at_least: float | None = None
    """The least gain that is printed: a best point short of it is a miss."""


class Compare(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A policy's figure: beside those of others, or by itself."""

    policy: str
    against: list[str] = []
    """Policies whose figure it is divided by, seed by seed. None: the figure itself is told."""
    is_difference: bool = False
    """Theirs is taken away instead: for shares."""
    beside: str = ""
    """Another scenario: the figure is divided by the same policy's there."""
    metrics: tuple[str, ...] = ("completion_mean_s",)
    """As `lab.simulator.measures.figures.METRICS` names them; or, of a group of tenants, with all seeds
    as one: `slowdown_p99.GROUP`, `slowdown_mean.GROUP`, `goodput_1.5.GROUP`."""
    loads: list[float] = []
    """Relative to the knee; by default all."""
    at_most: float | None = None
    at_least: float | None = None
    is_sure: bool = False
    """What holds must hold of the whole interval."""


class Scenario(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    title: str
    source: str
    """The paper's section, or where the sessions come from."""
    fleet: FleetSpec
    policies: list[str]
    """Turnpike, baselines, and what knows more than a gateway can; with `/` between a knob's values."""
    mix: str | None = None
    """Of `turnpike workload synth`; without it the sessions come from a file that is given by name."""
    tool_cores: float = 0.0
    """That each tool asks for; 0: as the workload has it."""
    world: World | None = None
    """What happens while sessions are played."""
    pool: int = 400
    """Sessions to draw from."""
    sessions: int
    """Of each run."""
    knee_per_h: float
    """Sessions an hour; measured by `python -m benchmarks.results NAME --knee`."""
    loads: list[float]
    """Relative to the knee."""
    seeds: int = 10
    first_seed: int = 1
    says_when_over: bool | None = None
    """Clients tell the gateway that a session is over; by default they tell baselines and not Turnpike."""
    tenants: dict[str, list[str]] = {}
    """Groups, whose figures are compared."""
    claims: list[Claim] = []
    compares: list[Compare] = []

    @classmethod
    def read(cls, name: str, changes: Sequence[str] = ()) -> Self:
        """`changes`: TOML that is put over the file. Raises BenchmarkError that says what is wrong."""
        try:
            tree = _tree(name)
            for each in changes:
                tree = _over(tree, tomllib.loads(each))
            return msgspec.convert(tree, cls)
        except FileNotFoundError:
            raise BenchmarkError(f"there is no scenario {name!r}; there are {', '.join(names())}") from None
        except (tomllib.TOMLDecodeError, msgspec.ValidationError) as error:
            raise BenchmarkError(f"{name}: {error}") from None

    @property
    def all_seeds(self) -> range:
        return range(self.first_seed, self.first_seed + self.seeds)

    def variants(self) -> list[tuple[str, Variant]]:
        """Each policy as it is written, with each of the variants that it stands for."""
        return [
            (spec.text, each)
            for text in self.policies
            for spec in parse_policies(text)
            for each in spec.variants
        ]

    def per_h(self, load: float) -> float:
        return round(self.knee_per_h * load, 1)


def _tree(name: str) -> dict[str, Any]:
    tree = tomllib.loads((FOLDER / f"{name}.toml").read_text(encoding="utf-8"))
    base = tree.pop("base", None)
    return tree if base is None else _over(_tree(base), tree)


def _over(below: Mapping[str, Any], above: Mapping[str, Any]) -> dict[str, Any]:
    """Tables are joined; all else is replaced."""
    joined = {
        key: _over(below[key], value)
        for key, value in above.items()
        if isinstance(value, dict) and isinstance(below.get(key), dict)
    }
    return {**below, **above, **joined}


def names() -> list[str]:
    return sorted(path.stem for path in FOLDER.glob("*.toml"))
