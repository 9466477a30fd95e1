"""What is measured on a GPU, and the same, smaller, for a rehearsal on a CPU."""

from typing import Any, Final

import msgspec

from benchmarks.gateway import Settings
from benchmarks.live import Kind
from lab.simulator.live.chat_agents import Talk
from lab.workload.trace.format import Session


class Scale(msgspec.Struct, frozen=True, kw_only=True):
    models: tuple[str, ...]
    """The first one, or, where it does not start, another (`model.py`)."""
    block: int
    kv_blocks: int
    longest: int
    chunk: int
    sequences: int
    is_eager: bool
    flags: tuple[str, ...] = ()
    """Of the engine, beside those."""
    chunks: tuple[int, ...]
    """New tokens of the measured prefills, each …"""
    contexts: tuple[int, ...]
    """… behind each of these."""
    rows: tuple[tuple[int, int], ...]
    """Of the measured decodes: sequences, and the context of each."""
    repeats: int
    """Of each prefill, and steps of each decode by 16."""
    kind: Kind
    """Of the sessions that the arms play."""
    sessions: int


class Load(msgspec.Struct, frozen=True):
    """What the arms play. It travels: another Python would make other words, and other tokens of them."""

    sessions: list[Session]
    """With the tokens that agents send and get."""
    talks: dict[str, Talk]


GPU: Final = Scale(
    models=("moe", "dense"),
    block=16,
    kv_blocks=5_688,  # the shipped H100 profile's 91,000 tokens
    longest=65_536,
    chunk=8_192,
    sequences=64,
    is_eager=False,
    flags=(
        *("--gpu-memory-utilization", ".93"),
        "--compilation-config",
        '{"mode":0,"cudagraph_mode":"FULL_DECODE_ONLY","cudagraph_capture_sizes":[1,2,4,8,16,32,64]}',
    ),
    chunks=(2_048, 4_096, 8_192),
    contexts=(0, 16_384, 32_768),
    rows=((1, 1_024), (8, 1_024), (32, 1_024), (64, 1_024), (1, 32_768), (8, 8_192)),
    repeats=5,
    kind=Kind(
        name="gpu",
        seed=1_001,
        turns=(6, 6),
        first_tokens=(16_000, 24_000),
        grows_by=(1_000, 2_500),
        output_tokens=(60, 120),
        tool_s=3.0,
        apart_s=2.5,
    ),
    sessions=16,
)
REHEARSAL: Final = Scale(
    models=("tiny",),
    block=32,
    kv_blocks=200,
    longest=4_096,
    chunk=512,
    sequences=8,
    is_eager=True,
    chunks=(128, 256, 512),
    contexts=(0, 512),
    rows=((1, 64), (4, 64), (1, 1_024)),
    repeats=3,
    kind=Kind(
        name="gpu",
        seed=1_001,
        turns=(3, 3),
        first_tokens=(900, 1_200),
        grows_by=(100, 200),
        output_tokens=(30, 40),
        tool_s=0.2,
        apart_s=0.1,
    ),
    sessions=4,
)
_SHADOW: Final[Settings] = {"admission": {"shadow": True}}
_CAP: Final[dict[str, Any]] = {"policy": "session-cap", "session_cap": 4}
ARMS: Final[dict[str, Settings]] = {
    "shadow": _SHADOW,
    "turnpike": {},
    "cap": {"admission": _CAP},
    "plugin": {},
    "drift": _SHADOW,
}
"""Settings of the gateway. `plugin`: its engine has the plugin; `drift`: `shadow` again, at the end."""
