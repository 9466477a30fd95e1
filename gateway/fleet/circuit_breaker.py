"""The circuit breaker of a replica: its states as a table, and the settings (U5).

Source: as `health.py`, which decides which events there are. `EJECTED` is the open state, `TRIED` the
half-open one, `WARMING` slow start.

Invariants: a (state, event) pair that is not in the table raises; never more than a share of a pool is out
for what became of its turns, but for replicas that serve nobody while another serves; never the last one.
"""

from typing import Annotated, Any, Final

import msgspec
from msgspec import Meta

from gateway.domain.ids import PoolId, ReplicaId, RequestId, TenantId
from gateway.domain.words import Word
from gateway.fleet.outliers import Phase

_Seconds = Annotated[float, Meta(gt=0, le=3600)]


class HealthConfig(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    failures_until_out: Annotated[int, Meta(ge=1, le=1000)] = 3
    """Turns in a row that a replica failed (no answer, one that broke off, a 5xx) before it is ejected."""
    slow_until_out: Annotated[int, Meta(ge=1, le=1000)] = 3
    """The same for turns that were too slow."""
    slow_factor: Annotated[float, Meta(ge=1, le=100)] = 2.0
    """Too slow is a first token after so many times what nine in ten were expected to stay below, and what it
    and the prompts before it take if nothing of them is cached, …"""
    slow_least_s: _Seconds = 0.25
    """… and after this long."""
    rest_s: _Seconds = 5.0
    """How long nothing is sent to an ejected replica the first time; twice as long each time after it, …"""
    rest_most_s: _Seconds = 60.0
    """… up to this."""
    slow_start_s: _Seconds = 10.0
    """Until a replica that came back has its full share."""
    out_at_most: Annotated[float, Meta(ge=0, le=1)] = 0.5
    """Share of a pool that may be ejected; 0 ejects nobody."""
    trials: Annotated[int, Meta(ge=1, le=100)] = 5
    """Ejections in a row for being slow, before a replica counts as one that is slow by nature."""


class BreakerState(Word):
    UP = "up"
    EJECTED = "ejected"
    TRIED = "tried"
    WARMING = "warming"
    DOWN = "down"


SERVING: Final = (BreakerState.UP, BreakerState.WARMING)
_LATELY_S: Final = 30.0
"""For so long a tenant's failures are taken for its own after another was served where it failed; who served
nobody for so long goes even beyond `out_at_most`."""
NOBODY: Final = TenantId("")
FAILING: Final = "failing"
"""It serves and fails its turns, and would be ejected if enough others were left."""


class BreakerEvent(Word):
    CAME = "came"
    WENT = "went"
    TRIPPED = "tripped"
    RESTED = "rested"
    PASSED = "passed"
    WARMED = "warmed"


TRANSITIONS: Final[dict[BreakerState, dict[BreakerEvent, BreakerState]]] = {
    BreakerState.UP: {BreakerEvent.WENT: BreakerState.DOWN, BreakerEvent.TRIPPED: BreakerState.EJECTED},
    BreakerState.EJECTED: {BreakerEvent.WENT: BreakerState.DOWN, BreakerEvent.RESTED: BreakerState.TRIED},
    BreakerState.TRIED: {
        BreakerEvent.WENT: BreakerState.DOWN,
        BreakerEvent.TRIPPED: BreakerState.EJECTED,
        BreakerEvent.PASSED: BreakerState.WARMING,
    },
    BreakerState.WARMING: {
        BreakerEvent.WENT: BreakerState.DOWN,
        BreakerEvent.TRIPPED: BreakerState.EJECTED,
        BreakerEvent.WARMED: BreakerState.UP,
    },
    BreakerState.DOWN: {BreakerEvent.CAME: BreakerState.WARMING},
}


class Awaited(msgspec.Struct, eq=False):
    """A turn without a first token yet, or without an end."""

    replica: ReplicaId
    sent_s: float
    patience_s: float
    """It counts as slow after this long, and again after each such time without a first token; infinite if
    nobody sees that."""
    end_patience_s: float
    overdue_s: float
    worst_s: float
    """Counted in `CircuitBreaker.ahead_s` until its first token."""
    phase: Phase = Phase.START
    is_overdue: bool = False
    is_late: bool = False
    """What is awaited of it was counted as late already."""
    output_tokens: float | None = None


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
    """Of one replica."""

    pool: PoolId
    state: BreakerState = BreakerState.UP
    since_s: float
    failures: int = 0
    failed_effort: int = 0
    failed_of: tuple[TenantId, ...] = ()
    """The tenants of the failures in a row, two at most."""
    failed: dict[TenantId, int] = msgspec.field(default_factory=dict)
    """The last two tenants that failed since another was served, and the effort of their turns."""
    excused_s: dict[TenantId, float] = msgspec.field(default_factory=dict)
    """When another was served after them, with as much effort."""
    served_s: float = float("-inf")
    """When a turn went well last."""
    slow: dict[Phase, int] = msgspec.field(default_factory=dict)
    """Turns in a row that were too slow, by what of them was."""
    ahead_s: float = 0.0
    """What the prompts take that were sent and have no first token yet, if nothing of them is cached."""
    ejections: int = 0
    """In a row."""
    slow_ejections: int = 0
    why: str = ""
    """It was ejected last, or fails its turns and stays."""
    trial: RequestId | None = None

    def due_s(self, config: HealthConfig) -> float:
        """When it is tried, or warm; infinite if it waits for neither."""
        if self.state is BreakerState.EJECTED:
            doubled_s = config.rest_s * 2.0 ** min(30, max(0, self.ejections - 1))
            return self.since_s + min(doubled_s, config.rest_most_s)
        return self.since_s + config.slow_start_s if self.state is BreakerState.WARMING else float("inf")

    def serves(self, *, now: float) -> bool:
        return now - self.served_s < _LATELY_S

    def excuses(self, tenant: TenantId, *, now: float) -> bool:
        """Turns of this tenant failed here, and then one of another's went well: no replica is to blame."""
        return now - self.excused_s.get(tenant, float("-inf")) < _LATELY_S

    def went_well(self, tenant: TenantId, effort: int, *, now: float) -> None:
        self.served_s = now
        if not self.failed:
            return
        for whose in [each for each, asked in self.failed.items() if each != tenant and effort >= asked]:
            del self.failed[whose]
            _keep_two(self.excused_s, whose, now)

    def went_wrong(self, tenant: TenantId, effort: int) -> None:
        self.failed_effort = max(self.failed_effort, effort)
        _keep_two(self.failed, tenant, effort)
        if tenant not in self.failed_of:
            self.failed_of = (*self.failed_of, tenant)[:2]

    def step(self, event: BreakerEvent, *, now: float) -> None:
        after = TRANSITIONS[self.state].get(event)
        if after is None:
            raise ValueError(f"a replica that is {self.state.value} is never {event.value}")
        self.state, self.since_s, self.trial = after, now, None
        self.slow = {}
        self.clear_failures()

    def clear_failures(self) -> None:
        self.failures, self.failed_effort, self.failed_of = 0, 0, ()


def may_be_ejected(
    breaker: CircuitBreaker, others: list[CircuitBreaker], share: float, *, now: float
) -> bool:
    """Whether it may be ejected beside the others of its pool."""
    serving = [each for each in others if each.state in SERVING]
    if not share or not serving:
        return False
    out = sum(each.state in (BreakerState.EJECTED, BreakerState.TRIED) for each in others) + 1
    if out <= max(1, int(share * (len(others) + 1))):
        return True
    is_no_loss = breaker.failures and not breaker.serves(now=now)
    return bool(is_no_loss) and any(not each.failures and each.serves(now=now) for each in serving)
