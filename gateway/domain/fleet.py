"""The fleet: replicas by id, their pool, load and abilities."""

import msgspec

from gateway.domain.ids import PoolId, ReplicaId
from gateway.domain.string_enums import Word


class Role(Word):
    """In a pool with remote prefills."""

    BOTH = "both"
    PREFILL = "prefill"
    """For others; it gets a turn of its own only if no other replica may run it."""
    DECODE = "decode"
    """Without prefills for others."""


class Abilities(msgspec.Struct, frozen=True, kw_only=True):
    """Of a backend. Without them it gets the client's bytes alone."""

    engine: str = "unknown"
    version: str | None = None
    session_header: bool = False
    """`X-Session-ID` (vLLM 0.28 and later)."""
    kv_hints: bool = False
    """The envelope `kv_hints` (vLLM 0.31 and later)."""
    turnpike_hints: bool = False
    """The plugin `turnpike-vllm`."""


class ReplicaFacts(msgspec.Struct, frozen=True, kw_only=True):
    """By discovery and health checks."""

    id: ReplicaId
    pool: PoolId
    abilities: Abilities = Abilities()
    models: tuple[str, ...] = ()
    """Names as the backend lists them; empty while unknown."""
    adapters: tuple[str, ...] = ()
    """Of these, LoRA adapters."""


class ReplicaLoad(msgspec.Struct, frozen=True, gc=False):
    replica: ReplicaId
    running: int
    slower: float = 1.0
    """Factor of its lateness over the others' (`gateway/fleet/outliers.py`)."""
    seems_slower: float = 1.0
    """The same with less evidence, for sessions without state there."""
    price: float = 0.0
    """Of a second there, as time."""
