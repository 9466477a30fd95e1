"""A stretch of decoding: several steps in which nothing can happen but one more token for everybody.

In such a stretch vLLM's scheduler would do the same thing again and again: give every running request one
slot, and hash a block when it is full. `advance` does so for several steps at once. It leaves behind what
the single steps would have: the same tokens, hashes and counts; the same number of blocks taken from the
head of the free queue, so the same cached blocks overwritten. Which of the fresh blocks goes to which
request may differ, and means nothing.

That nothing can happen is for `limit` and for the caller to see:

- All requests that run decode, and none of them ends within the stretch.
- All blocks that the stretch needs are free, so nobody is preempted.
- Nobody waits; or the first who does was refused by the scheduler's last pass, for want of blocks or of
  places, and no request has ended or begun since. It is still refused then: no place became free; the free
  blocks only became fewer; and what it needs did not shrink, because a block that it shares and that was
  overwritten had to be counted as free before and must be computed now, and because what the running
  requests generate is no part of a prompt that was sent before.
"""

from bisect import bisect_left, bisect_right
from typing import Any


class Stretch:
    """One that is going on: planned when it began, and carried out as far as somebody looked."""

    def __init__(self, began_s: float, ends_s: list[float]) -> None:
        """`ends_s`: when each of its steps ends."""
        self._ends_s = ends_s
        self._looked_s = began_s
        """When the last step ended that was carried out."""
        self._taken = 0

    @property
    def end_s(self) -> float:
        return self._ends_s[-1]

    def take(self, *, now: float) -> tuple[int, float]:
        """How many more steps are over, and how long these took. Whoever asks carries them out."""
        over = bisect_right(self._ends_s, now)
        steps = over - self._taken
        if not steps:
            return 0, 0.0
        ended_s = self._ends_s[over - 1]
        time_s, self._looked_s, self._taken = ended_s - self._looked_s, ended_s, over
        return steps, time_s

    def cut(self, *, at_s: float) -> bool:
        """It ends with the step that is going on at that time; whether that is sooner."""
        steps = bisect_left(self._ends_s, at_s) + 1
        is_sooner = steps < len(self._ends_s)
        del self._ends_s[steps:]
        return is_sooner


def limit(running: list[Any], free_blocks: int, block_size: int) -> int:
    """How many steps can be taken before something may happen; 0 if something may at once."""
    steps: int = min(request.max_tokens - request.num_output_tokens for request in running) - 1
    for request in running:
        if request.num_computed_tokens + 1 != request.num_tokens or not request.num_output_tokens:
            return 0  # its prefill goes on, be it by a single token
    if steps > 0 and _blocks_needed(running, steps, block_size) > free_blocks:
        enough, too_many = 0, steps
        while too_many - enough > 1:
            middle = (enough + too_many) // 2
            if _blocks_needed(running, middle, block_size) > free_blocks:
                too_many = middle
            else:
                enough = middle
        steps = enough
    return steps


def within_blocks(running: list[Any], block_size: int) -> int:
    """How many steps fill no block, and need no new one."""
    return min((-request.num_computed_tokens % block_size or 1) - 1 for request in running)


def _blocks_needed(running: list[Any], steps: int, block_size: int) -> int:
    """Beyond those that the requests have: these cover what is computed."""
    return sum(
        (request.num_computed_tokens + steps - 1) // block_size
        - (request.num_computed_tokens - 1) // block_size
        for request in running
    )


def advance(scheduler: Any, steps: int, block_size: int) -> None:
    """Takes so many steps, no more than `limit` said."""
    allocate = scheduler.kv_cache_manager.allocate_slots
    for request in scheduler.running:
        computed = request.num_computed_tokens
        if computed // block_size == (computed + steps) // block_size and computed % block_size:
            # Within a block that the request has, and does not fill.
            request.append_output_token_ids(bytes(steps))
        else:
            # As single steps would: the last token of a step is not there yet when its slot is given out.
            if steps > 1:
                request.append_output_token_ids(bytes(steps - 1))
            given = allocate(request, steps)
            assert given is not None, "a stretch ran out of blocks"
            request.append_output_token_ids(0)
        request.num_computed_tokens = computed + steps
