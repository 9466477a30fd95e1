"""After a simulation: was anything lost, or made up?

Raises `ConservationError` naming the first thing that does not add up. Everything is checked at the end of
every run: it costs little, and a result from books that do not balance is worth nothing.
"""

from collections.abc import Sequence
from typing import TYPE_CHECKING

from gateway.core.coordinator import Coordinator
from lab.simulator.brain import Brain
from lab.simulator.errors import ConservationError
from lab.simulator.invariants import check_books
from lab.simulator.results import Totals

if TYPE_CHECKING:
    from lab.simulator.engine.replica import ReplicaEngine


def check_end(totals: Totals, engines: "Sequence[ReplicaEngine]", brain: Brain, open_calls: int) -> None:
    _require(open_calls == 0, f"{open_calls} calls were never answered")
    for engine in engines:
        _require(engine.turns == 0, f"{engine.name} still has {engine.turns} turns")
        _check_blocks(engine)
    _check_tokens(totals)
    _check_brain(brain)


def _check_tokens(totals: Totals) -> None:
    # The last token of an answer is sampled and never computed.
    needed = totals.prompt_tokens - totals.cached_tokens + totals.output_tokens - totals.turns
    needed += totals.moved_tokens + totals.again_tokens
    _require(totals.computed_tokens == needed, f"{totals.computed_tokens} tokens were computed, not {needed}")


def _check_blocks(engine: "ReplicaEngine") -> None:
    pool = engine.scheduler.kv_cache_manager.block_pool
    held = [block for block in pool.blocks if block.ref_cnt and not block.is_null]
    _require(not held, f"{engine.name}: {len(held)} blocks are held by nobody")
    free = pool.free_block_queue.get_all_free_blocks()
    _require(len(free) == len(pool.blocks) - 1, f"{engine.name}: {len(free)} blocks are free, not all")
    for block in free:
        key = block.block_hash
        known = key is None or pool.cached_block_hash_to_block.contain(key, block.block_id)
        _require(known, f"{engine.name}: block {block.block_id} is cached and cannot be found")


def _check_brain(brain: Brain) -> None:
    _require(not brain.live, f"the brain still knows {len(brain.live)} requests")
    if not isinstance(brain, Coordinator):
        return
    for state in brain.fleet:
        _require(not state.running + state.light, f"{state.facts.id} runs something, as the brain has it")
    try:
        check_books(brain)
    except AssertionError as error:
        raise ConservationError(f"the brain's books: {error}") from error


def _require(holds: bool, what: str) -> None:
    if not holds:
        raise ConservationError(what)
