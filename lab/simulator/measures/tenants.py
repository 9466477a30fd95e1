"""What each tenant got: its sessions, its promises kept, its progress.

A promise is the deadline that was set; where none was, `SLO_ALPHA` times what the session takes alone.
"""

from collections.abc import Iterator
from typing import Final

import msgspec

from lab.simulator.measures.fairness import Jain, progress
from lab.simulator.measures.goodput import is_in_time
from lab.simulator.results import SessionOutcome

SLO_ALPHA: Final = 2.0


class Tenant(msgspec.Struct):
    sessions: int = 0
    kept: int = 0
    completion_s: float = 0.0
    """Of all its sessions together."""
    progress: float = 0.0


class Tenants:
    def __init__(self) -> None:
        self._tenants: dict[str, Tenant] = {}
        self._sessions = Jain()

    def __iter__(self) -> Iterator[tuple[str, Tenant]]:
        """By name."""
        return iter(sorted(self._tenants.items()))

    def session_done(self, outcome: SessionOutcome) -> None:
        tenant = self._tenants.setdefault(outcome.tenant, Tenant())
        taken_s = outcome.end_s - outcome.arrival_s
        deadline_s = SLO_ALPHA * outcome.isolated_s if outcome.deadline_s is None else outcome.deadline_s
        made = 0.0 if outcome.failed else progress(taken_s, outcome.isolated_s)
        tenant.sessions += 1
        tenant.kept += not outcome.failed and is_in_time(taken_s, deadline_s)
        tenant.completion_s += taken_s
        tenant.progress += made
        self._sessions.add(made)

    @property
    def kept(self) -> float | None:
        """The share of all promises."""
        sessions = sum(tenant.sessions for tenant in self._tenants.values())
        return sum(tenant.kept for tenant in self._tenants.values()) / sessions if sessions else None

    @property
    def jain_sessions(self) -> float | None:
        return self._sessions.index

    @property
    def jain_tenants(self) -> float | None:
        jain = Jain()
        for _, tenant in self:
            jain.add(tenant.progress / tenant.sessions)
        return jain.index
