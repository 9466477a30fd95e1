"""Sessions tenant by tenant: whose are most, and which of those was not seen for longest.

Invariants: `add`, `touch` and `remove` take a bounded number of steps, however many tenants and sessions
there are; a tenant without sessions leaves no trace.
"""

from collections import OrderedDict
from collections.abc import Iterator

from gateway.domain.ids import SessionId, TenantId
from gateway.workflow.turns import Session


class ByTenant:
    def __init__(self) -> None:
        self._sessions: dict[TenantId, OrderedDict[SessionId, Session]] = {}
        """Of each tenant the longest unseen first."""
        self._with: dict[int, dict[TenantId, None]] = {}
        self._most = 0

    def add(self, session: Session) -> None:
        held = self._sessions.setdefault(session.tenant, OrderedDict())
        held[session.id] = session
        self._count(session.tenant, len(held) - 1, len(held))

    def touch(self, session: Session) -> None:
        self._sessions[session.tenant].move_to_end(session.id)

    def remove(self, session: Session) -> None:
        held = self._sessions[session.tenant]
        del held[session.id]
        self._count(session.tenant, len(held) + 1, len(held))
        if not held:
            del self._sessions[session.tenant]

    def longest_unseen(self) -> Session:
        tenant = next(iter(self._with[self._most]))
        return next(iter(self._sessions[tenant].values()))

    def newest_first(self, tenant: TenantId) -> Iterator[Session]:
        return reversed(self._sessions.get(tenant, OrderedDict()).values())

    def _count(self, tenant: TenantId, before: int, now: int) -> None:
        if before:
            del self._with[before][tenant]
            if not self._with[before]:
                del self._with[before]
        if now:
            self._with.setdefault(now, {})[tenant] = None
        if now > self._most or (before == self._most and before not in self._with):
            self._most = now
