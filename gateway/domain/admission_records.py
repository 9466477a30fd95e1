"""Records that admission makes: which sessions wait for a place and why, which get one, how many there are.

They are part of the information stream (`records.py`). `window_update` is of MARS's Table 1, under its name.
"""

from gateway.domain.decision import WaitReason
from gateway.domain.ids import PoolId, SessionId, TenantId
from gateway.domain.timed_record import TimedRecord


class SessionHeld(TimedRecord, frozen=True, kw_only=True, tag="session_held"):
    """A session begins to wait for a place."""

    session: SessionId
    pool: PoolId
    tenant: TenantId
    reason: WaitReason
    """What keeps it out; of one behind others, what keeps those out."""
    ahead: int
    """Sessions that wait already."""
    with_it: float
    """What would be in with it, as `reason` counts: KV tokens as expected at most, sessions, or sessions with
    tools; what its tenant is charged, in sessions."""
    limit: float
    """As much may be in. It enters when `with_it` is at most that, and nobody is before it."""
    is_deprioritized: bool = False
    """Who is before it waits for that."""
    gave_back: str | None = None
    """Why it had to give its place back, if it had one."""


class SessionAdmitted(TimedRecord, frozen=True, kw_only=True, tag="session_admitted"):
    """A session has a place from now on."""

    session: SessionId
    pool: PoolId
    tenant: TenantId
    waited_ms: float
    admitted: int
    """Sessions that are in, this one included."""
    tokens: float
    """That it holds, or brings."""
    held: float
    """Tokens that all that are in hold, this one too; a beginning that several share counts for each."""
    kv_limit: float | None
    """Tokens that they may be expected to hold; None for no limit."""
    is_over_limit: bool = False
    """It is in though it does not fit: nobody else runs, or it waited in the background for long."""


class WindowUpdated(TimedRecord, frozen=True, kw_only=True, tag="window_update"):
    pool: PoolId
    sessions: float | None
    """Sessions that may be in; None for no limit."""
    kv_budget: float | None
    """Tokens that they may be expected to hold; None for no limit."""
    admitted: int
    waiting: int
    """Sessions that wait for a place."""
    demand: float
    """Tokens that the sessions that are in are expected to hold at most."""
    gpu_pressure: float
    cpu_pressure: float
    """Of both, 1 and more is overload."""
    reason: str
    level: float | None = None
    """Sessions, the mean of now and lately, that a tenant may hold beyond its share, for a weight of 1; None
    for no limit."""
    overcommit_sessions: bool = False
    """More may be in than fit, because engines have the time to compute again what is lost."""
