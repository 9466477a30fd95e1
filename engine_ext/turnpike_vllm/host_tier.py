"""At a pause: does a thread's KV stay on the device, or does it go, and come back from the host in time?

Source: SAGA, §9.1.2 (leaving the device pays when the round trip over the bus is shorter than the gap);
    InferCept (Abhyankar et al., arXiv:2402.01869), which weighs the memory that preserving wastes against
    what swapping wastes.
Symbols: T_INT → ``gap_s``; T_swap → `CopyPace.seconds`, each way by itself; m of SAGA's Eq. 6 → ``pressure``.
Deviations: nothing is copied at the pause, because vLLM's native offload copies every block to the host
    once it is computed; at the pause it is only decided whether the device lets go. Both papers need the gap.
    Where nobody knows it, a thread stays for as long as going would cost and then goes, which costs at most
    twice the best (the rent-or-buy rule). A delay of the session weighs the more the less others need the
    blocks. Bandwidth is measured, not stated.
Invariants: until a copy has been measured, everything stays; a thread is remembered once, and at most
    ``max_threads`` of them; nobody is called back after the expected return, nor more than ``max_calls`` at
    once.
"""

import heapq
import math
from dataclasses import dataclass, field
from enum import Enum
from typing import Generic, NamedTuple, TypeVar

from turnpike_vllm.retention import Thread

Luggage = TypeVar("Luggage")


@dataclass(frozen=True, kw_only=True)
class HostTierConfig:
    early_s: float = 0.1
    """What is called back is to be there so long before its expected return."""
    max_calls: int = 4
    """Threads that are brought back at the same time; 0: none ever is."""
    spare: float = 0.05
    """A call leaves this share of all blocks free."""
    max_threads: int = 256
    """Pauses that are remembered; the oldest goes first."""


class Fate(Enum):
    """What becomes of a thread's blocks at a pause."""

    KEEP = "keep"
    DEMOTE = "demote"
    """They are let go as soon as the host has a copy."""
    DROP = "drop"


class Plan(NamedTuple):
    fate: Fate
    stay_s: float
    """When to demote what has not returned by then; infinite if never."""
    reason: str


@dataclass
class CopyPace:
    """How fast blocks are copied each way: by bytes, older copies counting less and less."""

    bytes_per_block: int
    _to_host: list[float] = field(default_factory=lambda: [0.0, 0.0])
    _to_device: list[float] = field(default_factory=lambda: [0.0, 0.0])

    def observe(self, *, to_host: bool, copied_bytes: float, seconds: float) -> None:
        if copied_bytes <= 0 or seconds <= 0:
            return
        known = self._to_host if to_host else self._to_device
        known[0] = known[0] * _KEPT + copied_bytes
        known[1] = known[1] * _KEPT + seconds

    def seconds(self, blocks: int, *, to_host: bool) -> float | None:
        """None before the first copy. What was copied only the other way is taken to be as fast."""
        known = self._to_host if to_host else self._to_device
        if not known[0]:
            known = self._to_device if to_host else self._to_host
        return blocks * self.bytes_per_block * known[1] / known[0] if known[0] else None

    def bytes_per_s(self, *, to_host: bool) -> float | None:
        known = self._to_host if to_host else self._to_device
        return known[0] / known[1] if known[1] else None


_KEPT = 0.95
"""Of what was measured, at every copy."""


class State(Enum):
    HERE = "here"
    """Held on the device."""
    AWAY = "away"
    CALLED = "called"
    """On its way back."""


@dataclass(eq=False)
class Pause(Generic[Luggage]):
    """A thread between two turns."""

    thread: Thread
    blocks: int
    luggage: Luggage
    """What it takes to find its blocks again."""
    lost_s: float
    """The time that computing anew takes for what the host does not have."""
    reuse: float
    returns_at: float | None
    """None if nobody knows."""
    state: State = State.HERE
    version: int = 0
    has_missed: bool = False
    """A call of it found no room."""


@dataclass
class HostTier(Generic[Luggage]):
    """All pauses. It says what is due; the caller moves blocks, and says what came of it."""

    config: HostTierConfig
    pace: CopyPace
    _pauses: dict[Thread, Pause[Luggage]] = field(default_factory=dict)
    _due: list[tuple[float, int, Pause[Luggage]]] = field(default_factory=list)
    _count: int = 0

    def __len__(self) -> int:
        return len(self._pauses)

    def get(self, thread: Thread) -> Pause[Luggage] | None:
        return self._pauses.get(thread)

    @property
    def pauses(self) -> list[Pause[Luggage]]:
        return list(self._pauses.values())

    @property
    def called(self) -> int:
        return sum(each.state is State.CALLED for each in self._pauses.values())

    def break_even_s(
        self, blocks: int, *, missing: int = 0, lost_s: float = 0.0, pressure: float
    ) -> float | None:
        """The gap for which staying costs as much as going; None before anything was measured.

        In seconds for which others miss the blocks: both copies occupy them too. The time by which the
        session is delayed, for the second copy if it returns unexpectedly and for what has to be computed
        anew (``lost_s``), weighs 1 / m."""
        out_s = self.pace.seconds(missing, to_host=True)
        in_s = self.pace.seconds(blocks, to_host=False)
        if out_s is None or in_s is None:
            return None
        return out_s + in_s + (in_s + lost_s) / pressure if pressure > 0.0 else math.inf

    def decide(
        self,
        blocks: int,
        *,
        missing: int = 0,
        lost_s: float = 0.0,
        gap_s: float | None,
        ttl_s: float,
        reuse: float,
        pressure: float,
    ) -> Plan:
        """Of a pause that begins. ``missing`` of the blocks are not on the host yet."""
        if reuse <= 0.0 or ttl_s <= 0.0:
            return Plan(Fate.DROP, 0.0, "not used again")
        even_s = self.break_even_s(blocks, missing=missing, lost_s=lost_s, pressure=pressure)
        if even_s is None:
            return Plan(Fate.KEEP, math.inf, "no copy was measured yet")
        if gap_s is None:
            return Plan(Fate.KEEP, even_s, "nobody knows for how long")
        if gap_s <= even_s:
            return Plan(Fate.KEEP, gap_s + even_s, "a short gap")
        return Plan(Fate.DEMOTE, 0.0, "a long gap")

    def pause(
        self,
        thread: Thread,
        blocks: int,
        luggage: Luggage,
        plan: Plan,
        *,
        lost_s: float = 0.0,
        gap_s: float | None,
        reuse: float,
        now: float,
    ) -> Pause[Luggage]:
        """A turn has ended, and its blocks are held."""
        self.forget(thread)
        if len(self._pauses) >= self.config.max_threads:
            self.forget(next(iter(self._pauses)))
        returns_at = None if gap_s is None else now + gap_s
        pause = Pause(thread, blocks, luggage, lost_s, reuse, returns_at)
        self._pauses[thread] = pause
        self.arm(pause, now + plan.stay_s)
        return pause

    def expect(self, pause: Pause[Luggage], *, gap_s: float, plan: Plan, now: float) -> None:
        """A hint says when it returns."""
        pause.returns_at = now + gap_s
        if pause.state is State.HERE:
            self.arm(pause, now + plan.stay_s)
        elif pause.state is State.AWAY:
            self._arm_call(pause, now)

    def left(self, thread: Thread, *, now: float) -> None:
        """Its blocks are no longer held: for whatever reason, it is away."""
        pause = self._pauses.get(thread)
        if pause is not None:
            pause.state = State.AWAY
            self._arm_call(pause, now)

    def arrived(self, pause: Pause[Luggage]) -> None:
        """Its blocks are held again; it stays until it returns, or its hold ends."""
        pause.state = State.HERE
        self.arm(pause, math.inf)

    def forget(self, thread: Thread) -> None:
        """It has returned, or never will."""
        pause = self._pauses.pop(thread, None)
        if pause is not None:
            pause.version = -1

    def clear(self) -> None:
        for thread in list(self._pauses):
            self.forget(thread)

    def due(self, now: float) -> list[Pause[Luggage]]:
        """Pauses for which it is time. Arm those that have to wait for something."""
        found: list[Pause[Luggage]] = []
        while self._due and self._due[0][0] <= now:
            _, version, pause = heapq.heappop(self._due)
            if version == pause.version:
                found.append(pause)
        return found

    def next_due(self) -> float | None:
        while self._due and self._due[0][1] != self._due[0][2].version:
            heapq.heappop(self._due)
        return self._due[0][0] if self._due else None

    def arm(self, pause: Pause[Luggage], at: float) -> None:
        self._count += 1
        pause.version = self._count
        if at < math.inf:
            heapq.heappush(self._due, (at, pause.version, pause))
        if len(self._due) > 2 * len(self._pauses) + 64:
            self._due = [each for each in self._due if each[1] == each[2].version]
            heapq.heapify(self._due)

    def may_go(self, pause: Pause[Luggage], *, now: float) -> bool:
        """Somebody waits for memory: whether going now is cheaper than staying for the rest of the gap."""
        if pause.state is not State.HERE:
            return False
        even_s = self.break_even_s(pause.blocks, lost_s=pause.lost_s, pressure=1.0)
        if even_s is None:
            return False
        return pause.returns_at is None or pause.returns_at - now > even_s

    def _arm_call(self, pause: Pause[Luggage], now: float) -> None:
        in_s = self.pace.seconds(pause.blocks, to_host=False)
        if pause.returns_at is None or in_s is None or not self.config.max_calls:
            self.arm(pause, math.inf)
        else:
            self.arm(pause, max(now, pause.returns_at - in_s - self.config.early_s))
