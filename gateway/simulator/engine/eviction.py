"""Which cached blocks are overwritten first, where a policy has a say: vLLM's free queue, in another order.

vLLM overwrites what stands at the head of its queue of free blocks. Before it takes blocks from there, those
of the lowest rank are put there. They stay cached until they are taken, so a conversation that comes back
still finds them.

Deviation: ranks are asked for again once the blocks that were chosen last are used up, and these are up to
`_CHUNK`, of one conversation at a time.
"""

from typing import Any, Final

import msgspec

from gateway.simulator.engine.policy import EnginePolicy
from gateway.simulator.engine.turn import EngineTurn
from gateway.simulator.kernel import Kernel

_CHUNK: Final = 128


class _Left(msgspec.Struct, eq=False):
    """What a turn left in the cache; some of it may be used or overwritten by now."""

    turn: EngineTurn
    blocks: list[tuple[Any, bytes]]
    """With the hash that each had, the last block of the turn at the end."""


class Eviction:
    def __init__(self, scheduler: Any, policy: EnginePolicy, kernel: Kernel) -> None:
        self._policy = policy
        self._kernel = kernel
        self._pool = scheduler.kv_cache_manager.block_pool
        self._left: dict[tuple[str, int], _Left] = {}
        self._chosen: dict[int, bytes] = {}
        """Blocks that were put at the head, with their hashes."""
        self._take = self._pool.get_new_blocks
        self._pool.get_new_blocks = self._take_lowest

    def ended(self, turn: EngineTurn, blocks: list[Any]) -> None:
        """A turn ended; its blocks are about to be freed."""
        hashed = [(block, block.block_hash) for block in blocks if block.block_hash is not None]
        for block, _ in hashed:
            self._chosen.pop(block.block_id, None)
        conversation = turn.session.id, turn.ref.thread
        self._left.pop(conversation, None)  # so that the latest stands last
        self._left[conversation] = _Left(turn, hashed)

    def _take_lowest(self, count: int) -> Any:
        missing = count - self._ready(count)
        while missing > 0 and self._left:
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
        now, policy = self._kernel.now, self._policy
        conversation, left = min(
            self._left.items(), key=lambda item: policy.eviction_rank(item[1].turn, now=now)
        )
        queue = self._pool.free_block_queue
        chosen: list[Any] = []
        while left.blocks and len(chosen) < count:
            block, key = left.blocks.pop()
            is_there = block.ref_cnt == 0 and block.block_hash == key and block.block_id not in self._chosen
            if is_there:
                queue.remove(block)
                chosen.append(block)
                self._chosen[block.block_id] = key
        if not left.blocks:
            del self._left[conversation]
        queue.prepend_n(chosen)
        return len(chosen)
