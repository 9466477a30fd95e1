"""The fleet's addresses and credentials, and how patient we are with them."""

from typing import Annotated, Literal

import msgspec
from msgspec import Meta

from gateway.config.kubernetes import KubernetesConfig
from gateway.config.privacy import PRIVATE, RECORDED
from gateway.requests.kv_transfer import TransferName

_Seconds = Annotated[float, Meta(gt=0)]


class KvEventsConfig(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Where an engine publishes what its KV cache holds (vLLM's `--kv-events-config`)."""

    endpoint: Annotated[str, Meta(pattern=r"^(tcp|ipc)://"), PRIVATE]
    """For example `tcp://gpu-7:5557`."""
    replay: Annotated[str, Meta(pattern=r"^(tcp|ipc)://"), PRIVATE] | None = None
    """Where lost events can be had again."""
    backlog: Annotated[int, Meta(ge=1)] = 100_000
    """Batches that are kept until they are looked at."""


ReplicaName = Annotated[str, Meta(pattern=r"^[A-Za-z0-9][A-Za-z0-9_.-]{0,63}\Z")]
"""It stands in headers of responses."""


class ReplicaConfig(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    url: Annotated[str, Meta(pattern=r"^https?://"), PRIVATE]
    """For example `http://gpu-7:8000`; a path in it is put before every request's path."""
    name: Annotated[ReplicaName, RECORDED] | None = None
    """Shown to clients in receipts, so not the address; by default the pool's name and a number."""
    api_key_env: Annotated[str, PRIVATE] | None = None
    """The environment variable that holds the key to send to this replica."""
    api_key_file: Annotated[str, PRIVATE] | None = None
    """The file that holds it."""
    responses_websocket: bool = False
    """It takes WebSockets at `/v1/responses`. Where no replica of a pool does, clients get 426. Nothing in
    them is checked: neither whose stored response a client names, nor whether it says where KV caches are."""
    kv_events: KvEventsConfig | None = None
    """Without them, what it holds of each session is estimated."""
    role: Literal["both", "prefill", "decode"] = "both"
    """What it is for, in a pool that has a `transfer`: it computes prompts for others, and gets turns of its
    own only where nobody else may run them (`prefill`); it computes none for others (`decode`); or both."""
    price_per_h: Annotated[float, Meta(ge=0), RECORDED] = 0.0
    """What an hour of it costs, in any currency: turns go there only if elsewhere they would be later by more
    than `routing.price_per_s` says that is worth."""
    profile: Annotated[str, RECORDED] | None = None
    """What it is made of, for the first predictions: `MODEL@HARDWARE`, or the path of a file
    (docs/design/cost.md); by default what its pool says."""

    def __post_init__(self) -> None:
        if self.api_key_env is not None and self.api_key_file is not None:
            raise ValueError("of api_key_env and api_key_file only one can be meant")


class DiscoveryConfig(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Where a pool's replicas are named, beside those that are listed in the settings."""

    file: Annotated[str, PRIVATE] | None = None
    """A file that names one URL a line; it may change at any time."""
    dns: Annotated[str, Meta(pattern=r"^(https?://)?[A-Za-z0-9._-]+:[0-9]{1,5}\Z"), PRIVATE] | None = None
    """A name whose every address is a replica, with the port: `vllm.models.svc:8000`."""
    kubernetes: KubernetesConfig | None = None
    """A service in Kubernetes, whose endpoints are replicas: known at once, with what the cluster knows of
    their readiness and termination."""
    registration: bool = False
    """Replicas may register at the control plane: `POST /turnpike/replicas`, again before `ttl_s` is over."""
    period_s: _Seconds = 5.0
    """Between two looks at the file and at DNS."""
    ttl_s: _Seconds = 15.0
    """A registered replica leaves this long after its last registration."""
    api_key_env: Annotated[str, PRIVATE] | None = None
    """The environment variable that holds the key to send to all of them."""
    api_key_file: Annotated[str, PRIVATE] | None = None
    """The file that holds it."""
    responses_websocket: bool = False
    """They take WebSockets at `/v1/responses`."""

    def address(self) -> tuple[str, str, int]:
        scheme, _, rest = (self.dns or "").rpartition("://")
        name, _, port = rest.rpartition(":")
        return scheme or "http", name, int(port)


class PoolConfig(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    name: Annotated[str, Meta(pattern=r"^[a-z0-9][a-z0-9_.-]{0,63}\Z"), RECORDED] = "default"
    """Shown in records, and in the names that replicas get by default."""
    models: tuple[Annotated[str, RECORDED], ...] = ()
    """Model names to route here; by default those that the replicas say they serve."""
    profile: Annotated[str, RECORDED] | None = None
    """Of its replicas; by default they are learned from nothing, which costs some tens of turns each."""
    transfer: TransferName | None = None
    """How a prompt that one of its replicas computed gets to another one that decodes: through a store that
    they share, or by NIXL (docs/design/disaggregation.md); by default not at all."""
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
    """After this long without a connection, another replica is tried."""
    head_timeout_s: _Seconds = 1800.0
    """From sending a request to its response head. Without streaming, that is the whole generation."""
    stall_timeout_s: _Seconds = 600.0
    """Silence in the middle of a response, while the client reads."""
    idle_connection_s: _Seconds = 4.0
    """How long an unused connection is kept. vLLM closes its side after 5 s."""
    max_idle_connections: Annotated[int, Meta(ge=0)] = 256
    """Unused connections kept per replica."""
    health_period_s: _Seconds = 2.0
    """Between two health checks of a replica. A failed request has it checked at once."""
    health_timeout_s: _Seconds = 5.0
    """A health check that takes longer has failed."""
    failures_until_down: Annotated[int, Meta(ge=1)] = 2
    """Health checks that fail in a row before a replica is taken out."""
    engine_period_s: _Seconds = 1.0
    """Between two looks at what a vLLM says of itself at `/metrics`."""
    ca_file: Annotated[str, PRIVATE] | None = None
    """Certificates to trust for https replicas, instead of the system's."""
    tls_certificate: Annotated[str, PRIVATE] | None = None
    """PEM file with the certificate chain that https replicas are shown, where they ask for one."""
    tls_key: Annotated[str, PRIVATE] | None = None
    """PEM file with its private key."""
    tls_server_name: Annotated[str, PRIVATE] | None = None
    """The name that the certificates of all https replicas have, where that is not the host in their URL:
    pods that Kubernetes names are reached by their addresses."""

    def __post_init__(self) -> None:
        if (self.tls_certificate is None) != (self.tls_key is None):
            raise ValueError("tls_certificate and tls_key go together")
