"""What a replica is made of: hardware × model × how well the engine uses the one for the other.

Profiles are composed: `profiles/hardware` and `profiles/models` each hold a file for one part, with its
sources. A composed profile is named `MODEL@HARDWARE`, or `MODEL@4xHARDWARE` for tensor parallelism over
four devices. A file of the user's own names the parts, or states them, and sets what differs.

Nothing here reads files: `gateway/config/profiles.py` does.
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
    """A profile, or a part of one, that is not there or not right; says what, for a person."""


class Hardware(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One device."""

    name: str
    peak_flops: Positive
    """Dense FLOP/s that the largest matrix products attain, in the precision in which models compute.

    Less than on the datasheet, which no program reaches."""
    memory_bytes_per_s: Positive
    """That long copies attain."""
    memory_bytes: Positive
    host_link_bytes_per_s: Positive
    """Between the device's memory and the host's, in one direction."""
    source: str


class Model(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    name: str
    active_parameters: Positive
    """That take part in computing one token; without the input embedding, which is only looked up."""
    dense_weight_bytes: Positive
    """Read by every step."""
    expert_weight_bytes: NotNegative = 0.0
    """Of all experts together; a step reads those of them that one of its tokens needs."""
    experts: Annotated[int, Meta(ge=0)] = 0
    """In each layer; 0 for a dense model."""
    experts_per_token: Annotated[int, Meta(ge=0)] = 0
    kv_bytes_per_token: Positive
    attention_flops_per_context_token: NotNegative
    """Attention costs a new token this many FLOPs for each token of the context before it."""
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
    """How the engine is set up, and how well it does."""

    tensor_parallel: Annotated[int, Meta(ge=1)] = 1
    """Devices that share every layer. What they say to one another is part of the efficiencies."""
    compute_efficiency: Annotated[float, Meta(gt=0, le=1)] = 0.55
    """Of the devices' FLOP/s, over a whole step."""
    memory_efficiency: Annotated[float, Meta(gt=0, le=1)] = 1.0
    step_overhead_s: NotNegative = 0.004
    """Of each step, whatever is in it: scheduling, launching, sampling."""
    row_overhead_s: NotNegative = 0.0
    """Of each sequence in a step: sampling its token, and handing it on."""
    chunk_tokens: Annotated[int, Meta(ge=1)] = 8192
    """At most so many new tokens a step (vLLM: `max_num_batched_tokens`)."""
    kv_capacity_tokens: Annotated[int, Meta(ge=1)] | None = None
    """None: what the weights leave of the memory."""
    memory_share: Annotated[float, Meta(gt=0, le=1)] = 0.9
    """That the engine uses at all (vLLM: `gpu_memory_utilization`)."""
    reserved_bytes: NotNegative = 2.6e9
    """On each device, for activations, captured graphs and the input embedding."""


class Profile(Engine, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Everything that the cost of a step depends on. Complete: nothing else is looked up."""

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
        """Tokens whose KV fits, as stated; else derived, to the thousand below."""
        if self.kv_capacity_tokens is not None:
            return self.kv_capacity_tokens
        of_a_device = self.memory_share * self.hardware.memory_bytes - self.reserved_bytes
        left = of_a_device * self.tensor_parallel - self.model.weight_bytes
        return int(left // (self.model.kv_bytes_per_token * _CAPACITY_STEP)) * _CAPACITY_STEP


class Parts(msgspec.Struct, frozen=True, kw_only=True):
    """What profiles are composed of, by name."""

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
