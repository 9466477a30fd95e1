"""What was learned of one tenant's sessions, besides their steps: tools, calls in texts.

Invariants: nothing here is read for another tenant; at most `max_tenants` tenants are remembered, the longest
unseen is forgotten; the tools of all together have one bound.
"""

from gateway.domain.ids import TenantId
from gateway.domain.tenant_lru import TenantLru
from gateway.tool_probe.durations import Durations, DurationsConfig, Tools
from gateway.tool_probe.text_calls import TextCalls


class Learned:
    """Of one tenant."""

    __slots__ = ("durations", "text_calls")

    def __init__(self, durations: Durations) -> None:
        self.durations = durations
        self.text_calls = TextCalls()


class LearnedByTenant:
    def __init__(self, durations: DurationsConfig, *, max_tenants: int) -> None:
        self._durations = durations
        self._tools: Tools = TenantLru(durations.max_tools)
        self._known: TenantLru[TenantId, None, Learned] = TenantLru(max_tenants)

    def __len__(self) -> int:
        return len(self._known)

    def of(self, tenant: TenantId) -> Learned:
        known = self._known.get(tenant, None)
        if known is None:
            known = Learned(Durations(self._durations, self._tools, tenant))
            self._known.put(tenant, None, known)
        return known
