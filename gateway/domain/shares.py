"""Reports between several gateways, so that together they stay within the capacity."""

import msgspec

from gateway.domain.ids import PoolId, ReplicaId, TenantId


class PoolShare(msgspec.Struct, frozen=True, kw_only=True, array_like=True):
    """Of one pool."""

    demand_tokens: float
    """Of the admitted sessions, at most."""
    waiting: int
    """Sessions."""
    held: dict[TenantId, float]
    """Places."""
    wanted: dict[TenantId, float]
    """Places, with waiting sessions."""


class ReplicaShare(msgspec.Struct, frozen=True, kw_only=True, array_like=True):
    """Of one replica."""

    running: int
    """Turns."""
    sessions: int
    """Expected sessions at home there."""
    held: float
    """Their tokens."""
    wanted: float
    """Their expected final tokens."""


class Share(msgspec.Struct, frozen=True, kw_only=True, array_like=True):
    replicas: dict[ReplicaId, ReplicaShare] = {}
    pools: dict[PoolId, PoolShare] = {}
