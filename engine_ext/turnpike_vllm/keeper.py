"""Carries out retention and eviction order on the engine's block pool."""

from bisect import bisect_left
from collections import Counter
from collections.abc import Iterable
from typing import Any

from turnpike_vllm.eviction import Evictor, by_block
from turnpike_vllm.hints import Hint
from turnpike_vllm.pace import Pace
from turnpike_vllm.pool import KvPool
from turnpike_vllm.retention import Reason, Release, Retention, Thread
from turnpike_vllm.rows import Row
from turnpike_vllm.sessions import DEFAULT_REUSE, Session, Sessions, ThreadPolicy

FINAL_REUSE = 0.25
"""After a task's last answer, somebody may ask for more; so too where no hint says anything."""
PREEMPTED_REUSE = 1.0
"""A preempted request comes back."""
_NEXT_TO_GO = frozenset({Reason.SUPERSEDED, Reason.RETURNED, Reason.FINISHED})
"""Once these have ended, what of the hold nobody uses is no prefix of anything that comes."""


class Keeper:
    def __init__(
        self,
        pool: KvPool,
        sessions: Sessions,
        pace: Pace,
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

    def turn_ended(self, row: Row, *, is_normal: bool, is_blocked: bool, now: float) -> None:
        """Called while the request still has its blocks."""
        if self.retention is None and self.evictor is None:
            return
        blocks = self.pool.cached_blocks(row.request.request_id)
        if not blocks:
            return  # it never ran: what its thread left before is as good as it was
        policy = self.sessions.policy(row.thread)
        if self.evictor is not None:
            self._claim(self.evictor, row, blocks, self._reuse(row, policy), now)
        if self.retention is not None and is_normal and row.session is not None:
            self._hold(self.retention, row, blocks, policy, is_blocked, now)

    def preempted(self, row: Row, now: float) -> None:
        """It loses its blocks, and comes back."""
        if self.evictor is not None:
            blocks = self.pool.cached_blocks(row.request.request_id)
            if blocks:
                self._claim(self.evictor, row, blocks, PREEMPTED_REUSE, now)

    def admitted(self, row: Row) -> None:
        """The request has taken up what it could use of its thread's state."""
        if self.retention is not None and self.retention.get(row.thread):
            self._release(self.retention.drop(row.thread, Reason.RETURNED))

    def heard(self, hint: Hint, *, now: float) -> None:
        """A hint that was followed, about a pause that may be going on."""
        if self.retention is not None:
            thread = Thread(hint.session, hint.thread)
            if hint.is_finished:
                self._release(self.retention.drop_session(hint.session, Reason.FINISHED))
            elif hint.is_superseded:
                self._release(self.retention.drop(thread, Reason.SUPERSEDED))
            else:
                ttl_s = self._named_ttl(hint.retain_s, hint.prefetch_in_s)
                self._release(self.retention.change(thread, ttl_s=ttl_s, reuse=hint.reuse, now=now))
        if self.evictor is not None:
            self._expect(self.evictor, hint, now)

    def expire(self, now: float) -> bool:
        """Let go of what is due. Whether anything was."""
        due = [] if self.retention is None else self.retention.expire(now=now)
        self._release(due)
        return bool(due)

    def observe(self, *, is_blocked: bool, now: float) -> None:
        if self.retention is not None:
            used = self.pool.total_blocks - self.pool.free_blocks - self.retention.held_blocks
            self._release(self.retention.observe(used_blocks=max(used, 0), is_blocked=is_blocked, now=now))

    def make_room(self, row: Row, *, is_running: bool, is_alone: bool, waited_s: float, now: float) -> bool:
        """A request finds no memory. Whether it should try again."""
        retention = self.retention
        if retention is None:
            return False
        reason = retention.may_take(is_running=is_running, is_alone=is_alone, waited_s=waited_s)
        if reason is None or (reason is Reason.WAITED and not self._would_help(row, retention)):
            return False
        self._release(retention.take_cheapest(reason, keep=row.thread, now=now))
        return True

    def reset(self) -> None:
        """The cache is about to be emptied."""
        if self.retention is not None:
            self._release(self.retention.clear(Reason.RESET))
        if self.evictor is not None:
            self.evictor.clear()

    def let_go_of_everything(self) -> None:
        if self.retention is not None:
            self._release(self.retention.clear(Reason.GIVEN_UP))

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

    def _would_help(self, row: Row, retention: Retention[Any]) -> bool:
        """Whether all that is held would make room for the whole prompt: else it waits for others to
        finish."""
        size = self.pool.block_size
        resident = min(self.pool.resident_tokens(row.request), row.request.num_tokens)
        needed = -(-(row.request.num_tokens - resident) // size)
        return bool(needed <= self.pool.free_blocks + retention.held_blocks)

    def _hold(
        self,
        retention: Retention[Any],
        row: Row,
        blocks: list[Any],
        policy: ThreadPolicy | None,
        is_blocked: bool,
        now: float,
    ) -> None:
        named = self._named_ttl(policy.retain_s, policy.prefetch_in_s) if policy is not None else None
        is_final = row.is_final or (policy is not None and policy.is_final)
        if (row.session is not None and row.session.is_finished) or (is_final and named is None):
            return
        ttl_s = retention.ttl(named)
        reuse = self._reuse(row, policy)
        warm_s = self.pace.per_token_s * len(blocks) * self.pool.block_size
        if not retention.is_worth_it(
            len(blocks), ttl_s=ttl_s, reuse=reuse, warm_s=warm_s, blocked=is_blocked
        ):
            self.holds["not_worth_it"] += 1
            return
        self.pool.hold(blocks)
        self.holds["held"] += 1
        self._release(retention.hold(row.thread, blocks, ttl_s=ttl_s, reuse=reuse, now=now))

    def _claim(self, evictor: Evictor[Any], row: Row, blocks: list[Any], reuse: float, now: float) -> None:
        prompt_blocks = row.request.num_prompt_tokens // self.pool.block_size
        tags = by_block(row.tags, prompt_blocks, is_final=row.is_final)
        superseded = evictor.claim(row.thread, blocks, reuse=reuse, tags=tags, now=now)
        self.pool.to_front(superseded)

    def _expect(self, evictor: Evictor[Any], hint: Hint, now: float) -> None:
        if hint.is_finished:
            session = self.sessions.get(hint.session)
            for name in session.threads if session is not None else (hint.thread,):
                evictor.expect(Thread(hint.session, name), 0.0, now=now)
        elif hint.is_superseded:
            self.pool.to_front(evictor.forget(Thread(hint.session, hint.thread)))
        elif hint.reuse is not None:
            evictor.expect(Thread(hint.session, hint.thread), hint.reuse, now=now)

    def _reuse(self, row: Row, policy: ThreadPolicy | None) -> float:
        if row.session is not None and row.session.is_finished:
            return 0.0
        if policy is not None and policy.reuse is not None:
            return policy.reuse
        return FINAL_REUSE if row.session is None or row.is_final else DEFAULT_REUSE

    def _named_ttl(self, retain_s: float | None, prefetch_in_s: float | None) -> float | None:
        """An expected return is held for too, and a while beyond it."""
        if retain_s is not None or prefetch_in_s is None or self.retention is None:
            return retain_s
        return prefetch_in_s + self.retention.config.grace_s

    def _release(self, releases: Iterable[Release[Any]]) -> None:
        for hold, reason in releases:
            self.releases[reason.value] += 1
            self.pool.let_go(hold.blocks, to_front=reason in _NEXT_TO_GO)
            if self.evictor is not None:
                self.evictor.wake(hold.thread)
