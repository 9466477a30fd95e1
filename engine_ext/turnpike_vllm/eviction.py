"""Which free blocks are overwritten first?

Source: SAGA, §4.1 Eq. 1–3 (WA-LRU); Sutradhara, §4.3 (leaf before parent).
Symbols: α, β, γ → ``alpha``, ``beta``, ``gamma``; size_max → ``size_max_blocks``;
    P_reuse(s) → ``reuse`` of `Evictor.claim`; t_last(s) → when the claim was made.
Deviations: γ is 0.05, the paper's 0.2: there a session is evicted as a whole, here block by block, and then
    its size says nothing of a block's worth (measured on block traces). R̂ is not t/τ_max, τ_max being
    how long something is idle at most. It grows by 1 in each ``idle_max_s``, and by 1 whenever as many blocks
    that were likely to be used again have been overwritten as are claimed: then the cache is too small for
    what is likely, and recency tells more than a guess. So a guess of P_reuse is worth at most 1.7 such
    turnovers, as with the paper's, however quick these are; but R̂ is not capped, and the order of two threads
    does not change while time passes: a sort key, no scan. size_max is a constant. What several threads claim
    outlives each of them, which the papers leave to P_reuse. Nobody tells Sutradhara's tags, which gain
    nothing beside that (docs/design/engine.md). A claim counts as made as much earlier as the thread is
    expected to stay away, up to ``idle_max_s``: a longer absence costs more for the same use. What an older
    turn left beyond the newer one keeps the older one's place: some agents go on from earlier turns. Of that,
    a block may stay for a while after the one before it in the prompt has gone, and nobody can use it.
Invariants: with β = γ = 0, and told of no returns, the order is LRU's; leaf before parent within a turn; a
    block is never named while it is in use, or another turn claims it; each block is claimed once a turn;
    an operation costs what it handles, times O(log n), over time.
"""

import heapq
from collections.abc import Hashable, Sequence
from dataclasses import dataclass, field
from itertools import takewhile
from math import exp
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
_LIKELY = 0.5
"""Probability from which on something is likelier used again than not."""
_TICK_S = 1e-3
"""Shorter times are not told apart."""


@dataclass(eq=False)
class Chain(Generic[B]):
    """What a thread's last turn left, root first; or what an older one left beyond it."""

    owner: Hashable
    blocks: list[B]
    hashes: list[object]
    reuse: float
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
    """Block → how many chains have it."""
    _heap: list[tuple[float, int, Chain[B]]] = field(default_factory=list)
    _asleep: list[Chain[B]] = field(default_factory=list)
    """Their leaf was in use when they were looked at."""
    _count: int = 0
    _turnovers: float = 0.0
    """How often as many blocks that were likely to be used again have been overwritten as were claimed."""
    _lost: int = 0
    """Such blocks, of those that are being named."""
    _noted: tuple[float, float] = (0.0, 0.0)
    """Turnovers and time when the next two were brought up to date."""
    _recent: float = 0.0
    _recent_s: float = 0.0
    """Turnovers, and the seconds that they took; one turnover later they weigh e⁻¹ as much."""

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
        back_in_s: float | None = None,
        now: float,
    ) -> None:
        """A turn of ``owner`` ended and left these (root first). ``back_in_s``: when its next turn is
        expected; None if nobody knows."""
        older = self._chains.pop(owner, None)
        chain = Chain(
            owner,
            list(blocks),
            [each.block_hash for each in blocks],
            reuse,
            self._score(blocks, reuse, back_in_s, now),
        )
        self._chains[owner] = chain
        for block in chain.blocks:
            self._claims[block.block_id] = self._claims.get(block.block_id, 0) + 1
        self._entries += len(chain.blocks)
        self._push(chain)
        if older is not None:
            self._set_apart(older, chain)
        while self._entries > self.max_entries and len(self._chains) > 1:
            self.forget(next(iter(self._chains)))

    def expect(self, owner: Hashable, reuse: float, *, back_in_s: float | None = None, now: float) -> None:
        """How likely ``owner``'s state is used again, and when, has changed."""
        chain = self._chains.get(owner)
        if chain is not None:
            chain.reuse = reuse
            chain.score = self._score(chain.blocks, reuse, back_in_s, now)
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
        claimed, self._lost = len(self._claims), 0
        asleep, self._asleep = self._asleep, []
        self._collect(found, count)
        if len(found) < count and asleep:
            for chain in asleep:
                if self._chains.get(chain.owner) is chain:
                    self._push(chain)
            self._collect(found, count)
        else:
            self._asleep += [each for each in asleep if self._chains.get(each.owner) is each]
        self._turnovers += self._lost / max(claimed, 1)
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
                self._lost += chain.reuse >= _LIKELY
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

    def _score(self, blocks: Sequence[B], reuse: float, back_in_s: float | None, now: float) -> float:
        """Eq. 1, less what time adds to all alike. Larger goes first; what will not be used again, before
        all."""
        config = self.config
        age, per_s = self._clock(now)
        if reuse <= 0.0:
            return _OVER - age
        size = min(len(blocks) / config.size_max_blocks, 1.0)
        away = min(back_in_s or 0.0, config.idle_max_s) * per_s
        return config.alpha * (away - age) + config.beta * (1.0 - reuse) + config.gamma * size

    def _clock(self, now: float) -> tuple[float, float]:
        """How far R̂ of everything has grown, and by how much a second it grows of late."""
        turnovers, noted_s = self._noted
        self._noted = self._turnovers, now
        if self._turnovers:  # else the cache is still filling: how long that takes says nothing
            passed = self._turnovers - turnovers
            keep = exp(-passed)
            self._recent = self._recent * keep + passed
            self._recent_s = self._recent_s * keep + now - noted_s
        per_s = 1.0 / self.config.idle_max_s
        lately = self._recent / max(self._recent_s, _TICK_S)
        return self._turnovers + now * per_s, lately + per_s

    def _push(self, chain: Chain[B]) -> None:
        if not chain.blocks:
            return
        self._count += 1
        chain.version = self._count
        heapq.heappush(self._heap, (-chain.score, self._count, chain))
        if len(self._heap) > 2 * len(self._chains) + 64:
            self._heap = [each for each in self._heap if each[-1].version == each[-2]]
            heapq.heapify(self._heap)
