"""What a brain can be given anew while it runs: the fleet's shape, models, tenants, bounds (pure)."""

import msgspec

from gateway.admission.tenants.quotas import Quota
from gateway.budgets.budgets import BoundConfig, PriceConfig
from gateway.core.fleet import PoolFacts
from gateway.cost.profile import Profile
from gateway.domain.fleet import Role
from gateway.domain.ids import ReplicaId, TenantId
from gateway.routing.models import ModelConfig


class LiveSettings(msgspec.Struct, frozen=True, kw_only=True):
    pools: tuple[PoolFacts, ...]
    roles: dict[ReplicaId, Role] = {}
    """Of those replicas that are not for both."""
    prices: dict[ReplicaId, float] = {}
    """Of a second of those that cost something, in seconds by which turns may be later elsewhere."""
    profiles: dict[ReplicaId, Profile] = {}
    """What is believed of a replica, until it is seen."""
    models: tuple[ModelConfig, ...] = ()
    quotas: dict[TenantId, Quota] = {}
    """Of all tenants; none where nobody needs a key."""
    trusted: frozenset[TenantId] = frozenset()
    """Whose claims count."""
    bounds: tuple[BoundConfig, ...] = ()
    token_prices: tuple[PriceConfig, ...] = ()
