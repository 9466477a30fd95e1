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
from typing import Annotated

import msgspec
from msgspec import Meta

from gateway.domain.ids import ReplicaId
from gateway.simulator.errors import SimulatorError


class ReplicaGroup(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Replicas of one kind."""

    profile: str
    """Name of a cost profile, `MODEL@HARDWARE`, or the path of one's own."""
    count: Annotated[int, Meta(ge=1, le=4096)] = 1
    kv_blocks: Annotated[int, Meta(ge=2)] | None = None
    """KV blocks of a replica; as many as the profile's memory holds, unless stated."""
    offload_gb: Annotated[float, Meta(ge=0)] = 0.0
    """Host memory for KV blocks (10⁹ bytes), by vLLM's own CPU offloading; 0 for none."""


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
    """A replica by name: no turn is sent there from now on; those that run there end."""
    joins: str | None = None
    """A replica by name: it is not there before."""
    tool_speed: Annotated[float, Meta(gt=0, le=100)] | None = None
    """How fast tools that use cores advance from now on, on all hosts; 1 as before."""


class FleetSpec(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    replicas: Annotated[tuple[ReplicaGroup, ...], Meta(min_length=1)]
    tool_hosts: tuple[ToolHostGroup, ...] = ()
    """None: tools never slow each other down."""
    changes: tuple[Change, ...] = ()
    noise: Annotated[float, Meta(ge=0, le=2)] = 0.0
    """σ of the log-normal factor (of mean 1) on the time of each engine step; 0 for none."""

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
