"""Configuration: the shape of the settings, and the one place that reads them.

Each policy's settings stand beside its algorithm; those of the I/O shell stand in this package, because
the shell imports it and not the other way round. `load.py` reads file, environment and flags, once.
"""

from collections.abc import Iterator

import msgspec

from gateway.admission.settings import AdmissionConfig
from gateway.budgets.budgets import BoundConfig, PriceConfig
from gateway.config.hints import HintsConfig
from gateway.config.jwt import JwtConfig
from gateway.config.mcp import McpServerConfig
from gateway.config.picker import PickerConfig
from gateway.config.server import ServerConfig, is_loopback, split_listen
from gateway.config.shared import SharedConfig
from gateway.config.telemetry import (
    HistoryConfig,
    ObjectiveConfig,
    OtelConfig,
    RecordingConfig,
    StreamFileConfig,
)
from gateway.config.tenants import TenantConfig
from gateway.config.upstream import PoolConfig, UpstreamConfig
from gateway.core.settings import CoordinatorConfig
from gateway.fleet.breaker_states import HealthConfig
from gateway.fleet.migration_limiter import TrickleConfig
from gateway.prefill_ahead.worth import PrefillAheadConfig
from gateway.routing.disaggregation import DisaggregationConfig
from gateway.routing.models import ModelConfig
from gateway.routing.placement import RoutingConfig
from gateway.routing.state_residence import StateResidenceConfig
from gateway.tool_probe.boundaries import ToolBoundariesConfig
from gateway.workflow.conversations import WorkflowConfig
from gateway.workflow.sessions import SessionsConfig


class Config(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Everything that can be set. Field names are the sections of the TOML file."""

    pools: tuple[PoolConfig, ...]
    models: tuple[ModelConfig, ...] = ()
    tenants: tuple[TenantConfig, ...] = ()
    jwt: JwtConfig | None = None
    mcp: tuple[McpServerConfig, ...] = ()
    bounds: tuple[BoundConfig, ...] = ()
    prices: tuple[PriceConfig, ...] = ()
    server: ServerConfig = ServerConfig()
    picker: PickerConfig = PickerConfig()
    upstream: UpstreamConfig = UpstreamConfig()
    hints: HintsConfig = HintsConfig()
    stream: StreamFileConfig = StreamFileConfig()
    history: HistoryConfig = HistoryConfig()
    objective: ObjectiveConfig = ObjectiveConfig()
    otel: OtelConfig = OtelConfig()
    recording: RecordingConfig = RecordingConfig()
    shared: SharedConfig = SharedConfig()
    core: CoordinatorConfig = CoordinatorConfig()
    admission: AdmissionConfig = AdmissionConfig()
    sessions: SessionsConfig = SessionsConfig()
    workflow: WorkflowConfig = WorkflowConfig()
    tools: ToolBoundariesConfig = ToolBoundariesConfig()
    routing: RoutingConfig = RoutingConfig()
    prefill_ahead: PrefillAheadConfig = PrefillAheadConfig()
    disaggregation: DisaggregationConfig = DisaggregationConfig()
    health: HealthConfig = HealthConfig()
    failover_pacing: TrickleConfig = TrickleConfig()
    state: StateResidenceConfig = StateResidenceConfig()

    def __post_init__(self) -> None:
        if not self.pools:
            raise ValueError("pools: at least one backend is needed (--backend URL, or [[pools]])")
        _refuse_repeats("pools: the name", [pool.name for pool in self.pools])
        _refuse_repeats("tenants: the name", [tenant.name for tenant in self.tenants])
        _refuse_repeats("tenants: the key", [key for tenant in self.tenants for key in tenant.key_hashes])
        bare = [tenant.name for tenant in self.tenants if not tenant.key_hashes]
        if bare and self.jwt is None and self.server.keys_path is None:
            raise ValueError(
                f"tenants: {bare[0]} has no key_hashes, and there is no [jwt] or server.keys_path"
            )
        if self.jwt is not None and not self.tenants:
            raise ValueError("jwt: there are no [[tenants]] that a token could name")
        if self.server.keys_path is not None and not self.tenants:
            msgspec.structs.force_setattr(self, "tenants", (TenantConfig(name="default"),))
        urls = [replica.url.rstrip("/") for pool in self.pools for replica in pool.replicas]
        host, port = split_listen(self.server.listen)
        is_here = not host.strip("0.:") or is_loopback(self.server.listen)  # or everywhere
        for url in urls:
            at = url.partition("://")[2].partition("/")[0]
            if is_here and port and at.endswith(f":{port}") and is_loopback(at):
                raise ValueError(f"pools.replicas: {url} is server.listen, which would be a loop")
        _refuse_repeats("pools.replicas: the url", urls)
        _refuse_repeats("pools.replicas: the name", [name for pool in self.pools for name in pool.names()])
        _refuse_repeats("models: the name", [model.name for model in self.models])
        _refuse_repeats("mcp: the name", [each.name for each in self.mcp])
        _refuse_repeats("bounds: the name", [each.name for each in self.bounds])
        _refuse_repeats("prices: the model", [each.model for each in self.prices])
        priced = [pool.name for pool in self.pools if any(each.price_per_h for each in pool.replicas)]
        if priced and self.routing.price_per_s is None:
            raise ValueError(f"pools: {priced[0]} has a replica with a price_per_h; set routing.price_per_s")
        if self.server.is_relay and (needy := next(self._needs_sessions(), None)) is not None:
            raise ValueError(f"server.mode: a relay has no sessions; remove {needy}")
        if self.server.workers != 1 and self.shared.url is None:
            raise ValueError(
                "server.workers: several workers need Redis, and shared.url is not set; "
                'start one (redis-server --port 6379) and set [shared] url = "redis://127.0.0.1:6379"'
            )
        if self.server.allow_public_without_keys:
            return
        has_control_keys = bool(self.server.control_key_hashes or self.server.control_read_key_hashes)
        has_tenants, keys = bool(self.tenants), "add [[tenants]] with key_hashes, or set server.keys_path"
        for key, listen, has_keys, remedy in (
            ("picker.listen", self.picker.listen, has_tenants, keys),
            ("server.listen", self.server.listen, has_tenants, keys),
            ("server.control", self.server.control, has_control_keys, "set control_key_hashes"),
        ):
            if not has_keys and not is_loopback(listen):
                raise ValueError(
                    f"{key}: {listen} is reachable from elsewhere and requires no key; {remedy}, "
                    "or set server.allow_public_without_keys"
                )

    def _needs_sessions(self) -> Iterator[str]:
        quotas = [tenant.quota for tenant in self.tenants]
        return (
            name
            for name, is_set in (
                ("server.workers", self.server.workers != 1),
                ("shared.url", self.shared.url is not None),
                ("bounds", bool(self.bounds)),
                ("tenants.quota", any(quota.is_limited for quota in quotas)),
                ("mcp", bool(self.mcp)),
                ("history.url", self.history.url is not None),
                ("otel.endpoint", self.otel.endpoint is not None),
                ("prefill_ahead.enabled", self.prefill_ahead.enabled),
                ("pools.transfer", any(pool.transfer is not None for pool in self.pools)),
            )
            if is_set
        )


def _refuse_repeats(what: str, values: list[str]) -> None:
    seen: set[str] = set()
    for value in values:
        if value in seen:
            raise ValueError(f"{what} {value!r} is there twice")
        seen.add(value)
