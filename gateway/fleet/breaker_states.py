"""The circuit breaker of a replica: its states as a table, and the settings (U5).

Source: as `circuit_breakers.py`, which decides the events. `EJECTED` is the open state, `TRIED` the half-open
one, `WARMING` slow start.

Invariants: a step that is not in the table raises; never more than a share of a pool is ejected, but one
replica may be, and those that serve no turn while another serves; never the last one.
"""

from typing import Annotated, Any, Final

import msgspec
from msgspec import Meta

from gateway.domain.ids import PoolId, ReplicaId, RequestId, TenantId
from gateway.domain.string_enums import Word
from gateway.fleet.outliers import Phase

_Seconds = Annotated[float, Meta(gt=0, le=3600)]


class HealthConfig(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    failures_until_out: Annotated[int, Meta(ge=1, le=1000)] = 3
    """Failed turns in a row (no answer, a cut one, a 5xx) before an ejection."""
    slow_until_out: Annotated[int, Meta(ge=1, le=1000)] = 3
    """Slow turns in a row before an ejection."""
    slow_factor: Annotated[float, Meta(ge=1, le=100)] = 2.0
    """A first token is slow after so many times its expected p90, and the time of its prompt and those before
    it with nothing cached, …"""
    slow_least_s: _Seconds = 0.25
    """… and after this time."""
    ejection_s: _Seconds = 5.0
    """Duration of a first ejection; twice as long each time after it, …"""
    max_ejection_s: _Seconds = 60.0
    """… up to this."""
    slow_start_s: _Seconds = 10.0
    """Until a returned replica has its full share."""
    max_ejected_share: Annotated[float, Meta(ge=0, le=1)] = 0.5
    """Share of a pool that may be ejected; 0: none."""
    slow_ejections_limit: Annotated[int, Meta(ge=1, le=100)] = 5
    """Ejections in a row for slowness, before a replica counts as slow by nature."""


class BreakerState(Word):
    UP = "up"
    EJECTED = "ejected"
    TRIED = "tried"
    WARMING = "warming"
    DOWN = "down"


SERVING: Final = (BreakerState.UP, BreakerState.WARMING)
OUT: Final = (BreakerState.EJECTED, BreakerState.TRIED)
# So long a tenant's failures count as its own, after another tenant's success on the same replica; a replica
# without a success for so long is ejected even beyond `max_ejected_share`.
_LATELY_S: Final = 30.0
# Its turns fail, but too few others are left for an ejection.
FAILING: Final = "failing"

MAY_BECOME: Final = {
    BreakerState.UP: (BreakerState.EJECTED, BreakerState.DOWN),
    BreakerState.EJECTED: (BreakerState.TRIED, BreakerState.DOWN),
    BreakerState.TRIED: (BreakerState.WARMING, BreakerState.EJECTED, BreakerState.DOWN),
    BreakerState.WARMING: (BreakerState.UP, BreakerState.EJECTED, BreakerState.DOWN),
    BreakerState.DOWN: (BreakerState.WARMING, BreakerState.UP),
}


class Awaited(msgspec.Struct, eq=False):
    """A turn before its first token, or its end."""

    breaker: "CircuitBreaker"
    sent_s: float
    patience_s: float
    """It is slow after this, and each such time until its first token; infinite if that is not visible."""
    end_patience_s: float
    overdue_s: float
    worst_s: float
    """Part of `CircuitBreaker.ahead_s` until its first token."""
    phase: Phase = Phase.START
    is_overdue: bool = False
    is_late: bool = False
    """Counted as late in this phase."""
    output_tokens: float | None = None

    def leave_queue(self) -> None:
        self.breaker.ahead_s = max(0.0, self.breaker.ahead_s - self.worst_s)
        self.worst_s = 0.0

    def can_be_judged(self, output_tokens: int | None) -> bool:
        """At its end: a longer answer may take longer; one of unknown length is no evidence."""
        if self.phase is Phase.END:
            if output_tokens is None or not self.output_tokens:
                return False
            longer = max(1.0, output_tokens / self.output_tokens)
            self.overdue_s += (longer - 1.0) * self.patience_s
            self.patience_s *= longer
        return True


class Changed(msgspec.Struct, frozen=True):
    replica: ReplicaId
    state: str
    """Of its circuit breaker, or `FAILING`."""
    why: str


def _keep_two(of: dict[TenantId, Any], tenant: TenantId, value: float) -> None:
    of.pop(tenant, None)
    of[tenant] = value
    if len(of) > 2:
        del of[next(iter(of))]


class CircuitBreaker(msgspec.Struct, kw_only=True, eq=False):
    replica: ReplicaId
    pool: PoolId
    state: BreakerState = BreakerState.DOWN
    since_s: float = 0.0
    failures: int = 0
    failed_effort: int = 0
    failed_of: tuple[TenantId, ...] = ()
    """Tenants of the failures in a row, two at most."""
    failed: dict[TenantId, int] = msgspec.field(default_factory=dict)
    """The last two tenants with failures since another's success, and the effort of their turns."""
    excused_s: dict[TenantId, float] = msgspec.field(default_factory=dict)
    """When another tenant succeeded after their failures, with as much effort."""
    served_s: float = float("-inf")
    """The last success."""
    slow: dict[Phase, int] = msgspec.field(default_factory=dict)
    """Slow turns in a row."""
    ahead_s: float = 0.0
    """Prefill time of the prompts without a first token, with nothing cached."""
    ejections: int = 0
    """In a row."""
    slow_ejections: int = 0
    why: str = ""
    """Of the last ejection, or of `FAILING`."""
    trial: RequestId | None = None

    def due_s(self, config: HealthConfig) -> float:
        """When it is tried, or warm."""
        if self.state is BreakerState.EJECTED:
            doubled_s = config.ejection_s * 2.0 ** min(30, max(0, self.ejections - 1))
            return self.since_s + min(doubled_s, config.max_ejection_s)
        return self.since_s + config.slow_start_s if self.state is BreakerState.WARMING else float("inf")

    def serves(self, *, now: float) -> bool:
        return now - self.served_s < _LATELY_S

    def excuses(self, tenant: TenantId, *, now: float) -> bool:
        """After this tenant's failures another's turn succeeded here: the replica is not at fault."""
        return now - self.excused_s.get(tenant, float("-inf")) < _LATELY_S

    def excuse_others(self, tenant: TenantId, effort: int, *, now: float) -> None:
        """After a success of this tenant with so much effort."""
        for whose in [each for each, at in self.failed.items() if each != tenant and effort >= at]:
            del self.failed[whose]
            _keep_two(self.excused_s, whose, now)

    def went_wrong(self, tenant: TenantId, effort: int) -> None:
        self.failed_effort = max(self.failed_effort, effort)
        _keep_two(self.failed, tenant, effort)
        if tenant not in self.failed_of:
            self.failed_of = (*self.failed_of, tenant)[:2]

    def step(self, state: BreakerState, *, now: float) -> None:
        if state not in MAY_BECOME[self.state]:
            raise ValueError(f"a replica that is {self.state.value} never becomes {state.value}")
        self.state, self.since_s, self.trial, self.slow = state, now, None, {}
        self.clear_failures()

    def clear_failures(self) -> None:
        self.failures, self.failed_effort, self.failed_of = 0, 0, ()


def may_be_ejected(breaker: CircuitBreaker, pool: list[CircuitBreaker], share: float, *, now: float) -> bool:
    serving = [each for each in pool if each is not breaker and each.state in SERVING]
    if not share or not serving or BreakerState.EJECTED not in MAY_BECOME[breaker.state]:
        return False
    out = sum(each is breaker or each.state in OUT for each in pool)
    if out <= max(1, int(share * len(pool))):
        return True
    is_no_loss = breaker.failures and not breaker.serves(now=now)
    return bool(is_no_loss) and any(not each.failures and each.serves(now=now) for each in serving)
