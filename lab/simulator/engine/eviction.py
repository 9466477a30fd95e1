"""Which cached blocks are overwritten first, where a policy has a say: vLLM's free queue, in another order.

vLLM overwrites what stands at the head of its queue of free blocks. Before it takes blocks from there, those
of the lowest rank are put there. They stay cached until they are taken, so a conversation that comes back
still finds them. A block that conversations share is chosen with the last of them.
Before all go blocks that a conversation's latest turn did not build on: nothing will.

Deviation: ranks are asked for again once the blocks that were chosen last are used up, and these are up to
`_CHUNK`, of one conversation at a time.
"""

from collections import Counter
from typing import Any, Final

import msgspec

from lab.simulator.engine.policy import EnginePolicy
from lab.simulator.engine.turn import EngineTurn
from lab.simulator.kernel import Kernel

_CHUNK: Final = 128

_Share = tuple[int, bytes]
"""A block, and the hash of what is in it."""


class _Left(msgspec.Struct, eq=False):
    """What a turn left in the cache; some of it may be used or overwritten by now."""

    turn: EngineTurn
    blocks: list[tuple[Any, bytes]]
    """With the hash that each had, the last block of the turn at the end."""


class Eviction:
    def __init__(self, scheduler: Any, policy: EnginePolicy, kernel: Kernel, block_size: int) -> None:
        self._policy = policy
        self._kernel = kernel
        self._block_size = block_size
        self._pool = scheduler.kv_cache_manager.block_pool
        self._left: dict[tuple[str, int], _Left] = {}
        self._shares: Counter[_Share] = Counter()
        """Of how many conversations each block is a part: openings are shared. The last one gives it up."""
        self._superseded: list[tuple[Any, bytes]] = []
        """Blocks that were part of a conversation, and of its latest turn no more."""
        self._chosen: dict[int, bytes] = {}
        """Blocks that were put at the head, with their hashes."""
        self._take = self._pool.get_new_blocks
        self._pool.get_new_blocks = self._take_lowest

    def ended(self, turn: EngineTurn, blocks: list[Any]) -> None:
        """A turn ended; its blocks are about to be freed."""
        if self._policy.keeps_openings:
            _, opening_tokens = turn.session.spoken_under(turn.ref)
            blocks = blocks[opening_tokens // self._block_size :]
        hashed = [(block, block.block_hash) for block in blocks if block.block_hash is not None]
        for block, _ in hashed:
            self._chosen.pop(block.block_id, None)
        conversation = turn.session.id, turn.ref.thread
        before = self._left.pop(conversation, None)  # so that the latest stands last
        self._left[conversation] = _Left(turn, hashed)
        for block, key in hashed:
            self._shares[block.block_id, key] += 1
        for block, key in before.blocks if before is not None else ():
            if not self._is_still_shared(block.block_id, key):
                self._superseded.append((block, key))

    def _is_still_shared(self, block_id: int, key: bytes) -> bool:
        """One conversation less counts on this block; whether another one does."""
        share = block_id, key
        self._shares[share] -= 1
        if self._shares[share]:
            return True
        del self._shares[share]
        return False

    def _take_lowest(self, count: int) -> Any:
        missing = count - self._ready(count)
        while missing > 0 and (self._superseded or self._left):
            missing -= self._choose(max(missing, _CHUNK))
        taken = self._take(count)
        if self._chosen:
            for block in taken:
                self._chosen.pop(block.block_id, None)
        return taken

    def _ready(self, count: int) -> int:
        """How many of the first blocks in the queue hold nothing, or were chosen."""
        ready = 0
        for block in self._pool.free_block_queue.iter_blocks_after(None):
            if block.block_hash is not None and self._chosen.get(block.block_id) != block.block_hash:
                break
            ready += 1
            if ready == count:
                break
        return ready

    def _choose(self, count: int) -> int:
        """Puts up to so many blocks of the lowest rank at the head; says how many."""
        chosen: list[Any] = []
        while self._superseded and len(chosen) < count:
            self._choose_one(*self._superseded.pop(), chosen)
        if not chosen and self._left:
            self._choose_from_lowest(count, chosen)
        self._pool.free_block_queue.prepend_n(chosen)
        return len(chosen)

    def _choose_from_lowest(self, count: int, chosen: list[Any]) -> None:
        now, policy = self._kernel.now, self._policy
        conversation, left = min(
            self._left.items(), key=lambda item: policy.eviction_rank(item[1].turn, now=now)
        )
        while left.blocks and len(chosen) < count:
            block, key = left.blocks.pop()
            if not self._is_still_shared(block.block_id, key):
                self._choose_one(block, key, chosen)
        if not left.blocks:
            del self._left[conversation]

    def _choose_one(self, block: Any, key: bytes, chosen: list[Any]) -> None:
        """Unless it is used, or was overwritten."""
        if block.ref_cnt == 0 and block.block_hash == key and block.block_id not in self._chosen:
            self._pool.free_block_queue.remove(block)
            self._chosen[block.block_id] = key
            chosen.append(block)
