"""Figures against their targets: what holds, what does not, and what is only told."""

import json
import math
import random
import statistics
from collections.abc import Sequence
from typing import Final

import msgspec


class Figure(msgspec.Struct, frozen=True, kw_only=True):
    value: float | None
    """None if it could not be measured; then a target does not hold."""
    target: str | None
    """None if the figure is only told."""
    ok: bool


class Verdict:
    """Collects figures by name."""

    def __init__(self) -> None:
        self.figures: dict[str, Figure] = {}
        self.prefix = ""
        """Before the names of what is added from now on."""

    def at_least(self, name: str, value: float | None, bound: float) -> Figure:
        return self._add(name, value, f">= {bound:g}", value is not None and value >= bound)

    def at_most(self, name: str, value: float | None, bound: float) -> Figure:
        return self._add(name, value, f"<= {bound:g}", value is not None and value <= bound)

    def tell(self, name: str, value: float | None) -> Figure:
        """Without a target."""
        return self._add(name, value, None, True)

    @property
    def missed(self) -> list[str]:
        return [name for name, figure in self.figures.items() if not figure.ok]

    @property
    def exit_status(self) -> int:
        return 1 if self.missed else 0

    def as_json(self) -> str:
        """One line: name → {value, target, ok}."""
        return json.dumps(msgspec.to_builtins(self.figures))

    def report(self, *, is_json_alone: bool) -> int:
        """Prints a table for people, unless they want none, and the line for programs; the exit status."""
        for name, figure in () if is_json_alone else self.figures.items():
            missed = "" if figure.ok else "MISSED"
            print(f"{name:<45}{figure.value!s:>12}  {figure.target or '':<10}{missed}")
        print(self.as_json())
        return self.exit_status

    def _add(self, name: str, value: float | None, target: str | None, ok: bool) -> Figure:
        name = self.prefix + name
        if name in self.figures:
            raise ValueError(f"{name} is there twice")
        figure = Figure(value=None if value is None else float(f"{value:.4g}"), target=target, ok=ok)
        self.figures[name] = figure
        return figure


class Spread(msgspec.Struct, frozen=True):
    """Of the rounds: the median, and between which values they lay."""

    median: float
    low: float
    high: float

    @classmethod
    def of(cls, values: Sequence[float]) -> "Spread":
        return cls(statistics.median(values), min(values), max(values))


_T: Final = (12.71, 4.30, 3.18, 2.78, 2.57, 2.45, 2.36, 2.31, 2.26)
"""Student's, for 95 % on both sides, by degrees of freedom from one on."""


class Interval(msgspec.Struct, frozen=True):
    """Where a mean lies, with 95 % confidence; without bounds where there is one value."""

    mean: float
    low: float
    high: float

    @classmethod
    def of(cls, values: Sequence[float]) -> "Interval":
        mean, count = statistics.mean(values), len(values)
        if count < 2:
            return cls(mean, -math.inf, math.inf)
        half = _T[min(count - 2, len(_T) - 1)] * statistics.stdev(values) / math.sqrt(count)
        return cls(mean, mean - half, mean + half)


_DRAWS: Final = 4000
"""More change no bound by half a per cent."""


def bootstrapped(values: Sequence[float]) -> Interval:
    """Of the mean, 95 %: as many of the values are drawn again and again. Equal values give equal bounds."""
    mean = statistics.fmean(values)
    if len(values) < 2:
        return Interval(mean, -math.inf, math.inf)
    dice = random.Random(0)
    means = sorted(statistics.fmean(dice.choices(values, k=len(values))) for _ in range(_DRAWS))
    return Interval(mean, means[round(0.025 * _DRAWS)], means[round(0.975 * _DRAWS) - 1])


def ratios(ours: Sequence[float], theirs: Sequence[float]) -> Spread | None:
    """Ours ÷ theirs, round by round: what disturbed one round disturbed both. None if theirs was nothing."""
    if len(ours) != len(theirs) or not ours or not all(theirs):
        return None
    return Spread.of([our / their for our, their in zip(ours, theirs, strict=True)])


def percentile(values: Sequence[float], percent: float) -> float:
    """The smallest value that so many per cent of them do not exceed."""
    return sorted(values)[max(0, math.ceil(len(values) * percent / 100) - 1)]
