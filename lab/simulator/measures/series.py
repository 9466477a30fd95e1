"""Something over time, at a resolution that is bounded: when it gets long, it gets coarser.

Invariants: there are never more than `CELLS` cells; all are of one width, which only doubles; nothing that
was added is lost.
"""

from typing import Final

CELLS: Final = 240
_FIRST_WIDTH_S: Final = 1.0


class Series:
    """Amounts that stand at a point in time, or are spread over a span of it."""

    def __init__(self) -> None:
        self.width_s = _FIRST_WIDTH_S
        self.sums: list[float] = []

    def add(self, at_s: float, amount: float) -> None:
        cell = self._cell(at_s)  # first: it may replace the sums
        self.sums[cell] += amount

    def spread(self, from_s: float, to_s: float, amount: float = 1.0) -> None:
        """Adds `amount` × seconds to every cell, for as long as the span covers it."""
        last = self._cell(to_s)
        for cell in range(self._cell(from_s), last + 1):
            start = cell * self.width_s
            covered = min(to_s, start + self.width_s) - max(from_s, start)
            self.sums[cell] += amount * max(0.0, covered)

    def rates(self) -> list[tuple[float, float]]:
        """By the middle of each cell: what was added, per second."""
        return [((cell + 0.5) * self.width_s, total / self.width_s) for cell, total in enumerate(self.sums)]

    def _cell(self, at_s: float) -> int:
        while at_s >= CELLS * self.width_s:
            self.width_s *= 2
            odd = self.sums[1::2] + [0.0] * (len(self.sums) % 2)
            self.sums = [a + b for a, b in zip(self.sums[::2], odd, strict=True)]
        cell = int(at_s / self.width_s)
        self.sums += [0.0] * (cell + 1 - len(self.sums))
        return cell


class Gauge:
    """A quantity that is looked at now and then: its mean over each cell."""

    def __init__(self) -> None:
        self._sums = Series()
        self._looks = Series()

    def look(self, at_s: float, value: float) -> None:
        self._sums.add(at_s, value)
        self._looks.add(at_s, 1.0)

    @property
    def mean(self) -> float | None:
        looks = sum(self._looks.sums)
        return sum(self._sums.sums) / looks if looks else None

    def means(self) -> list[tuple[float, float]]:
        """By the middle of each cell that anybody looked into."""
        width_s = self._sums.width_s
        return [
            ((cell + 0.5) * width_s, total / looks)
            for cell, (total, looks) in enumerate(zip(self._sums.sums, self._looks.sums, strict=True))
            if looks
        ]
