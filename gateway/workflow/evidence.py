"""What followed what, in some context: counts that decay, of a bounded number of contexts.

Invariants: at most `max_contexts` contexts are kept, and about `EDGES` times as many edges, those of the
lightest contexts are forgotten; an observation weighs half as much after `half_life` later ones, in whatever
context they were.
"""

from collections.abc import Mapping
from typing import Final

_RESCALE_AT: Final = 1e6
EDGES: Final = 4
"""Edges kept for each context, on average."""
_STRENGTH: Final = 0.5
"""What the simpler context weighs, for each different node that was seen in the one that leans on it."""
FREQUENT: Final = 0
"""The context that is no context."""


class Counts:
    """How often each node followed, in units of the gain at the time."""

    __slots__ = ("by_node", "total")

    def __init__(self) -> None:
        self.by_node: dict[int, float] = {}
        self.total = 0.0


def smooth(
    by_node: Mapping[int, float], total: float, gain: float, simpler: list[float], place: Mapping[int, int]
) -> list[float]:
    """Shares of what was counted, leaning on those that a simpler context gives.

    `place`: of a node among the shares; all others share the last one.
    """
    prior = _STRENGTH * (len(by_node) + 0.5)
    scale = 1.0 / (total / gain + prior)
    prior *= scale
    scale /= gain
    shares = [prior * share for share in simpler]
    for node, seen in by_node.items():
        shares[place.get(node, -1)] += seen * scale
    return shares


class Evidence:
    __slots__ = ("_contexts", "_keep", "_max_contexts", "edges", "gain")

    def __init__(self, *, max_contexts: int, half_life: float) -> None:
        self._max_contexts = max_contexts
        self._keep = 0.5 ** (1.0 / half_life)
        self._contexts: dict[int, Counts] = {}
        self.edges = 0
        """Pairs of a context and a node that followed it."""
        self.gain = 1.0
        """What an observation that is made now counts."""

    def __len__(self) -> int:
        return len(self._contexts)

    def get(self, context: int) -> Counts | None:
        return self._contexts.get(context)

    def frequent(self) -> dict[int, float]:
        """What was seen, whatever came before it, in units of the gain."""
        counts = self._contexts.get(FREQUENT)
        return counts.by_node if counts is not None else {}

    def add(self, contexts: tuple[int, ...], node: int, by: float = 1.0) -> None:
        """In all of these contexts this node followed; `by` = -1 takes that back."""
        if by > 0:
            self.gain /= self._keep
        gain = by * self.gain
        known = self._contexts
        for context in contexts:
            counts = known.get(context)
            if counts is None:
                counts = known[context] = Counts()
            before = counts.by_node.get(node)
            if before is None:
                before = 0.0
                self.edges += 1
            after = max(0.0, before + gain)
            counts.by_node[node] = after
            counts.total += after - before
        while len(self._contexts) > self._max_contexts or (
            self.edges > EDGES * self._max_contexts and len(self._contexts) > 1
        ):
            self._forget()
        if self.gain > _RESCALE_AT:
            self._rescale()

    def _forget(self) -> None:
        """The lighter half."""
        kept = sorted(self._contexts.items(), key=lambda each: each[1].total)[len(self._contexts) // 2 :]
        self._contexts = dict(kept)
        self.edges = sum(len(counts.by_node) for _, counts in kept)

    def _rescale(self) -> None:
        for counts in self._contexts.values():
            counts.by_node = {node: weight / self.gain for node, weight in counts.by_node.items()}
            counts.total /= self.gain
        self.gain = 1.0
