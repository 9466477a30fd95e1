"""Carries out retention and eviction order on the engine's block pool."""

from bisect import bisect_left
from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Any

from turnpike_vllm.eviction import Evictor
from turnpike_vllm.hints import Hint
from turnpike_vllm.pool import KvPool
from turnpike_vllm.request_state import RequestState
from turnpike_vllm.retention import Reason, Release, Retention, Thread
from turnpike_vllm.sessions import DEFAULT_REUSE, Session, Sessions, ThreadPolicy
from turnpike_vllm.step_time import StepTimeModel

FINAL_REUSE = 0.25
"""After a task's last answer, somebody may ask for more; so too where no hint says anything."""


class KvRetainer:
    def __init__(
        self,
        pool: KvPool,
        sessions: Sessions,
        pace: StepTimeModel,
        retention: Retention[Any] | None,
        evictor: Evictor[Any] | None,
    ) -> None:
        self.pool = pool
        self.sessions = sessions
        self.pace = pace
        self.retention = retention
        self.evictor = evictor
        self.holds: Counter[str] = Counter()
        self.releases: Counter[str] = Counter()
        self.saved_s = 0.0
        """Seconds of prefill of what was held until its thread returned: without it, all might be lost."""

    def turn_ended(self, state: RequestState, *, is_normal: bool, is_blocked: bool, now: float) -> None:
        """Called while the request still has its blocks."""
        if self.retention is None and self.evictor is None:
            return
        blocks = self.pool.cached_blocks(state.request.request_id)
        if not blocks:
            return  # it never ran: what its thread left before is as good as it was
        policy = self.sessions.policy(state.thread)
        if self.evictor is not None:
            self._claim(self.evictor, state, blocks, is_over=self._reuse(state, policy) <= 0.0)
        if self.retention is not None and is_normal and state.session is not None:
            self._hold(self.retention, state, blocks, policy, is_blocked, now)

    def preempted(self, state: RequestState) -> None:
        """It loses its blocks, and comes back."""
        if self.evictor is not None and state.session is not None:
            blocks = self.pool.cached_blocks(state.request.request_id)
            if blocks:
                self._claim(self.evictor, state, blocks)

    def admitted(self, state: RequestState, now: float) -> None:
        """The request has taken up what it could use of its thread's state."""
        if self.retention is not None and (hold := self.retention.get(state.thread)):
            self.saved_s += self._warm_s(hold.blocks)
            self.release(self.retention.drop(state.thread, Reason.RETURNED), now)

    def apply_hint(self, hint: Hint, *, now: float) -> None:
        """A hint that was followed, about a pause that may be going on."""
        if self.retention is not None:
            thread = Thread(hint.session, hint.thread)
            if hint.is_finished:
                self.release(self.retention.drop_session(hint.session, Reason.FINISHED), now)
            else:
                ttl_s = self._named_ttl(hint.retain_s, hint.prefetch_in_s)
                self.release(self.retention.change(thread, ttl_s=ttl_s, reuse=hint.reuse, now=now), now)
        if self.evictor is not None:
            self._expect(self.evictor, hint)

    def expire(self, now: float) -> None:
        self.release([] if self.retention is None else self.retention.expire(now=now), now)

    def next_deadline(self) -> float | None:
        """When `expire` has something to do."""
        return None if self.retention is None else self.retention.next_deadline()

    def observe(self, *, is_blocked: bool, now: float) -> None:
        if self.retention is not None:
            used = self.pool.total_blocks - self.pool.free_blocks - self.retention.held_blocks
            released = self.retention.observe(used_blocks=max(used, 0), is_blocked=is_blocked, now=now)
            self.release(released, now)

    def make_room(
        self, state: RequestState, *, is_running: bool, is_alone: bool, waited_s: float, now: float
    ) -> bool:
        """A request finds no memory. Whether it should try again."""
        retention = self.retention
        if retention is None:
            return False
        reason = retention.may_take(is_running=is_running, is_alone=is_alone, waited_s=waited_s)
        if reason is None or (reason is Reason.WAITED and not self._would_help(state, retention.held_blocks)):
            return False
        self.release(retention.take_cheapest(reason, keep=state.thread, now=now), now)
        return True

    def reset(self) -> None:
        """The cache is about to be emptied."""
        if self.retention is not None:
            self.release(self.retention.clear(Reason.RESET), 0.0)
        if self.evictor is not None:
            self.evictor.clear()

    def abandon(self) -> None:
        """Free what is held, and touch nothing else: something here is broken."""
        self.pool.let_go_of_everything()
        if self.retention is not None:
            self.releases[Reason.GIVEN_UP.value] += len(self.retention.clear(Reason.GIVEN_UP))
        if self.evictor is not None:
            self.evictor.clear()

    def let_go_of_everything(self) -> None:
        if self.retention is not None:
            self.release(self.retention.clear(Reason.GIVEN_UP), 0.0)

    def retained_by_session(self) -> Counter[str]:
        found: Counter[str] = Counter()
        for hold in self.retention.holds if self.retention is not None else ():
            found[hold.thread.session] += len(hold.blocks)
        return found

    def resident(self, session: Session) -> int:
        """Blocks that the session's threads left and that are still there; shared ones count for each thread.

        What is overwritten is overwritten from the leaf on, so halving finds the end of what is there."""
        return sum(self._resident_of(Thread(session.name, name)) for name in session.threads)

    def _resident_of(self, thread: Thread) -> int:
        chain = None if self.evictor is None else self.evictor.chain(thread)
        if chain is None:
            hold = None if self.retention is None else self.retention.get(thread)
            return 0 if hold is None else len(hold.blocks)
        return bisect_left(
            range(len(chain.blocks)),
            True,
            key=lambda place: chain.blocks[place].block_hash != chain.hashes[place],
        )

    def _would_help(self, state: RequestState, blocks: int) -> bool:
        """Whether so many blocks that are held would make room for the whole prompt: else it waits for others
        to finish."""
        size = self.pool.block_size
        resident = min(self.pool.resident_tokens(state.request), state.request.num_tokens)
        needed = -(-(state.request.num_tokens - resident) // size)
        return bool(needed <= self.pool.free_blocks + blocks)

    def _hold(
        self,
        retention: Retention[Any],
        state: RequestState,
        blocks: list[Any],
        policy: ThreadPolicy | None,
        is_blocked: bool,
        now: float,
    ) -> None:
        named = self._named_ttl(policy.retain_s, policy.prefetch_in_s) if policy is not None else None
        is_final = state.is_final or (policy is not None and policy.is_final)
        if (state.session is not None and state.session.is_finished) or (is_final and named is None):
            return
        ttl_s = retention.ttl(named)
        reuse = self._reuse(state, policy)
        is_held = retention.is_worth_it(
            len(blocks), ttl_s=ttl_s, reuse=reuse, warm_s=self._warm_s(blocks), blocked=is_blocked
        )
        self.holds["held" if is_held else "not_worth_it"] += 1
        if is_held:
            self.pool.hold(blocks)
            self.release(retention.hold(state.thread, blocks, ttl_s=ttl_s, reuse=reuse, now=now), now)

    def _warm_s(self, blocks: Sequence[Any]) -> float:
        return self.pace.per_token_s * len(blocks) * self.pool.block_size

    def _claim(
        self, evictor: Evictor[Any], state: RequestState, blocks: list[Any], *, is_over: bool = False
    ) -> None:
        # Without hints, all requests that end alike are one: else each would leave something, for ever.
        owner = state.thread if state.session is not None else ("", blocks[-1].block_hash)
        evictor.claim(owner, blocks, is_over=is_over)

    def _expect(self, evictor: Evictor[Any], hint: Hint) -> None:
        if hint.is_finished:
            session = self.sessions.get(hint.session)
            for name in session.threads if session is not None else (hint.thread,):
                evictor.expect(Thread(hint.session, name), is_over=True)
        elif hint.reuse is not None:
            evictor.expect(Thread(hint.session, hint.thread), is_over=hint.reuse == 0.0)

    def _reuse(self, state: RequestState, policy: ThreadPolicy | None) -> float:
        if state.session is not None and state.session.is_finished:
            return 0.0
        if policy is not None and policy.reuse is not None:
            return policy.reuse
        return FINAL_REUSE if state.session is None or state.is_final else DEFAULT_REUSE

    def _named_ttl(self, retain_s: float | None, prefetch_in_s: float | None) -> float | None:
        """An expected return is held for too, and a while beyond it."""
        if retain_s is not None or prefetch_in_s is None or self.retention is None:
            return retain_s
        return prefetch_in_s + self.retention.config.grace_s

    def release(self, releases: Iterable[Release[Any]], now: float) -> None:
        """Let go of what the holds held."""
        for hold, reason in releases:
            self.releases[reason.value] += 1
            self.pool.let_go(hold.blocks)
            if self.evictor is not None:
                self.evictor.wake(hold.thread)
