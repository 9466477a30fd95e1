"""What a policy overrides, hooked into one engine's scheduler; and nothing else."""

from collections.abc import Callable, Mapping
from typing import Any

from lab.simulator.engine.eviction import Eviction
from lab.simulator.engine.options import EngineOptions, SchedulingPolicy
from lab.simulator.engine.policy import EnginePolicy, overridden
from lab.simulator.engine.retention import Retention
from lab.simulator.engine.work import Work
from lab.simulator.kernel import Kernel


class PolicyHooks:
    def __init__(
        self,
        policy: EnginePolicy,
        scheduler: Any,
        options: EngineOptions,
        kernel: Kernel,
        work: Mapping[int, Work],
        *,
        kv_used: Callable[[], float],
        before_release: Callable[[], None],
        after_release: Callable[[], None],
    ) -> None:
        """`work`: what is in the engine, by the turn's number; the rest as `EnginePolicy` and
        `Retention` have it."""
        self.policy = policy
        self._scheduler = scheduler
        self._kernel = kernel
        self._work = work
        self._block_size = options.block_size
        policy.kv_used = kv_used
        self.has_priorities = overridden(policy, "priority")
        self.has_order = overridden(policy, "order_waiting")
        if self.has_order and options.scheduling_policy is not SchedulingPolicy.FCFS:
            raise ValueError("a queue by priority has its own order: override `priority`, or `order_waiting`")
        self.retention: Retention | None = None
        if overridden(policy, "retain_until"):
            self.retention = Retention(
                scheduler,
                policy,
                kernel,
                options.block_size,
                before_release=before_release,
                after_release=after_release,
            )
        if policy.shrinks_chunks:
            self._reserve_lookahead = scheduler._reserve_prefill_lookahead  # noqa: SLF001 - as below
            scheduler._reserve_prefill_lookahead = self._shrunk  # noqa: SLF001
        self._eviction: Eviction | None = None
        if overridden(policy, "eviction_rank"):
            self._eviction = Eviction(scheduler, policy, kernel, options.block_size)
        if self.retention is not None or self._eviction is not None:
            self._free_blocks = scheduler._free_blocks  # noqa: SLF001 - the seam, in vLLM 0.29 to 0.33
            scheduler._free_blocks = self._turn_ended  # noqa: SLF001

    def order_waiting(self) -> None:
        """Puts those that wait into the policy's order."""
        queue, work = self._scheduler.waiting, self._work
        if len(queue) < 2:
            return
        waiting = [work[request.request_id].turn for request in queue]
        ordered = [
            work[turn.number].request for turn in self.policy.order_waiting(waiting, now=self._kernel.now)
        ]
        if {turn.number for turn in waiting} != {request.request_id for request in ordered}:
            raise ValueError("a policy must order all that wait, and nobody else")
        queue.clear()
        queue.extend(ordered)

    def _shrunk(self, request: Any, computed: int, tokens: int) -> int:
        """What vLLM asks before it allocates, of those that run and of those that wait."""
        tokens = self._reserve_lookahead(request, computed, tokens)
        manager = self._scheduler.kv_cache_manager
        free: int = manager.block_pool.get_num_free_blocks()
        (own,) = manager.coordinator.get_blocks(request.request_id)
        if not own:
            # Its hits may be among those that are free.
            free -= -(-computed // self._block_size)
        room = (max(len(own), -(-computed // self._block_size)) + free) * self._block_size - computed
        return min(tokens, room) if room >= min(tokens, self._block_size) else int(tokens)

    def _turn_ended(self, request: Any) -> None:
        """In place of the scheduler's own method, for a request that is finished."""
        work = self._work.get(request.request_id)
        if work is None:  # it ended long ago, and another replica has it now
            self._free_blocks(request)
            return
        turn = work.turn
        (blocks,) = self._scheduler.kv_cache_manager.coordinator.get_blocks(request.request_id)
        if self._eviction is not None:
            self._eviction.ended(turn, blocks)
        if self.retention is not None:
            self.retention.ended(turn, blocks)
        self._free_blocks(request)
