"""Carries out the host tier: lets go of what the host has, and has it brought back before its return."""

import math
from collections import Counter
from collections.abc import Callable
from typing import Any, NamedTuple

from turnpike_vllm.hints import Hint, ServiceClass
from turnpike_vllm.host_tier import Fate, HostTier, Pause, Plan, State
from turnpike_vllm.offload import LAST, HostCopies, Luggage
from turnpike_vllm.pool import KvPool
from turnpike_vllm.request_state import ATTRIBUTE, RequestState
from turnpike_vllm.retention import Reason, Release, Retention, Thread
from turnpike_vllm.step_time import StepTimeModel

AGAIN_S = 0.02
"""What could not be done is tried again after so long."""
COPY_BOUND_S = 5.0
"""A copy that is not there after so long will not come: the host is full, say."""


class Calls(NamedTuple):
    """What the scheduler does for a call."""

    enqueue: Callable[[Any], None]
    abort: Callable[[Any], bool]
    """Whether its load had begun."""
    is_crowded: Callable[[], bool]
    """Whether anybody waits."""


class Ferry:
    def __init__(
        self,
        tier: HostTier[Luggage],
        copies: HostCopies,
        pool: KvPool,
        pace: StepTimeModel,
        retention: Retention[Any],
        release: Callable[[list[Release[Any]], float], None],
        calls: Calls,
    ) -> None:
        self.tier = tier
        self.copies = copies
        self.pool = pool
        self.pace = pace
        self.retention = retention
        self.release = release
        self.calls = calls
        self.counts: Counter[str] = Counter()
        self._asked: list[tuple[Any, Pause[Luggage]]] = []
        """Calls of this step."""
        self._under_way: dict[str, Pause[Luggage]] = {}

    # What happens to threads.

    def paused(
        self, state: RequestState, blocks: int, *, gap_s: float | None, ttl_s: float, reuse: float, now: float
    ) -> None:
        """A turn has ended, and its blocks are held, or not."""
        luggage = self.copies.luggage(state.request, blocks)
        if luggage is None or not luggage.on_host:
            return
        lost_s = self.pace.per_token_s * (blocks - luggage.on_host) * self.pool.block_size
        plan = self._plan(luggage, blocks, lost_s, gap_s=gap_s, ttl_s=ttl_s, reuse=reuse)
        if plan.fate is Fate.DROP:
            return
        self.tier.pause(state.thread, blocks, luggage, plan, lost_s=lost_s, gap_s=gap_s, reuse=reuse, now=now)
        if self.retention.get(state.thread) is None:
            self.tier.left(state.thread, now=now)

    def apply_hint(self, hint: Hint, *, now: float) -> None:
        """A hint about a pause that may be going on."""
        thread, gap_s = Thread(hint.session, hint.thread), hint.prefetch_in_s
        if hint.is_finished:
            for each in [each for each in self.tier.pauses if each.thread.session == hint.session]:
                self.tier.forget(each.thread)
        elif hint.reuse == 0.0 or hint.retain_s == 0.0:
            self.tier.forget(thread)
        pause = self.tier.get(thread)
        if pause is not None and gap_s is not None and pause.state is not State.CALLED:
            plan = self._plan(
                pause.luggage, pause.blocks, pause.lost_s, gap_s=gap_s, ttl_s=gap_s, reuse=pause.reuse
            )
            self.tier.expect(pause, gap_s=gap_s, plan=plan, now=now)

    def returning(self, thread: Thread) -> None:
        """Its next turn is here: it fetches what it needs itself."""
        pause = self.tier.get(thread)
        if pause is None:
            return
        self.counts["called_too_late" if pause.state is State.CALLED else "back_" + pause.state.value] += 1
        if pause.state is State.CALLED:
            self.tier.arm(pause, math.inf)
        else:
            self.tier.forget(thread)

    def released(self, thread: Thread, *, is_over: bool, now: float) -> None:
        """Its blocks are no longer held."""
        if is_over:
            self.tier.forget(thread)
        else:
            self.tier.left(thread, now=now)

    def clear(self) -> None:
        """Nothing is called back, and what is on its way is worth nothing."""
        self.tier.clear()
        for request, _ in self._asked:
            self.calls.abort(request)
        self._asked.clear()
        self._under_way.clear()

    # Room for others.

    def gives_way(self, thread: Thread, *, is_urgent: bool, now: float) -> tuple[Thread | None, int]:
        """Who may go for somebody of ``thread`` who needs memory: of those whose copy is there, the one that
        returns last. And how many blocks all who may go hold. If it is not urgent: those for whom going is
        cheaper."""
        found = [
            pause
            for pause in self.tier.pauses
            if pause.state is State.HERE
            and pause.thread != thread
            and (is_urgent or self.tier.may_go(pause, now=now))
        ]
        found.sort(key=lambda each: math.inf if each.returns_at is None else each.returns_at, reverse=True)
        first = next((each.thread for each in found if self.copies.has_all(each.luggage)), None)
        if first is not None:
            self.counts["gave_way"] += 1
        return first, sum(each.blocks for each in found)

    # What is due.

    def step(self, *, now: float) -> None:
        """Do what is due."""
        for pause in self.tier.due(now):
            if pause.state is State.HERE:
                self._demote(pause, now)
            elif pause.state is State.AWAY:
                self._call(pause, now)

    def _demote(self, pause: Pause[Luggage], now: float) -> None:
        hold = self.retention.get(pause.thread)
        if hold is None:
            return
        if self.copies.has_all(pause.luggage):
            self.counts["demoted"] += 1
            self.release(self.retention.drop(pause.thread, Reason.DEMOTED), now)
        elif now - hold.since < COPY_BOUND_S:
            self.tier.arm(pause, now + AGAIN_S)
        else:
            self.counts["never_copied"] += 1

    def _call(self, pause: Pause[Luggage], now: float) -> None:
        tier, luggage = self.tier, pause.luggage
        if pause.returns_at is None or now >= pause.returns_at or self.retention.has_given_up:
            self.counts["not_called"] += 1
            return
        here = self.pool.cached_prefix(luggage.hashes)
        missing = luggage.on_host - len(here)
        if missing <= 0:
            self.counts["still_there"] += 1
            self._keep(pause, here[: luggage.on_host], now)
            return
        is_full = self.calls.is_crowded() or tier.called >= tier.config.max_calls
        if is_full or not self._has_room(here, missing):
            self.counts["no_room"] += not pause.has_missed
            pause.has_missed = True
            tier.arm(pause, now + AGAIN_S)
        elif not self.copies.has_all(luggage):
            self.counts["not_on_host"] += 1
        else:
            request = self.copies.call(luggage)
            setattr(request, ATTRIBUTE, _row(request, pause.thread))
            self.calls.enqueue(request)
            self._asked.append((request, pause))
            pause.state = State.CALLED

    def _has_room(self, here: list[Any], missing: int) -> bool:
        """Nobody who runs or is held gives anything for a call."""
        free = self.pool.free_blocks - sum(1 for block in here if block.ref_cnt == 0)
        wanted = missing + int(self.tier.config.spare * self.pool.total_blocks) + 1
        budget = self.retention.config.budget * self.pool.total_blocks
        return free >= wanted and self.retention.held_blocks + len(here) + missing <= budget

    def after_step(self, now: float) -> None:
        """The calls of this step have their load, or will not get it: none stays in the queue."""
        asked, self._asked = self._asked, []
        for request, pause in asked:
            self._under_way[request.request_id] = pause
            if self.calls.abort(request):
                self.counts["called"] += 1
                continue
            self._under_way.pop(request.request_id, None)
            pause.state = State.AWAY
            self.counts["refused"] += not pause.has_missed
            pause.has_missed = True
            if self.tier.get(pause.thread) is pause:
                self.tier.arm(pause, now + AGAIN_S)

    def freeing(self, request: Any, now: float) -> None:
        """vLLM is about to free the blocks of a call: its load is done, or never began."""
        pause = self._under_way.pop(request.request_id, None)
        if pause is None or not request.num_computed_tokens:
            return
        self.pool.manager.cache_blocks(request, request.num_computed_tokens)
        if self.tier.get(pause.thread) is not pause:
            return  # over, meanwhile; a prefix of something else may still use it
        self.counts["brought_back"] += 1
        self._keep(pause, self.pool.cached_blocks(request.request_id), now)

    def _keep(self, pause: Pause[Luggage], blocks: list[Any], now: float) -> None:
        """Until a while after its expected return."""
        returns_in_s = 0.0 if pause.returns_at is None else max(0.0, pause.returns_at - now)
        ttl_s = self.retention.ttl(returns_in_s + self.retention.config.grace_s)
        self.tier.arrived(pause)
        self.pool.hold(blocks)
        held = self.retention.hold(pause.thread, blocks, ttl_s=ttl_s, reuse=pause.reuse, now=now)
        self.release(held, now)

    def _plan(
        self, luggage: Luggage, blocks: int, lost_s: float, *, gap_s: float | None, ttl_s: float, reuse: float
    ) -> Plan:
        pressure = max(self.retention.pressure, self.retention.blocked_share)
        return self.tier.decide(
            blocks,
            missing=self.copies.missing(luggage),
            lost_s=lost_s,
            gap_s=gap_s,
            ttl_s=ttl_s,
            reuse=reuse,
            pressure=pressure,
        )

    def watched(self, safely: Callable[[Callable[[], None]], Any]) -> tuple[Any, Callable[..., Any]]:
        """The connector, and what is to be its ``update_connector_output``."""
        return self.copies.watched(self._observe, safely)

    def _observe(self, to_host: bool, copied_bytes: float, seconds: float) -> None:
        self.tier.pace.observe(to_host=to_host, copied_bytes=copied_bytes, seconds=seconds)

    def snapshot(self) -> dict[str, Any]:
        pauses, pace = self.tier.pauses, self.tier.pace
        return {
            "here": sum(each.state is State.HERE for each in pauses),
            "away": sum(each.state is State.AWAY for each in pauses),
            "called": len(self._under_way),
            "to_host_bytes_per_s": pace.bytes_per_s(to_host=True),
            "to_device_bytes_per_s": pace.bytes_per_s(to_host=False),
            "break_even_s_per_1000_blocks": self.tier.break_even_s(1000, pressure=1.0),
        }


def _row(request: Any, thread: Thread) -> RequestState:
    """Behind everybody, for ever."""
    return RequestState(
        request=request,
        thread=thread,
        session=None,
        service_class=ServiceClass.PROACTIVE,
        task_at=math.inf,
        arrived=math.inf,
        priority=LAST,
        served_at=math.inf,
        is_call=True,
    )
