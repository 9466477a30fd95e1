"""Repeats: does a conversation go round in circles?

Source: ours. A *step* is what a turn brings: a call, or several, and what came of it, as hashes
(`gateway/identity/repeats.py`). A cycle of up to `MAX_CYCLE` steps that comes again and again is a loop.

Invariants: memory of a conversation is constant; a request that is sent again counts once; whatever else is
said in between begins the count anew.
"""

from typing import Final

MAX_CYCLE: Final = 3
"""Steps. Agents that are stuck repeat one call, or edit, test and undo."""


class Cycles:
    """How often the newest steps came in a row."""

    __slots__ = ("_newest", "_runs", "count")

    def __init__(self) -> None:
        self._newest: tuple[int, ...] = ()
        """Newest first, at most `MAX_CYCLE`."""
        self._runs: tuple[int, ...] = ()
        """For each length of a cycle, how many steps in a row equal the one that many before."""
        self.count = 0
        """How often the cycle came that comes most often; 1 for none."""

    def saw(self, step: int) -> None:
        runs = (*self._runs, 0)
        self._runs = tuple([runs[at] + 1 if each == step else 0 for at, each in enumerate(self._newest)])
        self._newest = (step, *self._newest[: MAX_CYCLE - 1])
        self.count = max((1 + run // length for length, run in enumerate(self._runs, 1)), default=1)


class Repeats:
    """Of one conversation."""

    __slots__ = ("_tail", "calls", "steps")

    def __init__(self) -> None:
        self.steps = Cycles()
        """The same calls with the same results."""
        self.calls = Cycles()
        """The same calls, whatever came of them."""
        self._tail = 0

    def saw(self, tail: int, called: int, brought: int) -> None:
        """`tail`: of the whole conversation; a request that has the same is the same. `called`, `brought`:
        hashes of the newest calls and of their results, 0 for none."""
        if not called or not brought or tail == self._tail:
            return
        self._tail = tail
        self.calls.saw(called)
        self.steps.saw(hash((called, brought)))
