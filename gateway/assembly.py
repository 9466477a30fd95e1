"""From settings to a coordinator: the wiring that both drivers, server and simulator, use."""

from collections.abc import Iterator

import msgspec

from gateway.admission.session_admission import SessionAdmission
from gateway.budgets.budgets import Budgets
from gateway.config import Config
from gateway.config.profiles import load_profile
from gateway.core.brain_state import BrainState
from gateway.core.commands import Command
from gateway.core.coordinator import Coordinator
from gateway.core.fleet import Fleet, PoolFacts
from gateway.core.forecasts import Forecasts
from gateway.core.live_settings import LiveSettings
from gateway.core.sessions.session_book import SessionBook
from gateway.core.sessions.session_limits import SessionLimits
from gateway.cost.profile import Profile
from gateway.domain.fleet import Role
from gateway.domain.ids import PoolId, ReplicaId, SessionId, TenantId
from gateway.fleet.circuit_breakers import FleetHealth
from gateway.fleet.migration_limiter import MigrationLimiter
from gateway.routing.models import named_models
from gateway.routing.placement import PredictedPlacement
from gateway.routing.placement_policy import PlacementPolicy
from gateway.routing.state_residence import StateResidence
from gateway.tool_probe.boundaries import ToolBoundaries
from gateway.workflow.conversations import Conversations
from gateway.workflow.engine_hints import Hints
from gateway.workflow.sessions import Sessions


def assemble(
    config: Config,
    *,
    session_ids: Iterator[SessionId],
    placement: PlacementPolicy | None = None,
    publishes: bool = False,
) -> Coordinator:
    """`session_ids`: names for new sessions, without end; `placement`: to compare ours with; `publishes`:
    there are other gateways."""
    core = config.core
    if config.tenants:
        # An id that we did not see being minted may be another tenant's.
        core = msgspec.structs.replace(core, reject_unknown_ids=True)
    live = live_settings(config)
    forecasts = Forecasts(live.profiles)
    conversations = Conversations(config.workflow.progress, is_shared=config.workflow.share_learned)
    graphs = conversations.graphs
    if placement is None:
        placement = PredictedPlacement(config.routing, forecasts, graphs)
    sessions = SessionBook(
        Sessions(config.sessions, session_ids),
        ToolBoundaries(config.tools),
        StateResidence(config.state),
        conversations,
        Hints(graphs, has_envelopes=config.hints.kv_hints),
        trusted=live.trusted if live.quotas else None,
        publishes=publishes,
    )
    out: list[Command] = []
    bounds = Budgets(config.bounds, config.prices, publishes=publishes)
    shared = BrainState(
        config=core,
        fleet=Fleet(live.pools, FleetHealth(config.health), roles=live.roles, prices=live.prices),
        admission=SessionAdmission(config.admission, live.quotas, trusted=live.trusted, graphs=graphs),
        placement=placement,
        sessions=sessions,
        forecasts=forecasts,
        migrations=MigrationLimiter(config.failover_pacing),
        session_limits=SessionLimits(bounds, sessions.sessions, out),
        out=out,
    )
    return Coordinator(
        shared,
        named_models=named_models(live.models),
        ahead=config.prefill_ahead,
        disaggregation=config.disaggregation,
        transfers=frozenset(PoolId(pool.name) for pool in config.pools if pool.transfer is not None),
    )


def live_settings(config: Config) -> LiveSettings:
    """What a brain can be given anew. Raises ProfileError."""
    return LiveSettings(
        pools=tuple(PoolFacts(PoolId(pool.name), pool.models) for pool in config.pools),
        roles=_roles(config),
        prices=_prices(config),
        profiles=_profiles(config),
        models=config.models,
        quotas={TenantId(tenant.name): tenant.quota for tenant in config.tenants},
        trusted=frozenset(
            TenantId(tenant.name) for tenant in config.tenants if tenant.trusts_scheduling_claims
        ),
        bounds=config.bounds,
        token_prices=config.prices,
    )


def _roles(config: Config) -> dict[ReplicaId, Role]:
    return {
        ReplicaId(name): Role(each.role)
        for pool in config.pools
        for name, each in zip(pool.names(), pool.replicas, strict=True)
        if each.role != "both"
    }


def _prices(config: Config) -> dict[ReplicaId, float]:
    if config.routing.price_per_s is None:
        return {}
    return {
        ReplicaId(name): each.price_per_h / 3600 / config.routing.price_per_s
        for pool in config.pools
        for name, each in zip(pool.names(), pool.replicas, strict=True)
        if each.price_per_h
    }


def _profiles(config: Config) -> dict[ReplicaId, Profile]:
    profiles = {}
    for pool in config.pools:
        for name, replica in zip(pool.names(), pool.replicas, strict=True):
            if (profile := replica.profile or pool.profile) is not None:
                profiles[ReplicaId(name)] = load_profile(profile)
    return profiles
