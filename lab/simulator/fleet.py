"""The simulated fleet, as a person writes it down: replicas and tool hosts, in TOML.

noise = 0.02

[[replicas]]
profile = "qwen3-coder-30b-a3b@h200"
count = 4
offload_gb = 128

[[tool_hosts]]
cores = 64

[[changes]]
at_s = 600
lost = "sim-3"
"""

import tomllib
from typing import Annotated, Literal

import msgspec
from msgspec import Meta

from gateway.domain.ids import ReplicaId
from lab.simulator.errors import SimulatorError


class ReplicaGroup(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Replicas of one kind."""

    profile: str
    """Name of a cost profile, `MODEL@HARDWARE`, or the path of one's own."""
    count: Annotated[int, Meta(ge=1, le=4096)] = 1
    kv_blocks: Annotated[int, Meta(ge=2)] | None = None
    """KV blocks of a replica; as many as the profile's memory holds, unless stated."""
    offload_gb: Annotated[float, Meta(ge=0)] = 0.0
    """Host memory for KV blocks (10⁹ bytes), by vLLM's own CPU offloading; 0 for none."""
    role: Literal["both", "prefill", "decode"] = "both"
    """What they are for, where prompts may be computed on another replica than decodes."""
    network_gbit_s: Annotated[float, Meta(ge=0)] = 0.0
    """Of a replica's network card, each way, in 10⁹ bits a second: KV caches may be handed over. 0: they are
    not."""

    price_per_h: Annotated[float, Meta(ge=0)] = 0.0
    """Of a replica."""

    def __post_init__(self) -> None:
        if self.network_gbit_s and self.offload_gb:
            raise ValueError("a simulated engine has one connector: `offload_gb` or `network_gbit_s`")


class ToolHostGroup(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Hosts of one kind. Sessions take turns at them."""

    cores: Annotated[float, Meta(gt=0)]
    count: Annotated[int, Meta(ge=1, le=4096)] = 1
    has_probe: bool = False
    """The gateway is told how busy they are."""


class Change(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Something that happens to the fleet while sessions are played."""

    at_s: Annotated[float, Meta(ge=0)]
    lost: str | None = None
    """A replica by name: no turn is sent there from now on. Those that run there end; prefill legs, and what
    is being pulled from there, break off."""
    joins: str | None = None
    """A replica by name: it is not there before."""
    tool_speed: Annotated[float, Meta(gt=0, le=100)] | None = None
    """How fast tools that use cores advance from now on, on all hosts; 1 as before."""


class FleetSpec(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    replicas: Annotated[tuple[ReplicaGroup, ...], Meta(min_length=1)]
    tool_hosts: tuple[ToolHostGroup, ...] = ()
    """None: tools never slow each other down."""
    changes: tuple[Change, ...] = ()
    price_per_s: Annotated[float, Meta(gt=0)] | None = None
    """What it is worth that a turn is done a second sooner; needed where replicas have a price."""
    noise: Annotated[float, Meta(ge=0, le=2)] = 0.0
    """σ of the log-normal factor (of mean 1) on the time of each engine step; 0 for none."""
    transfer_latency_s: Annotated[float, Meta(ge=0, le=10)] = 0.005
    """Of handing a KV cache over, before its first byte: to ask for it and describe its blocks. Assumed."""

    def __post_init__(self) -> None:
        with_network = {group.network_gbit_s > 0 for group in self.replicas}
        if len(with_network) > 1:
            raise ValueError("all replicas have a `network_gbit_s`, or none")
        roles = {group.role for group in self.replicas}
        if roles - {"both"} and not self.hands_over:
            raise ValueError("replicas with a role need a `network_gbit_s`")
        if self.price_per_s is None and any(group.price_per_h for group in self.replicas):
            raise ValueError("replicas with a `price_per_h` need a `price_per_s`")
        if roles == {"prefill"}:
            raise ValueError("a fleet needs a replica that decodes")

    @property
    def hands_over(self) -> bool:
        """Whether KV caches get from one replica to another."""
        return all(group.network_gbit_s for group in self.replicas)

    def each(self) -> list[tuple[ReplicaId, ReplicaGroup]]:
        """Every replica by name, in order."""
        groups = [group for group in self.replicas for _ in range(group.count)]
        return [(ReplicaId(f"sim-{number}"), group) for number, group in enumerate(groups)]


def decode_fleet(content: bytes) -> FleetSpec:
    """Raises SimulatorError."""
    try:
        return msgspec.convert(tomllib.loads(content.decode()), FleetSpec)
    except (msgspec.ValidationError, tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise SimulatorError(f"the fleet file: {error}") from None
