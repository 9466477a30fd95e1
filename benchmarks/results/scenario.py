"""A scenario: a workload, a fleet, loads relative to a measured knee, policies, seeds, and what a paper
claims."""

from pathlib import Path
from typing import Final, Self

import msgspec

from gateway.simulator.baselines.spec import Variant, parse_policies
from gateway.simulator.fleet import FleetSpec

FOLDER: Final = Path(__file__).with_name("scenarios")
OURS: Final = "turnpike"
_STRICT: Final = {"forbid_unknown_fields": True}


class Claim(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A paper's headline on its own ground."""

    what: str
    metric: str
    """As `gateway.simulator.measures.figures.METRICS` names it."""
    theirs: str
    """As printed."""
    policy: str
    """The paper's policy as it is built here."""
    differs: str
    against: str = ""
    """A baseline; if empty, the strongest one at each load."""


class Scenario(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    title: str
    source: str
    """The paper's section, or where the sessions come from."""
    fleet: FleetSpec
    policies: list[str]
    """Turnpike, baselines, and what knows more than a gateway can; with `/` between a knob's values."""
    mix: str | None = None
    """Of `turnpike workload synth`; without it the sessions come from a file that is given by name."""
    pool: int = 400
    """Sessions to draw from."""
    sessions: int
    """Of each run."""
    knee_per_h: float
    """Sessions an hour; measured by `python -m benchmarks.results NAME --knee`."""
    loads: list[float]
    """Relative to the knee."""
    seeds: int = 10
    claims: list[Claim] = []

    @classmethod
    def read(cls, name: str) -> Self:
        """Raises FileNotFoundError, or msgspec.ValidationError that names the key."""
        return msgspec.toml.decode((FOLDER / f"{name}.toml").read_bytes(), type=cls)

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


def names() -> list[str]:
    return sorted(path.stem for path in FOLDER.glob("*.toml"))
