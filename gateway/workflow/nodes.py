"""Nodes of an execution graph: the exact set of tools that a step asks for, by number.

Invariants: at most `MAX_NODES` of a family have a number of their own, all others share `OTHER`; a name is
told by its first `_NAME` characters, a set by its first `_NAMES` names.
"""

from collections.abc import Iterable
from typing import Final

ToolSet = tuple[str, ...]
"""Names of tools, each once, in order; empty for an answer without calls."""

END: Final = 0
"""The conversation is over."""
TEXT: Final = 1
"""An answer without calls; whoever reads it may go on."""
OTHER: Final = 2
"""One that has no number of its own."""
MAX_NODES: Final = 256
_NAME: Final = 64
_NAMES: Final = 16
_LABELS: Final = {END: "END", TEXT: "answer", OTHER: "other"}


def tool_set(names: Iterable[str]) -> ToolSet:
    return tuple(sorted({name[:_NAME] for name in names})[:_NAMES])


class Nodes:
    __slots__ = ("_numbers", "_sets")

    def __init__(self) -> None:
        self._sets: list[ToolSet] = [(), (), ()]
        self._numbers: dict[ToolSet, int] = {(): TEXT}

    def __len__(self) -> int:
        return len(self._sets)

    def number(self, tools: ToolSet) -> int:
        """Of the step that asks for these; a new one, if there is one left."""
        found = self._numbers.get(tools)
        if found is None:
            if len(self._sets) >= MAX_NODES:
                return OTHER
            found = self._numbers[tools] = len(self._sets)
            self._sets.append(tools)
        return found

    def tools(self, number: int) -> ToolSet:
        return self._sets[number]

    def label(self, number: int) -> str:
        return _LABELS.get(number) or " + ".join(self._sets[number])
