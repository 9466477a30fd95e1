"""Runs that are over, kept in a file, so that a benchmark that was cut off goes on where it was.

A line of JSON for each run: what was played, and its figures. What was played is named by a hash of the game,
the policy, the seed and the sources, so figures of other sources are never taken for these.
"""

import hashlib
from pathlib import Path

import msgspec

from benchmarks.processes import ROOT
from benchmarks.simulations.played import Figures, Game


class _Line(msgspec.Struct):
    run: str
    figures: Figures


class Kept:
    def __init__(self, path: Path | None) -> None:
        """None: nothing is kept. A last line that is not whole is passed over."""
        self._path = path
        self._sources = _sources()
        self._known: dict[str, Figures] = {}
        if path is None or not path.exists():
            return
        for line in path.read_bytes().splitlines():
            try:
                read = msgspec.json.decode(line, type=_Line)
            except msgspec.DecodeError:
                continue
            self._known[read.run] = read.figures

    def get(self, policy: str, game: Game, seed: int) -> Figures | None:
        return self._known.get(self._name(policy, game, seed))

    def put(self, policy: str, game: Game, seed: int, figures: Figures) -> None:
        name = self._name(policy, game, seed)
        self._known[name] = figures
        if self._path is not None:
            with self._path.open("ab") as file:
                file.write(msgspec.json.encode(_Line(name, figures)) + b"\n")

    def _name(self, policy: str, game: Game, seed: int) -> str:
        played = msgspec.json.encode((self._sources, policy, seed, game))
        return hashlib.sha256(played).hexdigest()[:16]


def _sources() -> str:
    """A hash of all that has a part in a run."""
    found = hashlib.sha256()
    for folder in ("gateway", "benchmarks/simulations"):
        for file in sorted((ROOT / folder).rglob("*.py")):
            found.update(file.read_bytes())
    return found.hexdigest()
