"""Records of admission, a part of the information stream (`records.py`). `window_update`: MARS, Table 1."""

from gateway.domain.decision import WaitReason
from gateway.domain.ids import PoolId, SessionId, TenantId
from gateway.domain.timed_record import TimedRecord


class SessionHeld(TimedRecord, frozen=True, kw_only=True, tag="session_held"):
    """A session begins to wait for a place."""

    session: SessionId
    pool: PoolId
    tenant: TenantId
    reason: WaitReason
    """Of the first session in the queue."""
    ahead: int
    """Waiting sessions."""
    with_it: float
    """With this session, in the unit of `reason`: expected KV tokens, sessions, sessions with tools, or what
    its tenant is charged, in sessions."""
    limit: float
    """The session enters when `with_it` is at most that, and none is before it."""
    is_deprioritized: bool = False
    """`reason` is of the session before it."""
    gave_back: str | None = None
    """Reason of its eviction."""


class SessionAdmitted(TimedRecord, frozen=True, kw_only=True, tag="session_admitted"):
    session: SessionId
    pool: PoolId
    tenant: TenantId
    waited_ms: float
    admitted: int
    """Admitted sessions, this one included."""
    tokens: float
    """Of this session."""
    held: float
    """Tokens of all admitted sessions; a shared prefix counts for each."""
    kv_limit: float | None
    """Expected tokens at most; None for no limit."""
    is_over_limit: bool = False
    """It does not fit, but nothing else runs, or it has waited for long."""


class WindowUpdated(TimedRecord, frozen=True, kw_only=True, tag="window_update"):
    pool: PoolId
    sessions: float | None
    """Most admitted sessions; None for no limit."""
    kv_budget: float | None
    """Most expected tokens; None for no limit."""
    admitted: int
    waiting: int
    """Sessions in the queue."""
    demand: float
    """Expected tokens of the admitted sessions, at most."""
    gpu_pressure: float
    cpu_pressure: float
    """For both, overload from 1 on."""
    reason: str
    level: float | None = None
    """Most sessions of a tenant beyond its share (mean of now and lately, for a weight of 1); None for no
    limit."""
    overcommit_sessions: bool = False
    """More sessions than fit, because engines have time for recomputation."""
