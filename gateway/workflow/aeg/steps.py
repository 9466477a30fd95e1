"""Steps of conversations: what an answer asks for.

Source: SAGA (arXiv 2605.00528), §3.2: φ, the tool of a node.

Deviations: a node is the exact set of tools that a step asks for, not a position in a plan. Steps of one set
differ by a word of theirs: a shell that runs a build is gone for longer than one that lists a folder, and who
says goodbye is answered less often than who asks.

Invariants: a name is told by its first `_NAME` characters, a set by its first `_NAMES` names.
"""

from collections.abc import Iterable
from typing import Final, NamedTuple

from gateway.domain.request import Manner

ToolSet = tuple[str, ...]
"""Names of tools, each once, in order; empty for an answer without calls."""

_NAME: Final = 64
_NAMES: Final = 16


def tool_set(names: Iterable[str]) -> ToolSet:
    return tuple(sorted({name[:_NAME] for name in names})[:_NAMES])


class Step(NamedTuple):
    tools: ToolSet = ()
    word: int = 0
    """Hash of how its calls begin, or of how its text ends if it calls nothing; 0 if that is not known."""


def step_of(tools: ToolSet, manner: Manner) -> Step:
    return Step(tools, manner.opening if tools else manner.close)
