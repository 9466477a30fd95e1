"""Where a conversation stands in its graph, and by which contexts what follows is looked up.

Source: SAGA (arXiv 2605.00528), §3.2, agent execution graphs.

Symbols: v, the current node → `Walk.last`.

Deviations: what follows depends on more than the current node: on the two steps before it, what its calls and
its text begin with, how its text ends, how often the same step was repeated, and how far the task has come.

Invariants: a walk's size is fixed; contexts are hashes.
"""

from typing import Final

import msgspec

from gateway.domain.request import Manner
from gateway.workflow.nodes import END, TEXT

LEANS_ON: Final = (-1, 0, 1, 0, 0, 3, 3, 3, 7, 0)
"""Of each kind of context, which one it leans on; -1 for none."""
KINDS: Final = len(LEANS_ON)
ORDERS: Final = (2, 1, 0)
"""The kinds that are the last three steps, the last two, and the last one."""
CALLS: Final = 2
_MAX_RUN: Final = 6
_FEW: Final = 2
_MAX_STEPS: Final = 128


def kind_of(node: int) -> int:
    """What steps of all agents have in common: the end, an answer, or calls."""
    return node if node in (END, TEXT) else CALLS


def after(node: int) -> int:
    """The context of the last step alone."""
    return hash((1, node))


class Walk(msgspec.Struct, gc=False):
    steps: int = 0
    last: int = -1
    before: int = -1
    third: int = -1
    run: int = 0
    """How often the last step was repeated."""
    left: int = -1
    """The step before that run."""
    opening: int = 0
    """How the last step's calls begin."""
    lead: int = 0
    """How its text begins."""
    close: int = 0
    """How its text ends."""
    asks: bool = False
    """Its text ends with a question."""
    is_asked: bool = False
    """No tool's result led to the last step, but somebody's words."""
    has_tools: bool = False
    """It could have called some."""

    def step(self, node: int, manner: Manner, *, is_asked: bool, has_tools: bool = False) -> None:
        if node == self.last:
            self.run += 1
        else:
            self.run, self.left = 1, self.last
        self.third, self.before, self.last = self.before, self.last, node
        self.steps += 1
        self.opening, self.asks = manner.opening, manner.asks
        self.lead, self.close = manner.lead, manner.close
        self.is_asked, self.has_tools = is_asked, has_tools

    def contexts(self) -> tuple[int, ...]:
        """By kind."""
        last, before = self.last, self.before
        called = hash((last, self.opening))
        kind, steps = kind_of(last), self.steps
        return (
            after(last),
            hash((2, before, last)),
            hash((3, self.third, before, last)),
            hash((4, called)),
            hash((5, last, self.run if self.run < _MAX_RUN else _MAX_RUN, self.left)),
            hash((6, called, self.asks, steps if steps < 8 else 7 + steps.bit_length())),
            hash((7, called, self.asks, self.lead)),
            hash((8, called, self.asks, self.close)),
            hash((9, kind, self.lead, self.close)),
            hash((10, kind, steps if steps < _MAX_STEPS else _MAX_STEPS)),
        )

    def common_contexts(self) -> tuple[int, ...]:
        """Those that all agents have in common, the simplest first."""
        kind = kind_of(self.last) if self.last >= 0 else -1
        steps = min(_FEW, self.steps)
        return hash((1, kind)), hash((2, kind, self.is_asked, self.asks, self.has_tools, steps))
