"""Carries out queue order, chunk sizes and piggybacking on the engine's scheduler."""

from collections import Counter
from collections.abc import Callable
from typing import Any

from turnpike_vllm.classes import ALL, BackgroundRequest, Piggyback, StepShare
from turnpike_vllm.coordinator import Coordinator, Rank
from turnpike_vllm.hints import ServiceClass
from turnpike_vllm.request_state import ATTRIBUTE, RequestState
from turnpike_vllm.retain.pool import KvPool
from turnpike_vllm.waiting import RankedQueue

# Who got service is noted every so many steps.
COUNT_EVERY = 8
# Where nothing changes, one in so many steps is looked at.
LOOK_EVERY = 8 * COUNT_EVERY


class StepPlanner:
    def __init__(
        self,
        scheduler: Any,
        pool: KvPool,
        state_of: Callable[[Any], RequestState],
        coordinator: Coordinator | None,
        piggyback: Piggyback | None,
        is_running: Callable[[Any], bool],
        watch: Callable[[bool], None],
    ) -> None:
        """``watch`` hears whether `chunk` and the memory of each request matter from now on."""
        self.scheduler = scheduler
        self.pool = pool
        self.state_of = state_of
        self.coordinator = coordinator
        self.piggyback = piggyback
        self.is_running = is_running
        self.watch = watch
        self.queue: RankedQueue[Any] | None = None
        self.order: Counter[str] = Counter()
        self.classes: Counter[str] = Counter()
        # Requests in the scheduler.
        self.live: Counter[ServiceClass] = Counter()
        self.has_headroom = True
        self._is_by_priority = getattr(getattr(scheduler, "policy", None), "value", None) == "priority"
        self.is_dirty = True
        # Everybody is running and decodes, and nobody is left out.
        self.is_steady = False
        self.steps = 0
        # Steps before this one decide nothing, as long as all that are here run and have memory.
        self.passes_until = 0
        # So many free blocks are enough for them.
        self.least_free = 0
        self._is_watched = True
        self._can_be_steady = scheduler.num_spec_tokens == 0
        # Requests that this step leaves out.
        self.left_out: frozenset[object] = frozenset()
        self._plan: StepShare = ALL
        self._is_prefilling = False
        # Tokens of prompts that this step computes.
        self.prefill = 0
        self._left = self._aged_left = 0
        self._reserve = 0
        self._reserved_for = ServiceClass.REACTIVE
        self._used = 0

    # The waiting queue asks for these.

    def rank(self, request: Any, now: float) -> tuple[bool, int, Rank]:
        """The server's own priorities count, where it has such, until a request is overdue."""
        state = self.state_of(request)
        rank = self._coordinator.rank(
            service=state.service_class,
            task=state.task_at,
            arrived=state.served_at,
            now=now,
        )
        return rank.not_overdue, state.priority if rank.not_overdue else 0, rank

    def next_rise(self, request: Any, now: float) -> float | None:
        return self._coordinator.next_rise(arrived=self.state_of(request).served_at, now=now)

    def enter(self, state: RequestState) -> None:
        if self.coordinator is not None:
            state.added_tokens = state.request.num_tokens - self.pool.resident_tokens(state.request)
        self.live[state.service_class] += 1

    def leave(self, state: RequestState) -> None:
        self.live[state.service_class] -= 1
        self.invalidate()  # whoever stepped aside for it need not any longer

    # Before and in a step.

    @property
    def is_due(self) -> bool:
        """Whether it is noted in this step who got service."""
        return self.steps % COUNT_EVERY == 0

    def invalidate(self) -> None:
        """Somebody came or went, or is another: the next step is looked at."""
        self.is_dirty = True
        self.passes_until = 0

    def leave_steady_state(self) -> None:
        """Not everybody decodes."""
        self.is_steady = False
        self.passes_until = 0

    def update_steady_state(self) -> None:
        """See whether what was decided for this step holds for the next ones."""
        self.is_steady = (
            self._can_be_steady
            and not self.left_out
            and self._has_all_running()
            and (self.is_steady or all(map(_decodes, self.scheduler.running)))
        )
        self.passes_until = 0
        if self.is_steady:
            self._is_prefilling = False
            self.passes_until = self.steps + LOOK_EVERY - self.steps % LOOK_EVERY
        if self.is_steady == self._is_watched:
            self._is_watched = not self.is_steady
            self.watch(self._is_watched)

    def _has_all_running(self) -> bool:
        """Nobody waits, and each can have another block."""
        scheduler = self.scheduler
        running = len(scheduler.running)
        self.least_free = self.pool.ample_blocks(running)
        return running == len(scheduler.requests) and self.pool.free_blocks >= self.least_free

    def before_step(self, *, is_reactive_alive: bool, now: float) -> None:
        running = self.scheduler.running
        self.prefill = 0
        is_due = self.is_due
        if is_due:
            for request in running:
                state = getattr(request, ATTRIBUTE, None) or self.state_of(request)
                if request.num_computed_tokens > state.counted:
                    state.served_at = now
                state.counted = request.num_computed_tokens
        if self.queue is not None:
            self.order["promoted"] += self.queue.advance(now)
        # While prompts are computed, every step is another; decoding goes on as it was.
        is_due = is_due or self.is_dirty or self._is_prefilling
        if self.is_dirty:
            self.is_steady = False
            self._sort(running)
        self._used = len(running)
        self._reserve = self._headroom() if self.queue and self.has_headroom else 0
        if self.piggyback is not None and is_due:
            self._plan = self._share(self.piggyback, is_reactive_alive, now)
            self.left_out = self._plan.left_out
        self._left, self._aged_left = self._plan.prefill_tokens, self._plan.aged_tokens

    def chunk(self, request: Any, computed: int, tokens: int, now: float) -> int:
        """How many of ``tokens`` a request may compute in this step; 0 leaves it out.

        Called for requests that compute a prompt, and for all while one is left out."""
        if request.request_id in self.left_out:
            self.classes["left_out"] += 1
            return 0
        if computed + 1 + self.scheduler.num_spec_tokens >= request.num_tokens:
            return tokens  # it decodes
        if getattr(request, "has_encoder_inputs", False):
            return tokens  # vLLM has just chosen which images go with these tokens
        tokens = self._chunk(self.state_of(request), computed, tokens, now)
        self._used += tokens
        self.prefill += tokens
        return tokens

    def _chunk(self, state: RequestState, computed: int, tokens: int, now: float) -> int:
        self._is_prefilling = True
        request = state.request
        runs = self.is_running(request)
        if state.service_class is ServiceClass.PROACTIVE and self._plan is not ALL:
            tokens = self._background_chunk(state, tokens, runs, now)
        if runs and tokens and self._reserve and state.service_class > self._reserved_for:
            most = self.scheduler.max_num_scheduled_tokens - self._used - self._reserve
            if most < tokens:
                self.order["headroom"] += 1
                tokens = min(tokens, max(most, self.pool.block_size))
        return tokens

    def _background_chunk(self, state: RequestState, tokens: int, runs: bool, now: float) -> int:
        allowed = min(tokens, self._left)
        if allowed < tokens and self._is_aged(state, now):
            # Behind one that waits and gets nothing vLLM lets in nobody: so it gets a token.
            allowed = max(allowed, min(tokens, self._aged_left), not runs)
            self._aged_left = max(0, self._aged_left - allowed)
            self.classes["aged_prefill"] += 1
        if not allowed:
            self.classes["held_back"] += 1
        elif allowed < tokens:
            self.classes["chunk_bounded"] += 1
        self._left = max(0, self._left - allowed)
        return allowed

    def _share(self, piggyback: Piggyback, is_reactive_alive: bool, now: float) -> StepShare:
        if not self.live[ServiceClass.PROACTIVE]:
            return ALL
        background: list[BackgroundRequest] = []
        self._is_prefilling = False
        reactive, context, prefill = 0, 0, 0
        spec, all_decode = self.scheduler.num_spec_tokens, self.is_steady
        for request in self.scheduler.running:
            state = getattr(request, ATTRIBUTE, None) or self.state_of(request)
            done = request.num_computed_tokens
            decodes = all_decode or done + 1 + spec >= request.num_tokens
            self._is_prefilling = self._is_prefilling or not decodes
            if state.service_class is ServiceClass.PROACTIVE:
                aged = self._is_aged(state, now)
                background.append(
                    BackgroundRequest(request.request_id, done, state.arrived, not decodes, aged)
                )
            elif decodes:
                reactive += 1
                context += done
            else:
                prefill += request.num_tokens - done
        # One that only waits makes nobody step aside: it may wait for their memory.
        plan = piggyback.plan(
            background,
            reactive_rows=reactive,
            reactive_context=context,
            reactive_prefill=min(prefill, self.scheduler.max_num_scheduled_tokens),
            is_reactive_alive=is_reactive_alive,
        )
        if plan.left_out:
            self.classes["steps_shared"] += 1
        return plan

    def _is_aged(self, state: RequestState, now: float) -> bool:
        if self.piggyback is not None and now - state.served_at >= self.piggyback.config.age_s:
            state.has_aged = True
        return state.has_aged

    def _headroom(self) -> int:
        """Tokens of this step that are for the best one that waits.

        Who waits makes no background work step aside (`_share`), and where a step holds less than
        ``preempt_s`` allows, a background prompt would fill one after another until it is done."""
        scheduler = self.scheduler
        if self.coordinator is None or self.queue is None:
            return 0
        if len(scheduler.running) >= self._places():
            return 0
        best = self.state_of(self.queue.peek_request())
        self._reserved_for = best.service_class
        most = int(self.coordinator.config.headroom * scheduler.max_num_scheduled_tokens)
        return min(best.added_tokens, most) if best.blocked_since is None else 0

    def _places(self) -> int:
        """Of requests that run at once; newer versions bound that apart from the model runner's slots."""
        scheduler = self.scheduler
        return int(getattr(scheduler, "max_num_active_reqs", scheduler.max_num_running_reqs))

    def _sort(self, running: list[Any]) -> None:
        """First come those that go first; vLLM preempts from the end, so there the largest of the worst
        is."""
        self.is_dirty = False
        if self.coordinator is None or len(running) < 2:
            return
        before = list(running)
        running.sort(key=self._running_key)
        if running != before:
            self.order["reordered"] += 1

    def _running_key(self, request: Any) -> tuple[float, ...]:
        if self._is_by_priority:
            # vLLM preempts the last in this order. Were that one scheduled before it in this very step, the
            # blocks that it was to fill would count as cached, and nobody would have filled them.
            return request.priority, request.arrival_time
        state = self.state_of(request)
        footprint = request.num_computed_tokens.bit_length()
        return state.service_class, footprint, state.task_at

    @property
    def _coordinator(self) -> Coordinator:
        assert self.coordinator is not None
        return self.coordinator


def _decodes(request: Any) -> bool:
    """Without speculative tokens."""
    return bool(request.num_computed_tokens + 1 >= request.num_tokens)
