"""Which paused threads keep their KV, and who gives it up first?

Source: MARS, §4.3 (opportunistic co-scheduler: retained sessions for a bounded interval, by benefit against
    opportunity cost, reclaimed before a running victim); SAGA, §4.2 Alg. 1, Eq. 6 (time to live under
    pressure).
Symbols: ttl_base → ``ttl_s`` of the hint, else ``grace_s``; m → `Retention.pressure`; threshold_low,
    threshold_high → ``low``, ``high``; TTL_max → ``max_ttl_s``; P_reuse → ``Hold.reuse``.
Deviations: nothing is predicted here; the request itself brings a provisional time to live, later hints
    change it. m is measured without what is retained, else retention would shorten itself. Nothing is evicted
    at m = 1 as such: a running request takes what it needs at once, a waiting one after ``wait_s``. Under
    sustained pressure retention is given up as a whole until the pressure has gone.
Invariants: a thread has at most one hold; every hold has a deadline; what is held never exceeds the budget;
    every block that `Retention` was given is handed back exactly once, in a `Release`; a hold is never empty.
"""

import heapq
import math
from collections import Counter
from collections.abc import Hashable, Sequence
from dataclasses import dataclass, field
from enum import Enum
from itertools import takewhile
from typing import Any, Generic, NamedTuple, TypeVar

Block = TypeVar("Block")


class Thread(NamedTuple):
    """What state is kept by: a session's conversation."""

    session: str
    thread: str


class Reason(Enum):
    """Why a hold ended."""

    EXPIRED = "expired"
    RETURNED = "returned"
    """The next turn is here and holds what it uses itself."""
    SUPERSEDED = "superseded"
    """A newer turn of the thread left other state."""
    FINISHED = "finished"
    DROPPED = "dropped"
    """By a hint."""
    RUNNING = "running"
    """A running request needed the blocks."""
    WAITED = "waited"
    """A request had waited for memory long enough."""
    ALONE = "alone"
    """Nothing runs, so nothing else will make room for the request that waits."""
    BUDGET = "budget"
    GIVEN_UP = "given_up"
    RESET = "reset"


@dataclass(frozen=True, kw_only=True)
class RetentionConfig:
    grace_s: float = 2.0
    """How long the state of a live session is held after a turn for which no time was named."""
    max_ttl_s: float = 300.0
    wait_s: float = 1.0
    """Requests that wait for memory take retained blocks once one of them did for so long."""
    budget: float = 0.7
    """The share of all blocks that may be held. 0: nothing is."""
    low: float = 0.7
    high: float = 0.9
    """The shares of blocks used by requests between which a time to live shrinks to its half."""
    give_up_share: float = 0.5
    """Retention is given up when requests waited for memory for this share of the recent time,"""
    resume_share: float = 0.1
    """and resumed when they did for less than this."""
    recent_s: float = 10.0


@dataclass(eq=False)
class Hold(Generic[Block]):
    """Blocks of one thread, root first, held until ``until``."""

    thread: Thread
    blocks: Sequence[Block]
    reuse: float
    since: float
    until: float
    version: int = 0

    def worth(self, *, now: float) -> float:
        """Benefit of a warm resume for each block and second that the hold still costs.

        A prefill's time grows faster than its length, so a long state is worth more per block."""
        return self.reuse * (1.0 + len(self.blocks) / _LONG) / max(self.until - now, 0.05)


def _key(block: Any) -> Hashable:
    found: Hashable = getattr(block, "block_id", block)  # vLLM's blocks have no hash of their own
    return found


# Blocks at which attention costs about as much of a prefill as everything else.
_LONG = 512.0


class Release(NamedTuple, Generic[Block]):
    """The caller lets go of these blocks."""

    hold: Hold[Block]
    reason: Reason


@dataclass
class BlockedTimeShare:
    """For which share of the recent time was somebody waiting for memory?"""

    recent_s: float
    share: float = 0.0
    _at: float | None = None

    def observe(self, *, is_blocked: bool, now: float) -> float:
        """Say how it is now; it is taken to have been so since the last time."""
        passed = 0.0 if self._at is None else max(0.0, now - self._at)
        self._at = now
        kept = math.exp(-passed / self.recent_s)
        self.share = self.share * kept + (1.0 - kept) * is_blocked
        return self.share


@dataclass
class Retention(Generic[Block]):
    """All holds. Methods return what is to be released; the caller touches and frees the blocks."""

    config: RetentionConfig
    total_blocks: int
    is_divisible: bool = True
    """Whether a hold without its last blocks is worth anything: not where they are of several KV groups."""
    has_given_up: bool = False
    pressure: float = 0.0
    """m of Eq. 6."""
    _holds: dict[Thread, Hold[Block]] = field(default_factory=dict)
    _deadlines: list[tuple[float, int, Hold[Block]]] = field(default_factory=list)
    _count: int = 0
    _holders: Counter[Hashable] = field(default_factory=Counter)
    """By block: the holds that have it."""

    def __post_init__(self) -> None:
        self._blocked = BlockedTimeShare(self.config.recent_s)

    def __len__(self) -> int:
        return len(self._holds)

    @property
    def held_blocks(self) -> int:
        """A block that several hold counts once."""
        return len(self._holders)

    def get(self, thread: Thread) -> Hold[Block] | None:
        return self._holds.get(thread)

    @property
    def holds(self) -> list[Hold[Block]]:
        return list(self._holds.values())

    def observe(self, *, used_blocks: int, is_blocked: bool, now: float) -> list[Release[Block]]:
        """Blocks that requests use, and whether one waits for memory. Call it once a step."""
        used = used_blocks / self.total_blocks
        self.pressure = min(1.0, max(0.0, (used - self.config.low) / (self.config.high - self.config.low)))
        share = self._blocked.observe(is_blocked=is_blocked, now=now)
        if self.has_given_up:
            self.has_given_up = share > self.config.resume_share
        elif share > self.config.give_up_share:
            self.has_given_up = True
            return self.clear(Reason.GIVEN_UP)
        return []

    def is_worth_it(self, blocks: int, *, ttl_s: float, reuse: float, warm_s: float, blocked: int) -> bool:
        """Whether a hold gains more than it costs: a warm resume, times its probability, against the time
        for which the requests that wait for memory miss these blocks."""
        if self.has_given_up or not self.config.budget or not blocks or ttl_s <= 0.0 or reuse <= 0.0:
            return False
        cost_s = blocked * min(ttl_s, self.config.wait_s) * blocks / self.total_blocks
        return reuse * warm_s >= cost_s

    def ttl(self, named_s: float | None) -> float:
        """Alg. 1, line 4 and 5. Whoever named a time has followed them: it is not shortened twice."""
        ours_s = self.config.grace_s * (1.0 - 0.5 * self.pressure)
        return min(ours_s if named_s is None else named_s, self.config.max_ttl_s)

    def hold(
        self, thread: Thread, blocks: Sequence[Block], *, ttl_s: float, reuse: float, now: float
    ) -> list[Release[Block]]:
        """Hold blocks that the caller has touched. What the thread held before is superseded."""
        released = self.drop(thread, Reason.SUPERSEDED)
        hold = Hold(thread, blocks, reuse, now, now + ttl_s)
        self._holds[thread] = hold
        self._holders.update(map(_key, blocks))
        self._arm(hold)
        allowed = int(self.config.budget * self.total_blocks)
        while self.held_blocks > allowed:
            released += self.take_cheapest(Reason.BUDGET, self.held_blocks - allowed, now=now)
        return released

    def change(
        self, thread: Thread, *, ttl_s: float | None, reuse: float | None, now: float
    ) -> list[Release[Block]]:
        """A hint about a pause that is going on: hold for ``ttl_s`` from now (0 lets go), expect
        ``reuse``."""
        hold = self._holds.get(thread)
        if hold is None:
            return []
        if reuse is not None:
            hold.reuse = reuse
        if ttl_s is not None:
            hold.until = now + min(ttl_s, self.config.max_ttl_s)
            self._arm(hold)
        return self.drop(thread, Reason.DROPPED) if ttl_s == 0.0 or reuse == 0.0 else []

    def drop(self, thread: Thread, reason: Reason) -> list[Release[Block]]:
        hold = self._holds.pop(thread, None)
        if hold is None:
            return []
        hold.version = -1
        self._let_go(hold.blocks)
        return [Release(hold, reason)]

    def drop_session(self, session: str, reason: Reason) -> list[Release[Block]]:
        threads = [each for each in self._holds if each.session == session]
        return [release for each in threads for release in self.drop(each, reason)]

    def clear(self, reason: Reason) -> list[Release[Block]]:
        return [release for each in list(self._holds) for release in self.drop(each, reason)]

    def expire(self, *, now: float) -> list[Release[Block]]:
        released: list[Release[Block]] = []
        while self._deadlines and self._deadlines[0][0] <= now:
            _, version, hold = heapq.heappop(self._deadlines)
            if version == hold.version:
                released += self.drop(hold.thread, Reason.EXPIRED)
        return released

    def next_deadline(self) -> float | None:
        """When `expire` has something to do."""
        while self._deadlines and self._deadlines[0][1] != self._deadlines[0][2].version:
            heapq.heappop(self._deadlines)
        return self._deadlines[0][0] if self._deadlines else None

    def take_cheapest(
        self, reason: Reason, blocks: int, *, keep: Thread | None = None, now: float
    ) -> list[Release[Block]]:
        """Give up so many blocks, or all, of the hold that is worth least: its leaves, so that a prefix is
        left. That of ``keep`` only when no other is left; blocks that other holds have, too, only when there
        are no others."""
        cheapest = min(
            self._holds.values(),
            key=lambda each: (
                self._holders[_key(each.blocks[-1])] > 1,
                each.thread == keep,
                each.worth(now=now),
            ),
            default=None,
        )
        if cheapest is None:
            return []
        own = sum(
            1 for _ in takewhile(lambda each: self._holders[_key(each)] == 1, reversed(cheapest.blocks))
        )
        blocks = min(blocks, own)
        if not blocks or blocks == len(cheapest.blocks) or not self.is_divisible:
            return self.drop(cheapest.thread, reason)
        leaves, cheapest.blocks = cheapest.blocks[-blocks:], cheapest.blocks[:-blocks]
        self._let_go(leaves)
        return [
            Release(Hold(cheapest.thread, leaves, cheapest.reuse, cheapest.since, cheapest.until), reason)
        ]

    def may_take(self, *, is_running: bool, is_alone: bool, waited_s: float) -> Reason | None:
        """Whether a request that finds no memory may have retained blocks, and on what ground."""
        if not self._holds:
            return None
        if is_running:
            return Reason.RUNNING
        if is_alone:
            return Reason.ALONE
        return Reason.WAITED if waited_s >= self.config.wait_s else None

    def _let_go(self, blocks: Sequence[Block]) -> None:
        for each in map(_key, blocks):
            self._holders[each] -= 1
            if not self._holders[each]:
                del self._holders[each]

    def _arm(self, hold: Hold[Block]) -> None:
        self._count += 1
        hold.version = self._count
        heapq.heappush(self._deadlines, (hold.until, hold.version, hold))
        if len(self._deadlines) > 2 * len(self._holds) + 64:
            self._deadlines = [each for each in self._deadlines if each[1] == each[2].version]
            heapq.heapify(self._deadlines)
