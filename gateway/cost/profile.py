"""Profiles of replicas: hardware × model × engine settings.

`profiles/hardware` and `profiles/models` have a file for each part, with its sources. A composed profile is
named `MODEL@HARDWARE`, or `MODEL@4xHARDWARE` for tensor parallelism over four devices. A user's own file
names or states the parts, and sets the differences. `gateway/config/profiles.py` reads the files.
"""

import re
import tomllib
from collections.abc import Mapping
from typing import Annotated, Any, Final, TypeVar

import msgspec
from msgspec import Meta

Positive = Annotated[float, Meta(gt=0)]
NotNegative = Annotated[float, Meta(ge=0)]

_T = TypeVar("_T")

_NAME: Final = re.compile(r"(?P<model>[^@]+)@(?:(?P<devices>[1-9][0-9]*)x)?(?P<hardware>[^@]+)")
_CAPACITY_STEP: Final = 1000


class ProfileError(ValueError):
    """A missing or wrong profile, or part; its message is for a person."""


class Hardware(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One device."""

    name: str
    peak_flops: Positive
    """Attained dense FLOP/s of the largest matrix products, in the models' precision: less than on the
    datasheet."""
    memory_bytes_per_s: Positive
    """Attained by long copies."""
    memory_bytes: Positive
    host_link_bytes_per_s: Positive
    """One direction."""
    source: str


class Model(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    name: str
    active_parameters: Positive
    """Per token, without the input embedding, which is only looked up."""
    dense_weight_bytes: Positive
    """Read by every step."""
    expert_weight_bytes: NotNegative = 0.0
    """Of all experts together; a step reads those of its tokens."""
    experts: Annotated[int, Meta(ge=0)] = 0
    """In each layer; 0 for a dense model."""
    experts_per_token: Annotated[int, Meta(ge=0)] = 0
    kv_bytes_per_token: Positive
    attention_flops_per_context_token: NotNegative
    """Of a new token, for each token of the context before it."""
    source: str

    def __post_init__(self) -> None:
        if (self.experts == 0) != (self.expert_weight_bytes == 0):
            raise ValueError("`experts` and `expert_weight_bytes` must both be there, or neither")
        if not (0 < self.experts_per_token <= self.experts or self.experts == self.experts_per_token == 0):
            raise ValueError("`experts_per_token` must be at least 1 and at most `experts`")

    @property
    def weight_bytes(self) -> float:
        return self.dense_weight_bytes + self.expert_weight_bytes


class Engine(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Settings and efficiency of the engine."""

    tensor_parallel: Annotated[int, Meta(ge=1)] = 1
    """Devices that share every layer. Their communication is part of the efficiencies."""
    compute_efficiency: Annotated[float, Meta(gt=0, le=1)] = 0.55
    """Of the devices' FLOP/s, over a whole step."""
    memory_efficiency: Annotated[float, Meta(gt=0, le=1)] = 1.0
    step_overhead_s: NotNegative = 0.004
    """Of each step: scheduling, launching, sampling."""
    row_overhead_s: NotNegative = 0.0
    """Of each sequence in a step: sampling and delivery of its token."""
    chunk_tokens: Annotated[int, Meta(ge=1)] = 8192
    """Most new tokens a step (vLLM: `max_num_batched_tokens`)."""
    kv_capacity_tokens: Annotated[int, Meta(ge=1)] | None = None
    """None: the memory without the weights."""
    memory_share: Annotated[float, Meta(gt=0, le=1)] = 0.9
    """Used by the engine (vLLM: `gpu_memory_utilization`)."""
    reserved_bytes: NotNegative = 2.6e9
    """On each device, for activations, captured graphs and the input embedding."""


class Profile(Engine, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """All that the cost of a step depends on."""

    hardware: Hardware
    model: Model

    def __post_init__(self) -> None:
        if self.kv_tokens < 1:
            raise ValueError(
                f"{self.model.name} leaves no room for KV on {self.tensor_parallel} × {self.hardware.name}: "
                "raise `tensor_parallel`, or state `kv_capacity_tokens`"
            )

    @property
    def name(self) -> str:
        devices = f"{self.tensor_parallel}x" if self.tensor_parallel > 1 else ""
        return f"{self.model.name}@{devices}{self.hardware.name}"

    @property
    def flops_per_s(self) -> float:
        return self.compute_efficiency * (self.hardware.peak_flops * self.tensor_parallel)

    @property
    def bytes_per_s(self) -> float:
        return self.memory_efficiency * (self.hardware.memory_bytes_per_s * self.tensor_parallel)

    @property
    def kv_tokens(self) -> int:
        """Capacity, as stated; else derived, to the thousand below."""
        if self.kv_capacity_tokens is not None:
            return self.kv_capacity_tokens
        of_a_device = self.memory_share * self.hardware.memory_bytes - self.reserved_bytes
        left = of_a_device * self.tensor_parallel - self.model.weight_bytes
        return int(left // (self.model.kv_bytes_per_token * _CAPACITY_STEP)) * _CAPACITY_STEP


class Parts(msgspec.Struct, frozen=True, kw_only=True):
    """By name."""

    hardware: Mapping[str, Hardware]
    models: Mapping[str, Model]

    def compose(self, name: str, engine: Engine | None = None) -> Profile:
        """The profile `MODEL@HARDWARE` or `MODEL@4xHARDWARE`. Raises ProfileError."""
        parsed = _NAME.fullmatch(name)
        if parsed is None:
            raise ProfileError(
                f"{name}: a profile is named MODEL@HARDWARE, or MODEL@4xHARDWARE for 4 devices"
            )
        settings = msgspec.structs.asdict(engine or Engine())
        if parsed["devices"]:
            settings["tensor_parallel"] = int(parsed["devices"])
        try:
            return Profile(
                hardware=_find(self.hardware, "hardware", parsed["hardware"]),
                model=_find(self.models, "model", parsed["model"]),
                **settings,
            )
        except ValueError as error:
            raise ProfileError(f"{name}: {error}") from None

    def decode(self, content: bytes) -> Profile:
        """A profile's own file: `hardware` and `model` are names of parts, or tables. Raises ProfileError."""
        tree = _decode_toml(content)
        for key, known in (("hardware", self.hardware), ("model", self.models)):
            if isinstance(tree.get(key), str):
                tree[key] = msgspec.to_builtins(_find(known, key, tree[key]))
        return _convert(tree, Profile)


def decode_hardware(content: bytes) -> Hardware:
    """Raises ProfileError."""
    return _convert(_decode_toml(content), Hardware)


def decode_model(content: bytes) -> Model:
    """Raises ProfileError."""
    return _convert(_decode_toml(content), Model)


def _decode_toml(content: bytes) -> dict[str, Any]:
    try:
        return tomllib.loads(content.decode())
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise ProfileError(str(error)) from None


def _convert(tree: dict[str, Any], kind: type[_T]) -> _T:
    try:
        return msgspec.convert(tree, kind)
    except msgspec.ValidationError as error:
        raise ProfileError(str(error)) from None


def _find(parts: Mapping[str, _T], kind: str, name: str) -> _T:
    found = parts.get(name)
    if found is None:
        raise ProfileError(f"there is no {kind} named {name}; there are {', '.join(sorted(parts))}")
    return found
