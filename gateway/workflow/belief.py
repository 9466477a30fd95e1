"""Which of several views of what comes next to believe: by how likely each of them found what came.

Source: none of the papers; Bayesian averaging of experts.

Symbols: p_k, a view; the posterior of k, up to a factor → the exponential of `_logs[k]`; α → `ALPHAS`.

Deviations: old lessons fade, so that a view that was wrong for long can become right. The views are the
mixture of contexts and, for each table of counts, the plain Markov model of order 3: what followed the
longest known context, with α added to every count, for several α.

Invariants: what is averaged is a distribution; over any lessons, it loses at most the logarithm of the number
of views more than the best view alone does, but for what has faded; a lesson can be taken back; memory is
fixed.
"""

from collections.abc import Sequence
from math import exp, log
from typing import Final

_KEEP: Final = 0.999
ALPHAS: Final = (0.02, 0.1, 0.5)


_TABLES: Final = 2
"""A type's own, and its family's."""


class Plain:
    """How often each candidate followed the longest context that is known."""

    __slots__ = ("counts", "total")

    def __init__(self, counts: list[float], total: float) -> None:
        self.counts = counts
        self.total = total


class Belief:
    __slots__ = ("_logs",)

    def __init__(self) -> None:
        self._logs = [0.0] * (1 + _TABLES * len(ALPHAS))

    def average(self, mixed: list[float], tables: Sequence[Plain]) -> list[float]:
        size = len(mixed)
        logs = self._logs[: 1 + len(tables) * len(ALPHAS)]
        top = max(logs)
        parts = [exp(each - top) for each in logs]
        scale = 1.0 / sum(parts)
        part = parts[0] * scale
        shares = [part * share for share in mixed]
        at = 1
        for table in tables:
            each, floor = 0.0, 0.0
            for alpha in ALPHAS:
                part = parts[at] * scale / (table.total + alpha * size)
                each += part
                floor += part * alpha
                at += 1
            shares = [share + floor + each * count for share, count in zip(shares, table.counts)]  # noqa: B905
        return shares

    def learn(self, mixed: list[float], tables: Sequence[Plain], came: int, by: float = 1.0) -> None:
        """The candidate at `came` is what followed; `by` = -1 takes that back."""
        size = len(mixed)
        likely = [mixed[came]]
        for table in tables:
            seen, total = table.counts[came], table.total
            likely += [(alpha + seen) / (alpha * size + total) for alpha in ALPHAS]
        logs, keep = self._logs, _KEEP if by > 0 else 1.0
        for at, share in enumerate(likely):
            logs[at] = logs[at] * keep + by * log(share)
