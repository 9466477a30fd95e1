"""What each of several gateways says of its sessions, so that all together take no more than there is."""

import msgspec

from gateway.domain.ids import PoolId, ReplicaId, TenantId


class PoolShare(msgspec.Struct, frozen=True, kw_only=True, array_like=True):
    """Of one pool."""

    demand_tokens: float
    """That the sessions which are in are expected to hold at most."""
    waiting: int
    """Sessions."""
    held: dict[TenantId, float]
    """Places that the tenant's sessions have."""
    wanted: dict[TenantId, float]
    """The same, with those that wait."""


class ReplicaShare(msgspec.Struct, frozen=True, kw_only=True, array_like=True):
    """Of one replica."""

    running: int
    """Turns that it was sent and that are not over."""
    sessions: int
    """That live there and are expected."""
    held: float
    """Tokens that these hold."""
    wanted: float
    """Tokens that they are expected to grow to."""


class Share(msgspec.Struct, frozen=True, kw_only=True, array_like=True):
    replicas: dict[ReplicaId, ReplicaShare] = {}
    pools: dict[PoolId, PoolShare] = {}
