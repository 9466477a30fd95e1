"""The fleet as the brain sees it: replicas by id, their pool, health and abilities."""

import msgspec

from gateway.domain.ids import PoolId, ReplicaId
from gateway.domain.string_enums import Word


class Role(Word):
    """What a replica is for, where prompts may be computed on another one than decodes."""

    BOTH = "both"
    PREFILL = "prefill"
    """It computes prompts for others, and gets no turn of its own while another replica may run it."""
    DECODE = "decode"
    """It computes no prompt for others."""


class Abilities(msgspec.Struct, frozen=True, kw_only=True):
    """What a backend is known to understand. Unknown means no: it then gets the client's bytes alone."""

    engine: str = "unknown"
    version: str | None = None
    session_header: bool = False
    """Reads `X-Session-ID` (vLLM 0.28 and later)."""
    kv_hints: bool = False
    """Knows the envelope `kv_hints` (vLLM 0.31 and later), and may follow actions in it."""
    turnpike_hints: bool = False
    """Runs the plugin `turnpike-vllm`, and so follows hints about sessions."""


class ReplicaFacts(msgspec.Struct, frozen=True, kw_only=True):
    """One replica, as announced by discovery and health checks."""

    id: ReplicaId
    pool: PoolId
    abilities: Abilities = Abilities()
    models: tuple[str, ...] = ()
    """Served model names, as the backend lists them; empty while unknown."""
    adapters: tuple[str, ...] = ()
    """Of these, LoRA adapters of another one."""


class ReplicaLoad(msgspec.Struct, frozen=True, gc=False):
    """A replica that could run a turn, and how many requests it runs now."""

    replica: ReplicaId
    running: int
    slower: float = 1.0
    """Times as late as turns on the others, against what is expected of each; 1 where that is no news."""
    seems_slower: float = 1.0
    """The same, where they are late less often: for those who have nothing there to lose."""
    price: float = 0.0
    """Of a second there, in seconds by which turns may be later elsewhere."""
