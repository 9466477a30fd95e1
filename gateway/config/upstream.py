"""The fleet's addresses and credentials, and how patient we are with them."""

from typing import Annotated, Literal

import msgspec
from msgspec import Meta

from gateway.config.kubernetes import KubernetesConfig
from gateway.config.privacy import PRIVATE, RECORDED
from gateway.requests.kv_transfer import TransferName

_Seconds = Annotated[float, Meta(gt=0)]


class KvEventsConfig(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """An engine's publisher of KV cache events (vLLM's `--kv-events-config`)."""

    endpoint: Annotated[str, Meta(pattern=r"^(tcp|ipc)://"), PRIVATE]
    """For example `tcp://gpu-7:5557`."""
    replay: Annotated[str, Meta(pattern=r"^(tcp|ipc)://"), PRIVATE] | None = None
    """Endpoint for the replay of lost events."""
    backlog: Annotated[int, Meta(ge=1)] = 100_000
    """Most unread batches."""


# It stands in headers of responses.
ReplicaName = Annotated[str, Meta(pattern=r"^[A-Za-z0-9][A-Za-z0-9_.-]{0,63}\Z")]


class ReplicaConfig(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    url: Annotated[str, Meta(pattern=r"^https?://"), PRIVATE]
    """For example `http://gpu-7:8000`. A path in it precedes every request's path."""
    name: Annotated[ReplicaName, RECORDED] | None = None
    """Clients see it in receipts. By default the pool's name and a number."""
    api_key_env: Annotated[str, PRIVATE] | None = None
    """Environment variable with the key for this replica."""
    api_key_file: Annotated[str, PRIVATE] | None = None
    """File with the same."""
    responses_websocket: bool = False
    """It accepts WebSockets at `/v1/responses`. Without such a replica in a pool, clients get 426. Their
    content is not checked: neither the owner of a stored response, nor fields for KV transfer."""
    kv_events: KvEventsConfig | None = None
    """Without them, what it holds of each session is estimated."""
    role: Literal["both", "prefill", "decode"] = "both"
    """Role in a pool with a `transfer`. `prefill`: prompts for other replicas, own turns only if no other can
    run them. `decode`: no prompts for others."""
    price_per_h: Annotated[float, Meta(ge=0), RECORDED] = 0.0
    """Price per hour, in any currency. A more expensive replica gets a turn only if the saved time is worth
    it (`routing.price_per_s`)."""
    profile: Annotated[str, RECORDED] | None = None
    """Speed profile for the first predictions: `MODEL@HARDWARE`, or a file (docs/design/cost.md). By default
    the pool's."""

    def __post_init__(self) -> None:
        if self.api_key_env is not None and self.api_key_file is not None:
            raise ValueError("of api_key_env and api_key_file only one can be meant")


class DiscoveryConfig(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Further replicas of a pool, beside those in the settings."""

    file: Annotated[str, PRIVATE] | None = None
    """File with one URL a line; it may change at any time."""
    dns: Annotated[str, Meta(pattern=r"^(https?://)?[A-Za-z0-9._-]+:[0-9]{1,5}\Z"), PRIVATE] | None = None
    """Name and port; every address of the name is a replica: `vllm.models.svc:8000`."""
    kubernetes: KubernetesConfig | None = None
    """A service in Kubernetes, whose endpoints are replicas: known at once, with what the cluster knows of
    their readiness and termination."""
    registration: bool = False
    """Replicas may register at the control plane: `POST /turnpike/replicas`, again before `ttl_s` is over."""
    period_s: _Seconds = 5.0
    """Polling interval of the file and of DNS."""
    ttl_s: _Seconds = 15.0
    """A registered replica leaves this long after its last registration."""
    api_key_env: Annotated[str, PRIVATE] | None = None
    """Environment variable with the key for all of them."""
    api_key_file: Annotated[str, PRIVATE] | None = None
    """File with the same."""
    responses_websocket: bool = False
    """They accept WebSockets at `/v1/responses`."""

    def address(self) -> tuple[str, str, int]:
        scheme, _, rest = (self.dns or "").rpartition("://")
        name, _, port = rest.rpartition(":")
        return scheme or "http", name, int(port)


class PoolConfig(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    name: Annotated[str, Meta(pattern=r"^[a-z0-9][a-z0-9_.-]{0,63}\Z"), RECORDED] = "default"
    """Appears in records and in default names of replicas."""
    models: tuple[Annotated[str, RECORDED], ...] = ()
    """Model names to route here; by default those that the replicas list."""
    profile: Annotated[str, RECORDED] | None = None
    """Speed profile of its replicas. Without it, Turnpike learns each replica from some tens of turns."""
    transfer: TransferName | None = None
    """Transfer of a computed prompt to a decoding replica: a shared store, or NIXL
    (docs/design/disaggregation.md). Without it, no remote prefill."""
    replicas: tuple[ReplicaConfig, ...] = ()
    discovery: DiscoveryConfig | None = None
    """Where more of them are named."""

    def __post_init__(self) -> None:
        if not self.replicas and self.discovery is None:
            raise ValueError(f"pool {self.name} needs replicas, or a discovery that finds some")
        roles = [each.role for each in self.replicas]
        if self.transfer is None and set(roles) - {"both"}:
            raise ValueError(f"pool {self.name} has replicas with a role, and needs a transfer")
        if roles and set(roles) == {"prefill"} and self.discovery is None:
            raise ValueError(f"pool {self.name} needs a replica that decodes")

    def names(self) -> list[str]:
        return [each.name or f"{self.name}-{number}" for number, each in enumerate(self.replicas)]


class UpstreamConfig(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    connect_timeout_s: _Seconds = 5.0
    """Time without a connection before another replica is tried."""
    head_timeout_s: _Seconds = 1800.0
    """From sending a request to its response head. Without streaming, that is the whole generation."""
    stall_timeout_s: _Seconds = 600.0
    """Silence in the middle of a response, while the client reads."""
    idle_connection_s: _Seconds = 4.0
    """Lifetime of an unused connection. vLLM closes its side after 5 s."""
    max_idle_connections: Annotated[int, Meta(ge=0)] = 256
    """Unused connections kept per replica."""
    health_period_s: _Seconds = 2.0
    """Interval of health checks. A failed request causes one at once."""
    health_timeout_s: _Seconds = 5.0
    """A health check that takes longer has failed."""
    failures_until_down: Annotated[int, Meta(ge=1)] = 2
    """Health checks that fail in a row before a replica is taken out."""
    engine_period_s: _Seconds = 1.0
    """Polling interval of a vLLM's `/metrics`."""
    ca_file: Annotated[str, PRIVATE] | None = None
    """Certificates to trust for https replicas, instead of the system's."""
    tls_certificate: Annotated[str, PRIVATE] | None = None
    """PEM file with the client certificate chain for https replicas."""
    tls_key: Annotated[str, PRIVATE] | None = None
    """PEM file with its private key."""
    tls_server_name: Annotated[str, PRIVATE] | None = None
    """Name in the certificates of all https replicas, if it differs from the host in their URL, as with pods'
    addresses."""

    def __post_init__(self) -> None:
        if (self.tls_certificate is None) != (self.tls_key is None):
            raise ValueError("tls_certificate and tls_key go together")
