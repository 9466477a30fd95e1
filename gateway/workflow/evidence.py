"""What followed what, in some context: counts that decay, of a bounded number of contexts.

Invariants: at most `max_contexts` contexts are kept, those with the least weight are forgotten; an
observation weighs half as much after `half_life` later ones, in whatever context they were.
"""

from typing import Final

_RESCALE_AT: Final = 1e6


class Counts:
    """How often each node followed, in units of the gain at the time."""

    __slots__ = ("by_node", "total")

    def __init__(self) -> None:
        self.by_node: dict[int, float] = {}
        self.total = 0.0


class Evidence:
    __slots__ = ("_contexts", "_keep", "_max_contexts", "gain")

    def __init__(self, *, max_contexts: int, half_life: float) -> None:
        self._max_contexts = max_contexts
        self._keep = 0.5 ** (1.0 / half_life)
        self._contexts: dict[int, Counts] = {}
        self.gain = 1.0
        """What an observation that is made now counts."""

    def __len__(self) -> int:
        return len(self._contexts)

    def get(self, context: int) -> Counts | None:
        return self._contexts.get(context)

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
            before = counts.by_node.get(node, 0.0)
            after = max(0.0, before + gain)
            counts.by_node[node] = after
            counts.total += after - before
        if len(known) > self._max_contexts:
            self._forget()
        if self.gain > _RESCALE_AT:
            self._rescale()

    def _forget(self) -> None:
        """The lighter half."""
        kept = sorted(self._contexts.items(), key=lambda each: each[1].total)[len(self._contexts) // 2 :]
        self._contexts = dict(kept)

    def _rescale(self) -> None:
        for counts in self._contexts.values():
            counts.by_node = {node: weight / self.gain for node, weight in counts.by_node.items()}
            counts.total /= self.gain
        self.gain = 1.0
