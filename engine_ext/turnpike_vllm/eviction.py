"""Which free blocks are overwritten first?

Source: SAGA, §4.1 Eq. 1–3 (WA-LRU); Sutradhara, §4.3 (leaf before parent).
Deviations: of WA-LRU's three terms recency is left, and certainty instead of a probability: what will not be
    used again goes before all else. Probability and size gained nothing (docs/design/engine.md). Recency
    counts from the end of a turn, not from when its blocks became free: what retention held is no newer than
    it was. What several threads left outlives each of them, which the paper leaves to P_reuse. What an older
    turn left beyond the newer one keeps the older one's place: some agents go on from earlier turns.
Invariants: leaf before parent within a turn; a block is never named while it is in use, or another turn
    claims it; each block is claimed once a turn; an operation costs what it handles, times O(log n).
"""

import heapq
from collections.abc import Hashable, Sequence
from dataclasses import dataclass, field
from itertools import takewhile
from typing import Generic, Protocol, TypeVar


class Block(Protocol):
    """What an evictor looks at: the allocator's own block. Its hash says what it holds."""

    @property
    def block_id(self) -> int: ...
    @property
    def block_hash(self) -> object: ...
    @property
    def ref_cnt(self) -> int: ...


B = TypeVar("B", bound=Block)


@dataclass(frozen=True, kw_only=True)
class EvictionConfig:
    claims_per_block: int = 8
    """So many threads claim a block on average, at most; beyond that the oldest claims are forgotten."""


@dataclass(eq=False)
class Chain(Generic[B]):
    """What a thread's last turn left, root first; or what an older one left beyond it."""

    owner: Hashable
    blocks: list[B]
    hashes: list[object]
    is_over: bool
    number: int
    """Of the turns that have ended."""
    version: int = 0


@dataclass
class Evictor(Generic[B]):
    max_entries: int = 1 << 20
    """Blocks in all chains, counted for each that claims them; beyond it the oldest claim is forgotten."""
    _entries: int = 0
    _chains: dict[Hashable, Chain[B]] = field(default_factory=dict)
    _claims: dict[int, int] = field(default_factory=dict)
    """Block → how many chains have it."""
    _heap: list[tuple[bool, int, int, Chain[B]]] = field(default_factory=list)
    _asleep: list[Chain[B]] = field(default_factory=list)
    """Their leaf was in use when they were looked at."""
    _turns: int = 0
    _pushed: int = 0

    def __len__(self) -> int:
        return len(self._chains)

    def is_claimed(self, block: B) -> bool:
        return block.block_id in self._claims

    def chain(self, owner: Hashable) -> Chain[B] | None:
        return self._chains.get(owner)

    def claim(self, owner: Hashable, blocks: Sequence[B], *, is_over: bool = False) -> None:
        """A turn of ``owner`` ended and left these (root first)."""
        older = self._chains.pop(owner, None)
        self._turns += 1
        chain = Chain(owner, list(blocks), [each.block_hash for each in blocks], is_over, self._turns)
        self._chains[owner] = chain
        for block in chain.blocks:
            self._claims[block.block_id] = self._claims.get(block.block_id, 0) + 1
        self._entries += len(chain.blocks)
        self._push(chain)
        if older is not None:
            self._set_apart(older, chain)
        while self._entries > self.max_entries and len(self._chains) > 1:
            self.forget(next(iter(self._chains)))

    def expect(self, owner: Hashable, *, is_over: bool) -> None:
        """Whether what ``owner`` left is used again has changed."""
        chain = self._chains.get(owner)
        if chain is not None and chain.is_over != is_over:
            chain.is_over = is_over
            self._push(chain)

    def wake(self, owner: Hashable) -> None:
        """Blocks of ``owner`` that were in use are so no longer."""
        chain = self._chains.get(owner)
        if chain is not None:
            self._push(chain)

    def forget(self, owner: Hashable) -> None:
        """``owner`` claims nothing any more."""
        chain = self._chains.pop(owner, None)
        if chain is not None:
            self._disown(chain, len(chain.blocks))
            chain.version = -1  # what the heap has of it counts no longer

    def clear(self) -> None:
        self._chains.clear()
        self._claims.clear()
        self._heap.clear()
        self._asleep.clear()
        self._entries = 0

    def victims(self, count: int) -> list[B]:
        """Up to so many free blocks to overwrite, the first first. They are claimed no longer."""
        found: list[B] = []
        asleep, self._asleep = self._asleep, []
        self._collect(found, count)
        if len(found) < count and asleep:
            for chain in asleep:
                if self._chains.get(chain.owner) is chain:
                    self._push(chain)
            self._collect(found, count)
        else:
            self._asleep += [each for each in asleep if self._chains.get(each.owner) is each]
        return found

    def _collect(self, found: list[B], count: int) -> None:
        while self._heap and len(found) < count:
            *_, version, chain = heapq.heappop(self._heap)
            if version != chain.version or self._chains.get(chain.owner) is not chain:
                continue
            if self._take(chain, found, count):
                self._push(chain)
            elif chain.blocks:
                self._asleep.append(chain)
            else:
                del self._chains[chain.owner]

    def _take(self, chain: Chain[B], found: list[B], count: int) -> bool:
        """From the leaf on. Whether there is more to take."""
        while chain.blocks and len(found) < count:
            block, held = chain.blocks[-1], chain.hashes[-1]
            is_there = block.block_hash == held and held is not None
            if is_there and block.ref_cnt > 0:
                return False  # whoever uses it will claim it, or wake us
            chain.blocks.pop()
            chain.hashes.pop()
            self._entries -= 1
            if self._unclaim(block) and is_there:
                found.append(block)
        return bool(chain.blocks)

    def _set_apart(self, older: Chain[B], newer: Chain[B]) -> None:
        """What ``older`` has beyond ``newer`` stays, as a chain of nobody's."""
        pairs = zip(older.blocks, newer.blocks, strict=False)
        common = sum(1 for _ in takewhile(lambda pair: pair[0] is pair[1], pairs))
        self._disown(older, common)
        older.owner = object()
        if older.blocks:
            self._chains[older.owner] = older
            self._push(older)

    def _disown(self, chain: Chain[B], count: int) -> None:
        """The first so many of its blocks."""
        for block in chain.blocks[:count]:
            self._unclaim(block)
        del chain.blocks[:count], chain.hashes[:count]
        self._entries -= count

    def _unclaim(self, block: B) -> bool:
        left = self._claims.get(block.block_id, 1) - 1
        if left > 0:
            self._claims[block.block_id] = left
            return False
        self._claims.pop(block.block_id, None)
        return True

    def _push(self, chain: Chain[B]) -> None:
        if not chain.blocks:
            return
        self._pushed += 1
        chain.version = self._pushed
        heapq.heappush(self._heap, (not chain.is_over, chain.number, chain.version, chain))
        if len(self._heap) > 2 * len(self._chains) + 64:
            self._heap = [each for each in self._heap if each[-1].version == each[-2]]
            heapq.heapify(self._heap)
