"""Signals of engines and of hosts that run tools; a number is None where it is not stated."""

from typing import Annotated

import msgspec
from msgspec import Meta

from gateway.domain.ids import SessionId


class EngineSignals(msgspec.Struct, frozen=True, kw_only=True):
    """One look at one replica. Counters count from the engine's start."""

    kv_tokens: int | None = None
    """Tokens whose KV fits on the device."""
    host_kv_tokens: int | None = None
    """And in the host's memory, where copies are kept."""
    kv_used: float | None = None
    """Share of the device's KV that running requests hold, 0 to 1."""
    kv_retained: float | None = None
    """Share of it that is held for sessions that pause, as `turnpike-vllm` tells, 0 to 1."""
    running: int | None = None
    waiting: int | None = None
    """Requests in the engine's own queue."""
    preemptions: int | None = None
    """A counter."""
    ranks: int | None = None
    """Engines of the server (data parallel), each with a KV cache of its own."""
    prefix_hit: int | None = None
    """Tokens found in the prefix cache; a counter."""
    most_adapters: int | None = None
    """Different LoRA adapters that may run at a time."""
    adapters: tuple[str, ...] = ()
    """Those that run."""

    @property
    def kept_kv_tokens(self) -> int | None:
        """On the device or in the host's memory. vLLM copies to the host what it computes, and not what it
        overwrites on the device: the same tokens are in both, so the larger one counts and not the sum."""
        return None if self.kv_tokens is None else max(self.kv_tokens, self.host_kv_tokens or 0)


class PluginFeature(msgspec.Struct, frozen=True, kw_only=True):
    """A part of `turnpike-vllm` in one engine, as the engine tells."""

    name: str
    state: str
    """`on`, or why it is off."""
    acted: int | None = None
    """How often it changed what vLLM would have done, since the engine started."""
    saved_s: float | None = None
    """Seconds of prefill that it saved, estimated."""


class SessionKv(msgspec.Struct, frozen=True, kw_only=True):
    """What one session has in an engine's cache, as `turnpike-vllm` tells it."""

    session: SessionId
    resident_tokens: int
    """As far as the engine knows they are still there, whoever else may use them."""
    retained_tokens: int
    """Held for it while it pauses."""


class PluginReport(msgspec.Struct, frozen=True, kw_only=True):
    features: tuple[PluginFeature, ...] = ()
    sessions: tuple[SessionKv, ...] = ()


class HostSignals(msgspec.Struct, frozen=True, kw_only=True):
    """One report of one host: means since the one before."""

    cores: Annotated[float, Meta(gt=0, le=1_000_000)]
    """That its processes may use."""
    runnable: Annotated[float, Meta(ge=0, le=1_000_000)]
    """Processes that ran, or would have if there had been a core."""
