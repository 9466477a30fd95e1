"""How the simulated engines are set up: what a person would pass to `vllm serve`."""

from collections.abc import Callable, Mapping
from enum import Enum
from typing import Annotated, Any

import msgspec
from msgspec import Meta

from gateway.cost.profile import Profile
from gateway.domain.ids import ReplicaId
from lab.simulator.engine.policy import EnginePolicy


class SchedulingPolicy(Enum):
    FCFS = "fcfs"
    PRIORITY = "priority"


class EngineOptions(msgspec.Struct, frozen=True, kw_only=True):
    """The same for all replicas of a simulation."""

    scheduling_policy: SchedulingPolicy = SchedulingPolicy.FCFS
    max_num_seqs: Annotated[int, Meta(ge=1)] = 256
    max_model_len: Annotated[int, Meta(ge=1)] = 131_072
    """Longer sessions are refused before the simulation starts with them."""
    block_size: Annotated[int, Meta(ge=1)] = 64
    reserve_full_prompt: bool = True
    """vLLM's `--scheduler-reserve-full-isl`: a prompt is admitted only where all of it fits."""
    watermark: Annotated[float, Meta(ge=0, lt=1)] = 0.0
    takes_stretches: bool = True
    """Several steps of decoding in one go, where that changes nothing but the time it takes to simulate."""
    policy: Callable[[], EnginePolicy] | None = None
    """What the engines are biased by; called once for each of them."""
    plugin: Mapping[str, Any] | None = None
    """The engines carry `turnpike-vllm`, with these settings. None: they do not."""
    piggyback: Callable[[Any], Any] | None = None
    """Another rule of who shares a step in place of the plugin's, given that one; for a baseline."""


class EngineSpec(msgspec.Struct, frozen=True, kw_only=True):
    """What is one replica's own."""

    name: ReplicaId
    profile: Profile
    kv_blocks: int
    offload_bytes: float = 0.0
    network_bytes_per_s: float = 0.0
    """Of its network card, each way; 0: it hands no KV cache over, and gets none."""
    noise: float = 0.0
