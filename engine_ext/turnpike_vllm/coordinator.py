"""Who runs next, within the class that a gateway gave?

Source: MARS, §3 and §4.3 (priority-aware coordinator: windowed multi-level feedback queue); Sutradhara, §4.3
    (by arrival of the task, not of its calls).
Symbols: the text has none; ``levels`` are its queues, ``quota`` its strict token quotas, `ServiceWindow` its
    window.
Deviations: the footprint by which a call enters is what it adds to memory: what is resident already costs
    nothing to run, and a continuation is what is to be favoured. The paper promotes "calls that have waited
    too long"; here a call rises one level each ``promote_after_s`` and is overdue after ``max_wait_s``, which
    crosses classes.
Invariants: ranks order totally; among requests of one class that do not run, each is overdue after
    ``max_wait_s``, and overdue ones go first in order of arrival: nobody waits for ever behind newcomers.
"""

from bisect import bisect_left
from dataclasses import dataclass, field
from functools import cached_property
from typing import NamedTuple

from turnpike_vllm.hints import ServiceClass


@dataclass(frozen=True, kw_only=True)
class CoordinatorConfig:
    footprints: tuple[int, ...] = (1_024, 4_096, 16_384)
    """A call that adds more tokens than the n-th enters below the n-th level."""
    quotas: tuple[int, ...] = (8_192, 32_768, 131_072)
    """A session that got more than the n-th many tokens of service in the window is below the n-th level."""
    window_s: float = 60.0
    promote_after_s: float = 5.0
    max_wait_s: float = 30.0
    headroom: float = 0.5
    """The share of a step's tokens that a lower prefill leaves to better calls that wait."""

    @property
    def levels(self) -> int:
        return max(len(self.footprints), len(self.quotas)) + 1


class Rank(NamedTuple):
    """Smaller goes first."""

    not_overdue: bool
    service: ServiceClass
    level: int
    task: float
    """When the session's task arrived."""
    arrived: float


_SLOTS = 8


@dataclass(slots=True)
class ServiceWindow:
    """Tokens of service in the last ``window_s``, to within an eighth of it."""

    window_s: float
    total: int = 0
    _slots: list[int] = field(default_factory=lambda: [0] * _SLOTS)
    _slot: int = 0

    def add(self, tokens: int, *, now: float) -> None:
        if int(now * _SLOTS / self.window_s) > self._slot:
            self.slide(now=now)
        self._slots[self._slot % _SLOTS] += tokens
        self.total += tokens

    def slide(self, *, now: float) -> int:
        """Forget what is too old; returns what is left."""
        slot = int(now * _SLOTS / self.window_s)
        if slot <= self._slot:
            return self.total
        for passed in range(min(slot - self._slot, _SLOTS)):
            gone = (self._slot + 1 + passed) % _SLOTS
            self.total -= self._slots[gone]
            self._slots[gone] = 0
        self._slot = slot
        return self.total

    def is_at_least(self, tokens: int, *, now: float) -> None:
        """Another engine served the session too: count no less than this."""
        missing = tokens - self.slide(now=now)
        if missing > 0:
            self.add(missing, now=now)


@dataclass(frozen=True)
class Coordinator:
    config: CoordinatorConfig

    @cached_property
    def _footprints(self) -> list[int]:
        return sorted(self.config.footprints)

    @cached_property
    def _quotas(self) -> list[int]:
        return sorted(self.config.quotas)

    def level(self, *, added_tokens: int, attained: int) -> int:
        """The level of a call: of where it enters and where its session's service has brought it, the
        lower."""
        return max(bisect_left(self._footprints, added_tokens), bisect_left(self._quotas, attained))

    def rank(self, *, service: ServiceClass, level: int, task: float, arrived: float, now: float) -> Rank:
        """Of a waiting call, which waits since ``arrived``."""
        rises, overdue = self._passed(arrived, now=now)
        # Overdue calls are equals, whatever they were; the one that waits longest is first.
        return Rank(
            not overdue,
            service,
            0 if overdue else max(level - rises, 0),
            arrived if overdue else task,
            arrived,
        )

    def next_rise(self, *, arrived: float, now: float) -> float | None:
        """When the rank of a waiting call changes next, always after ``now``; None once it is overdue."""
        return min((due for due in self._changes(arrived) if due > now), default=None)

    def _passed(self, arrived: float, *, now: float) -> tuple[int, bool]:
        """How many levels a call has risen, and whether it is overdue."""
        *rises, overdue = self._changes(arrived)
        return sum(due <= now for due in rises), overdue <= now

    def _changes(self, arrived: float) -> list[float]:
        """The moments at which the rank of a call changes: a rise for each level, and when it is overdue.

        The one definition of "due": `rank` sees what `next_rise` announced, however the sums are rounded.
        """
        config = self.config
        overdue = arrived + config.max_wait_s
        rises = [min(arrived + rise * config.promote_after_s, overdue) for rise in range(1, config.levels)]
        return [*rises, overdue]
