"""Which free blocks are overwritten first?

Source: SAGA, §4.1 Eq. 1–3 (WA-LRU); Sutradhara, §4.3 (leaf before parent).
Symbols: α, β, γ → ``alpha``, ``beta``, ``gamma``; τ_max → ``idle_max_s``; size_max → ``size_max_blocks``;
    P_reuse(s) → ``reuse`` of `Evictor.claim`; t_last(s) → when the claim was made.
Deviations: γ is 0.05, the paper's 0.2: there a session is evicted as a whole, here block by block, and then
    its size says nothing of a block's worth (measured: benchmarks/eviction.py). τ_max and size_max are
    constants and R̂ is not capped at 1, so that the order of two threads does not change while time passes: a
    sort key, no scan. What several threads claim outlives each of them, which the papers leave to P_reuse.
    Nobody tells Sutradhara's tags, which gain nothing beside that (docs/engine.md). What a newer turn
    superseded is claimed by nobody, and goes before everything that is claimed.
Invariants: leaf before parent within a thread; a block in use is never named; each block is claimed once a
    thread; an operation costs what it handles, times O(log n), over time.
"""

import heapq
from collections.abc import Hashable, Sequence
from dataclasses import dataclass, field
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
    alpha: float = 0.3
    beta: float = 0.5
    gamma: float = 0.05
    idle_max_s: float = 60.0
    size_max_blocks: int = 4_096


_OVER = 1e6


@dataclass(eq=False)
class Chain(Generic[B]):
    """What a thread's last turn left, root first."""

    owner: Hashable
    blocks: list[B]
    hashes: list[object]
    score: float
    version: int = 0


@dataclass
class Evictor(Generic[B]):
    config: EvictionConfig
    max_entries: int = 1 << 20
    """Blocks in all chains, counted for each that claims them; beyond it the oldest claim is forgotten."""
    _entries: int = 0
    _chains: dict[Hashable, Chain[B]] = field(default_factory=dict)
    _claims: dict[int, int] = field(default_factory=dict)
    """Block → how many threads claim it."""
    _heap: list[tuple[float, int, Chain[B]]] = field(default_factory=list)
    _asleep: list[Chain[B]] = field(default_factory=list)
    """Their leaf was in use when they were looked at."""
    _count: int = 0

    def __len__(self) -> int:
        return len(self._chains)

    def is_claimed(self, block: B) -> bool:
        return block.block_id in self._claims

    def chain(self, owner: Hashable) -> Chain[B] | None:
        return self._chains.get(owner)

    def claim(
        self,
        owner: Hashable,
        blocks: Sequence[B],
        *,
        reuse: float,
        now: float,
    ) -> list[B]:
        """A turn of ``owner`` ended and left these (root first). Returns what its older turn left and this
        one did not: superseded, and nobody else's."""
        older = self._chains.pop(owner, None)
        chain = Chain(
            owner,
            list(blocks),
            [each.block_hash for each in blocks],
            self._score(blocks, reuse, now),
        )
        self._chains[owner] = chain
        for block in chain.blocks:
            self._claims[block.block_id] = self._claims.get(block.block_id, 0) + 1
        self._entries += len(chain.blocks)
        self._push(chain)
        superseded = [] if older is None else self._disown(older)
        while self._entries > self.max_entries and len(self._chains) > 1:
            self.forget(next(iter(self._chains)))
        return superseded

    def expect(self, owner: Hashable, reuse: float, *, now: float) -> None:
        """The probability that ``owner``'s state is used again has changed."""
        chain = self._chains.get(owner)
        if chain is not None:
            chain.score = self._score(chain.blocks, reuse, now)
            self._push(chain)

    def wake(self, owner: Hashable) -> None:
        """Blocks of ``owner`` that were in use are so no longer."""
        chain = self._chains.get(owner)
        if chain is not None:
            self._push(chain)

    def forget(self, owner: Hashable) -> list[B]:
        """``owner`` will not come back. Returns what nobody else claims."""
        chain = self._chains.pop(owner, None)
        return [] if chain is None else self._disown(chain)

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
            _, version, chain = heapq.heappop(self._heap)
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

    def _disown(self, chain: Chain[B]) -> list[B]:
        self._entries -= len(chain.blocks)
        chain.version = -1  # what the heap has of it counts no longer
        return [
            block
            for block, held in zip(reversed(chain.blocks), reversed(chain.hashes), strict=True)
            if self._unclaim(block) and block.block_hash == held and held is not None
        ]

    def _unclaim(self, block: B) -> bool:
        left = self._claims.get(block.block_id, 1) - 1
        if left > 0:
            self._claims[block.block_id] = left
            return False
        self._claims.pop(block.block_id, None)
        return True

    def _score(self, blocks: Sequence[B], reuse: float, now: float) -> float:
        """Eq. 1, less what time adds to all alike. Larger goes first; what will not be used again, before
        all."""
        if reuse <= 0.0:
            return _OVER - now / self.config.idle_max_s
        size = min(len(blocks) / self.config.size_max_blocks, 1.0)
        recency = -now / self.config.idle_max_s
        return self.config.alpha * recency + self.config.beta * (1.0 - reuse) + self.config.gamma * size

    def _push(self, chain: Chain[B]) -> None:
        if not chain.blocks:
            return
        self._count += 1
        chain.version = self._count
        heapq.heappush(self._heap, (-chain.score, self._count, chain))
        if len(self._heap) > 2 * len(self._chains) + 64:
            self._heap = [each for each in self._heap if each[-1].version == each[-2]]
            heapq.heapify(self._heap)
