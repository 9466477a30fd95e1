"""Carries out retention on the engine's block pool."""

from collections import Counter
from collections.abc import Iterable
from typing import Any

from turnpike_vllm.hints import Hint
from turnpike_vllm.request_state import RequestState
from turnpike_vllm.retain.pool import KvPool
from turnpike_vllm.retain.retention import Reason, Release, Retention, Thread
from turnpike_vllm.sessions import DEFAULT_REUSE, Sessions, ThreadPolicy
from turnpike_vllm.step_time import StepTimeModel

# After a task's last answer, somebody may ask for more.
FINAL_REUSE = 0.25
# Blocks that are given up at a time: a request that runs takes a few in each step.
_AT_LEAST = 16


class KvRetainer:
    def __init__(
        self, pool: KvPool, sessions: Sessions, pace: StepTimeModel, retention: Retention[Any]
    ) -> None:
        self.pool = pool
        self.sessions = sessions
        self.pace = pace
        self.retention = retention
        self.holds: Counter[str] = Counter()
        self.releases: Counter[str] = Counter()
        # Seconds of prefill of what was held, and found by the turn that came back: an upper bound.
        self.saved_s = 0.0

    def turn_ended(self, state: RequestState, *, is_blocked: bool, now: float) -> None:
        """A request of a session has stopped by itself. Called while it still has its blocks."""
        session, retention = state.session, self.retention
        policy = self.sessions.policy(state.thread)
        named = self._named_ttl(policy.retain_s, policy.prefetch_in_s) if policy is not None else None
        is_final = state.is_final or (policy is not None and policy.is_final)
        if session is None or session.is_finished or (is_final and named is None):
            return
        blocks = self.pool.cached_blocks(state.request.request_id)
        warm_s = self.pace.per_token_s * self.pool.cached_tokens(state.request.request_id)
        ttl_s, reuse = retention.ttl(named), _reuse(state, policy)
        is_held = retention.is_worth_it(
            len(blocks), ttl_s=ttl_s, reuse=reuse, warm_s=warm_s, blocked=is_blocked
        )
        self.holds["held" if is_held else "not_worth_it"] += 1
        if is_held:
            self.pool.hold(blocks)
            self.release(retention.hold(state.thread, blocks, ttl_s=ttl_s, reuse=reuse, now=now))

    def admitted(self, state: RequestState, cached_tokens: int) -> None:
        """The request has taken up what it could use of its thread's state, and found so many tokens."""
        if hold := self.retention.get(state.thread):
            held_tokens = len(hold.blocks) * self.pool.block_size // self.pool.groups
            self.saved_s += self.pace.per_token_s * min(cached_tokens, held_tokens)
            self.release(self.retention.drop(state.thread, Reason.RETURNED))

    def apply_hint(self, hint: Hint, *, now: float) -> None:
        """A hint that was followed, about a pause that may be going on."""
        if hint.is_finished:
            self.release(self.retention.drop_session(hint.session, Reason.FINISHED))
            return
        thread = Thread(hint.session, hint.thread)
        ttl_s = self._named_ttl(hint.retain_s, hint.prefetch_in_s)
        self.release(self.retention.change(thread, ttl_s=ttl_s, reuse=hint.reuse, now=now))

    def expire(self, now: float) -> None:
        self.release(self.retention.expire(now=now))

    def observe(self, *, is_blocked: bool, now: float) -> None:
        used = self.pool.total_blocks - self.pool.free_blocks - self.retention.held_blocks
        self.release(self.retention.observe(used_blocks=max(used, 0), is_blocked=is_blocked, now=now))

    def make_room(
        self, state: RequestState, *, is_running: bool, is_alone: bool, waited_s: float, now: float
    ) -> bool:
        """A request finds no memory. Whether it should try again."""
        retention = self.retention
        reason = retention.may_take(is_running=is_running, is_alone=is_alone, waited_s=waited_s)
        if reason is None:
            return False
        missing = self._missing(state)
        if reason is Reason.WAITED and missing > retention.held_blocks:
            return False  # it waits for others to end
        blocks = max(missing, _AT_LEAST)
        self.release(retention.take_cheapest(reason, blocks, keep=state.thread, now=now))
        return True

    def reset(self) -> None:
        """The cache is about to be emptied."""
        self.release(self.retention.clear(Reason.RESET))

    def abandon(self) -> None:
        """Free what is held, and touch nothing else: something here is broken."""
        self.pool.let_go_of_everything()
        self.releases[Reason.GIVEN_UP.value] += len(self.retention.clear(Reason.GIVEN_UP))

    def let_go_of_everything(self) -> None:
        self.release(self.retention.clear(Reason.GIVEN_UP))

    def retained_by_session(self) -> Counter[str]:
        found: Counter[str] = Counter()
        for hold in self.retention.holds:
            found[hold.thread.session] += len(hold.blocks)
        return found

    def release(self, releases: Iterable[Release[Any]]) -> None:
        """Let go of what the holds held."""
        for hold, reason in releases:
            self.releases[reason.value] += 1
            self.pool.let_go(hold.blocks)

    def _missing(self, state: RequestState) -> int:
        """Blocks that it takes beside the free ones to hold the whole prompt."""
        size, request = self.pool.block_size, state.request
        resident = min(self.pool.resident_tokens(request), request.num_tokens)
        return int(-(-(request.num_tokens - resident) // size)) - self.pool.free_blocks

    def _named_ttl(self, retain_s: float | None, prefetch_in_s: float | None) -> float | None:
        """An expected return is held for too, and a while beyond it."""
        if retain_s is not None or prefetch_in_s is None:
            return retain_s
        return prefetch_in_s + self.retention.config.grace_s


def _reuse(state: RequestState, policy: ThreadPolicy | None) -> float:
    if policy is not None and policy.reuse is not None:
        return policy.reuse
    return FINAL_REUSE if state.is_final else DEFAULT_REUSE
