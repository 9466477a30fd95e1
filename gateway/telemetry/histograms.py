"""How values are spread, as Prometheus' histograms have it (pure).

Deviations: a native histogram would need no bounds; the text format, which the gateway writes, carries none.
"""

import math
from bisect import bisect_left
from collections.abc import Iterable, Mapping, Sequence
from itertools import accumulate
from typing import Final

from prometheus_client.core import HistogramMetricFamily, Metric

_SECONDS: Final = (0.001, 0.003, 0.01, 0.03, 0.1, 0.3, 1, 3, 10, 30, 100, 300, 1000)
# For what takes microseconds.
SHORT: Final = (0.00003, 0.0001, 0.0003, 0.001, 0.003, 0.01, 0.03, 0.1, 0.3, 1)
# From a bound to the next. A quantile that is read between two of them is off by less than 10 % where values
# are spread over a bucket, and by at most 20 % where all of them lie at one end of it.
RATIO: Final = 1.19


class Histogram:
    """How often a value fell between which bounds."""

    __slots__ = ("bounds", "counts", "total")

    def __init__(self, bounds: Sequence[float] = _SECONDS) -> None:
        self.bounds = bounds
        self.counts = [0] * (len(bounds) + 1)
        self.total = 0.0

    def add(self, value: float) -> None:
        self.counts[bisect_left(self.bounds, value)] += 1
        self.total += value

    def add_all(self, values: Iterable[float]) -> None:
        bounds, counts = self.bounds, self.counts
        for value in values:
            counts[bisect_left(bounds, value)] += 1
            self.total += value

    def add_ms(self, times_ms: Iterable[float]) -> None:
        self.add_all([ms / 1e3 for ms in times_ms])


def growing(least: float, most: float, *, ratio: float = RATIO) -> tuple[float, ...]:
    """Bounds, each at most so many times the one before, from `least` to `most`; three digits are enough."""
    steps = math.ceil(math.log(most / least) / math.log(ratio))
    return tuple(float(f"{least * (most / least) ** (step / steps):.3g}") for step in range(steps + 1))


class HistogramFamily:
    """Many spreads of one family, as text: with thousands of lines, what a line begins with is made once."""

    def __init__(self, name: str, help_text: str, labels: Sequence[str], bounds: Sequence[float]) -> None:
        self.name = f"turnpike_{name}"
        self.help_text = help_text
        self.labels = labels
        self._head = f"# HELP {self.name} {help_text}\n# TYPE {self.name} histogram\n"
        self._bounds = bounds
        self._spreads: dict[tuple[str, ...], Histogram] = {}
        self._prefixes: dict[tuple[str, ...], list[str]] = {}

    def add(self, values: tuple[str, ...], value: float) -> None:
        spread = self._spreads.get(values)
        if spread is None:
            spread = self._spreads[values] = Histogram(self._bounds)
            self._prefixes[values] = self._lines_of(values)
        spread.add(value)

    def remove(self, values: tuple[str, ...]) -> None:
        self._spreads.pop(values, None)
        self._prefixes.pop(values, None)

    def text(self) -> str:
        lines = [self._head]
        for values, spread in self._spreads.items():
            *buckets, count, total = self._prefixes[values]
            below = 0
            for prefix, more in zip(buckets, spread.counts, strict=True):
                below += more
                lines.append(f"{prefix}{below}.0\n")
            lines.append(f"{count}{below}.0\n{total}{spread.total!r}\n")
        return "".join(lines)

    def _lines_of(self, values: tuple[str, ...]) -> list[str]:
        labels = ",".join(
            f'{label}="{_escaped(value)}"' for label, value in zip(self.labels, values, strict=True)
        )
        comma = "," if labels else ""
        bounds = [*(str(float(bound)) for bound in self._bounds), "+Inf"]
        buckets = [f'{self.name}_bucket{{{labels}{comma}le="{bound}"}} ' for bound in bounds]
        return [*buckets, f"{self.name}_count{{{labels}}} ", f"{self.name}_sum{{{labels}}} "]


def _escaped(value: str) -> str:
    return value.replace("\\", r"\\").replace("\n", r"\n").replace('"', r"\"")


def histogram(
    name: str, help_text: str, spreads: Mapping[tuple[str, ...], Histogram], labels: list[str] | None = None
) -> Metric:
    family = HistogramMetricFamily(f"turnpike_{name}", help_text, labels=labels or [])
    for values, spread in spreads.items():
        bounds = [*(str(float(bound)) for bound in spread.bounds), "+Inf"]
        buckets = list(zip(bounds, map(float, accumulate(spread.counts)), strict=True))
        family.add_metric(list(values), buckets, spread.total)
    return family
