"""Prefix structure from block hashes: which earlier prompt does a prompt share most with?

Prompts come as lists of numbers, one for each full block of tokens, equal where the content is. A tree of
those lists answers the question; a node is a block behind all blocks before it.
"""

from collections.abc import Iterable, Sequence
from typing import Final, Generic, TypeVar

import msgspec

Owner = TypeVar("Owner")
"""What names a prompt."""

_ROOT: Final = 0


class Shared(msgspec.Struct, Generic[Owner], frozen=True):
    """The beginning that a prompt shares with an earlier one."""

    owner: Owner
    blocks: int
    is_extension: bool
    """All full blocks of the earlier prompt are shared: this one may go on where it, or its output, ended."""


class BlockTree(Generic[Owner]):
    def __init__(self) -> None:
        self._children: dict[tuple[int, int], int] = {}
        self._first: dict[int, Owner] = {}
        """The prompt that a node came with."""
        self._ended: dict[int, Owner] = {}
        """The latest prompt whose last full block is the node."""

    def add(
        self, owner: Owner, blocks: Iterable[int], *, behind: Sequence[int] = ()
    ) -> tuple[Shared[Owner] | None, Sequence[int]]:
        """A prompt: of those nodes, and the blocks behind them. What it shares, and its own nodes."""
        path = list(behind)
        node = path[-1] if path else _ROOT
        known = len(path)
        for block in blocks:
            child = self._children.get((node, block))
            if child is None:
                child = len(self._first) + 1
                self._children[node, block] = child
                self._first[child] = owner
            else:
                known += 1
            node = child
            path.append(node)
        shared = self._shared(path[known - 1], known) if known else None
        if path:
            self._ended[node] = owner
        return shared, path

    def _shared(self, node: int, blocks: int) -> Shared[Owner]:
        if node in self._ended:
            return Shared(self._ended[node], blocks, is_extension=True)
        return Shared(self._first[node], blocks, is_extension=False)
