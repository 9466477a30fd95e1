"""Who runs next, within the class that a gateway gave?

Source: Sutradhara, §4.3 (by arrival of the task, not of its calls); MARS, §3 and §4.3 (priority-aware
    coordinator; "calls that have waited too long" are promoted).
Deviations: MARS's windowed feedback queue (levels by a call's footprint and by its session's service) is not
    built: the age of the task alone makes sessions quicker
    (docs/design/decisions/0021-order-by-the-age-of-the-task.md). What is overdue crosses classes.
Invariants: ranks order totally; among requests of one class that do not run, each is overdue after
    ``max_wait_s``, and overdue ones go first in order of arrival: nobody waits for ever behind older tasks.
"""

from dataclasses import dataclass
from typing import NamedTuple

from turnpike_vllm.hints import ServiceClass


@dataclass(frozen=True, kw_only=True)
class CoordinatorConfig:
    max_wait_s: float = 30.0
    """Without service for so long, a request goes before all that are not."""
    headroom: float = 0.5
    """The share of a step's tokens that a running prompt of a worse class leaves, at most, to a better call
    that waits. 0: none. From 0.1 to 1, times to first token of 200 or 1,500 new tokens differ by a fifth."""


class Rank(NamedTuple):
    """Smaller goes first."""

    not_overdue: bool
    service: ServiceClass
    task: float
    """When the session's task arrived."""
    arrived: float


@dataclass(frozen=True)
class Coordinator:
    config: CoordinatorConfig

    def rank(self, *, service: ServiceClass, task: float, arrived: float, now: float) -> Rank:
        """Of a waiting call, which waits since ``arrived``."""
        overdue = self._overdue_at(arrived) <= now
        # Overdue calls are equals, whatever they were; the one that waits longest is first.
        return Rank(not overdue, service, arrived if overdue else task, arrived)

    def next_rise(self, *, arrived: float, now: float) -> float | None:
        """When the rank of a waiting call changes, always after ``now``; None once it is overdue."""
        overdue_at = self._overdue_at(arrived)
        return overdue_at if overdue_at > now else None

    def _overdue_at(self, arrived: float) -> float:
        """The one definition of "due": `rank` sees what `next_rise` announced, however the sum is rounded."""
        return arrived + self.config.max_wait_s
