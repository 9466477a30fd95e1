"""Signals of engines and of hosts of tools; None without a report."""

from typing import Annotated

import msgspec
from msgspec import Meta

from gateway.domain.ids import SessionId


class EngineSignals(msgspec.Struct, frozen=True, kw_only=True):
    """Of one replica. Counters count from the engine's start."""

    kv_tokens: int | None = None
    """Capacity of the device."""
    host_kv_tokens: int | None = None
    """Capacity of the host's memory, for copies."""
    kv_used: float | None = None
    """Share of the device's KV in running requests, 0 to 1."""
    kv_retained: float | None = None
    """Share of it retained for idle sessions by `turnpike-vllm`, 0 to 1."""
    running: int | None = None
    waiting: int | None = None
    """In the engine's own queue."""
    preemptions: int | None = None
    """A counter."""
    ranks: int | None = None
    """Data-parallel engines of the server, each with a KV cache of its own."""
    prefix_hit: int | None = None
    """Tokens; a counter."""
    most_adapters: int | None = None
    """Slots for different LoRA adapters."""
    adapters: tuple[str, ...] = ()
    """Running ones."""

    @property
    def kept_kv_tokens(self) -> int | None:
        """The larger one, not the sum: vLLM copies to the host when it computes, not when it evicts, so the
        same tokens are in both."""
        return None if self.kv_tokens is None else max(self.kv_tokens, self.host_kv_tokens or 0)


class PluginFeature(msgspec.Struct, frozen=True, kw_only=True):
    """A part of `turnpike-vllm` in one engine."""

    name: str
    state: str
    """`on`, or why it is off."""
    acted: int | None = None
    """Changes to vLLM's own decisions since the engine's start."""
    saved_s: float | None = None
    """Seconds of prefill, estimated."""


class SessionKv(msgspec.Struct, frozen=True, kw_only=True):
    """A session in an engine's cache, by `turnpike-vllm`."""

    session: SessionId
    resident_tokens: int
    """Shared ones included."""
    retained_tokens: int
    """Retained while it is idle."""


class PluginReport(msgspec.Struct, frozen=True, kw_only=True):
    features: tuple[PluginFeature, ...] = ()
    sessions: tuple[SessionKv, ...] = ()


class HostSignals(msgspec.Struct, frozen=True, kw_only=True):
    """One report of one host: means since the one before."""

    cores: Annotated[float, Meta(gt=0, le=1_000_000)]
    """For its processes."""
    runnable: Annotated[float, Meta(ge=0, le=1_000_000)]
    """Processes that run or wait for a core."""
