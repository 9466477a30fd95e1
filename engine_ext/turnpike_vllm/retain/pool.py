"""vLLM's block pool, as far as the features touch it: hold blocks, and let go of them.

Nothing here decides. Every method leaves the pool's own books right; `KvPool.missing_features` says
what a version of vLLM would have to have.
"""

from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Any


def host_blocks(scheduler: Any) -> int:
    """Of vLLM's native offload, in the device's size; 0 where it does not say."""
    side = getattr(getattr(scheduler, "connector", None), "connector_scheduler", None)
    chunks = getattr(getattr(side, "manager", None), "_num_chunks", 0)
    return int(chunks * getattr(getattr(side, "config", None), "blocks_per_chunk", 0))


class KvPool:
    """Around ``scheduler.kv_cache_manager``."""

    def __init__(self, kv_cache_manager: Any, block_size: int) -> None:
        self.manager = kv_cache_manager
        self.pool = kv_cache_manager.block_pool
        self.block_size = block_size
        # Without the null block, which no request ever gets.
        self.total_blocks: int = self.pool.num_gpu_blocks - 1
        self.groups = len(kv_cache_manager.get_blocks("").blocks)
        # Block → how often it is held: whatever the holds' own books say, all of it can be let go.
        self._held: Counter[int] = Counter()

    @staticmethod
    def missing_features(kv_cache_manager: Any) -> list[str]:
        """What is missing of what is used here."""
        pool = getattr(kv_cache_manager, "block_pool", None)
        queue = getattr(pool, "free_block_queue", None)
        wanted = [
            (kv_cache_manager, "kv_cache_manager", ("get_blocks", "allocate_slots", "enable_caching")),
            (pool, "block_pool", ("touch", "free_blocks", "get_cached_block", "blocks")),
            (queue, "free_block_queue", ("num_free_blocks",)),
        ]
        return [
            f"{name}.{attribute}"
            for owner, name, attributes in wanted
            for attribute in attributes
            if not hasattr(owner, attribute)
        ]

    def ample_blocks(self, requests: int) -> int:
        """Another block of each group for each of so many requests, and one to spare."""
        return 2 * self.groups * requests

    @property
    def free_blocks(self) -> int:
        return int(self.pool.free_block_queue.num_free_blocks)

    def blocks_held_by(self, request_id: str) -> int:
        """Of its first KV cache group."""
        return len(self.manager.get_blocks(request_id).blocks[0])

    def cached_blocks(self, request_id: str) -> list[Any]:
        """The request's blocks that a prefix could hit, root first."""
        return [
            block
            for group in self.manager.get_blocks(request_id).blocks
            for block in group
            if block.block_hash is not None and not block.is_null
        ]

    def cached_tokens(self, request_id: str) -> int:
        """Of the prefix that they are the state of: each group has blocks of the same tokens, one with a
        window only its end."""
        ends = [
            index
            for group in self.manager.get_blocks(request_id).blocks
            for index, block in enumerate(group, 1)
            if block.block_hash is not None and not block.is_null
        ]
        return max(ends, default=0) * self.block_size

    def resident_tokens(self, request: Any) -> int:
        """How much of a prompt is in the cache: what is cached of a prompt is a prefix of it, so halving
        finds its end."""
        hashes = request.block_hashes
        low, high = 0, len(hashes)
        while low < high:
            middle = (low + high) // 2
            if self.pool.get_cached_block(hashes[middle], [0]):
                low = middle + 1
            else:
                high = middle
        return low * self.block_size

    def hold(self, blocks: Sequence[Any]) -> None:
        self.pool.touch(blocks)
        self._held.update(block.block_id for block in blocks)

    def let_go(self, blocks: Sequence[Any]) -> None:
        """Of blocks that were held."""
        for block in blocks:
            self._held[block.block_id] -= 1
            if not self._held[block.block_id]:
                del self._held[block.block_id]
        self.pool.free_blocks(reversed(blocks))

    def let_go_of_everything(self) -> None:
        blocks = [self.pool.blocks[each] for each in self._held.elements()]
        self._held.clear()
        self.pool.free_blocks(reversed(blocks))

    def account(self, holds: Iterable[Sequence[Any]]) -> tuple[int, int, int]:
        """Blocks that are free, that requests use, that are held and used by nobody."""
        counts: dict[int, int] = {}
        blocks = {}
        for held in holds:
            for block in held:
                counts[block.block_id] = counts.get(block.block_id, 0) + 1
                blocks[block.block_id] = block
        retained = sum(1 for each, count in counts.items() if blocks[each].ref_cnt <= count)
        free = self.free_blocks
        return free, self.total_blocks - free - retained, retained
