"""Repeats: does a conversation go round in circles?

Source: ours. A *step* is a turn's calls with their results, as hashes (`gateway/identity/repeats.py`). A loop
is a repeated cycle of up to `MAX_CYCLE` steps.

Invariants: memory of a conversation is constant; a repeated request counts once; any other step in between
begins the count anew.
"""

from typing import Final

import msgspec

# Steps. Stuck agents repeat one call, or edit, test and undo.
MAX_CYCLE: Final = 3


class Cycles(msgspec.Struct):
    _newest: tuple[int, ...] = ()
    """Newest first, at most `MAX_CYCLE`."""
    _runs: tuple[int, ...] = ()
    """For each cycle length, how many steps in a row equal the one that many before."""
    count: int = 0
    """Of the most frequent cycle; 1 for none."""

    def saw(self, step: int) -> None:
        runs = (*self._runs, 0)
        self._runs = tuple([runs[at] + 1 if each == step else 0 for at, each in enumerate(self._newest)])
        self._newest = (step, *self._newest[: MAX_CYCLE - 1])
        self.count = max((1 + run // length for length, run in enumerate(self._runs, 1)), default=1)


class Repeats(msgspec.Struct):
    """Of one conversation."""

    steps: Cycles = msgspec.field(default_factory=Cycles)
    """Calls with results."""
    calls: Cycles = msgspec.field(default_factory=Cycles)
    _tail: int = 0

    def saw(self, tail: int, called: int, brought: int) -> None:
        """Hashes: `tail` of the whole conversation, so the same in a repeated request; `called` and `brought`
        of the newest calls and results, 0 for none."""
        if not called or not brought or tail == self._tail:
            return
        self._tail = tail
        self.calls.saw(called)
        self.steps.saw(hash((called, brought)))
