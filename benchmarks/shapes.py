"""The shapes of traffic, and one measurement of a gateway under one of them.

Of what agents do, the figure is the processor time that the gateway takes for a turn: a rate says little
where others use the machine, and no gateway is asked for more than it can do. Whatever the shape, a session
pauses between an answer and its next request, as one does whose tool runs: its connection does (`pause_s`),
or serves other sessions meanwhile (`crowd`).
"""

import itertools
import random
import statistics
from collections.abc import Sequence
from enum import Enum
from typing import Final

import msgspec
import uvloop

from benchmarks.answers import StreamParts
from benchmarks.conversations import SYSTEM_CHARS, Conversation, Crowd, text
from benchmarks.dialects import CHAT, MESSAGES, RESPONSES, Dialect
from benchmarks.load import Check, drive, is_right, is_right_stream
from benchmarks.peers import Gateway
from benchmarks.processes import Pinning, used_so_far

AGENTS: Final = 16
KINDS: Final = 4
"""Of agents; those of one kind have the same system prompt and tools."""
TOKENS: Final = 300
TOKEN_MS: Final = 4.0
TOOL_S: Final = 0.4
EVENTS: Final = 64
"""Of short streams."""
_GROWING_TURNS: Final = 64


class Unit(Enum):
    CPU = "CPU µs a turn"
    LATENCY = "ms (median)"
    ANSWERS = "requests/s"
    EVENTS = "events/s"


class Stream(msgspec.Struct, frozen=True):
    """Of answers."""

    tokens: int
    interval_ms: float
    """Between two of them."""


class Shape(msgspec.Struct, frozen=True, kw_only=True):
    name: str
    title: str
    unit: Unit
    connections: int
    first_bytes: int
    turn_bytes: int = 400
    turns: int = 1
    grows: bool = False
    """So much that agents had better be at different lengths."""
    stream: Stream | None = None
    """None for whole answers."""
    crowd: int = 1
    """Sessions on each connection."""
    pause_s: float = 0.0
    dialect: Dialect = CHAT
    bound: float | None = None
    """Of the ratio to the better router: at least this, or where less is better at most this."""

    @property
    def is_less_better(self) -> bool:
        return self.unit in (Unit.CPU, Unit.LATENCY)


_PACED: Final = Stream(TOKENS, TOKEN_MS)
_AT_ONCE: Final = Stream(EVENTS, 0.0)


def _turns(dialect: Dialect, kb: int, first_kb: float, turn_bytes: int) -> Shape:
    return Shape(
        name=f"turns_{kb}kb_{dialect.name}",
        title=f"Turns of {kb} KB ({dialect.name}), answers of {TOKENS} tokens with a call",
        unit=Unit.CPU,
        connections=AGENTS,
        first_bytes=int(first_kb * 1024),
        turn_bytes=turn_bytes,
        turns=_GROWING_TURNS,
        stream=_PACED,
        pause_s=TOOL_S,
        dialect=dialect,
        bound=1.15,
    )


SHAPES: Final = (
    Shape(
        name="json_2kb_c1", title="2 KB JSON, 1 connection", unit=Unit.LATENCY, connections=1, crowd=400,
        first_bytes=2000,
    ),
    Shape(
        name="json_2kb_c32", title="2 KB JSON, 32 connections", unit=Unit.ANSWERS, connections=32, crowd=24,
        first_bytes=2000,
    ),
    Shape(
        name="sse_64_c64", title=f"Streams of {EVENTS} tokens, 64 connections", unit=Unit.EVENTS,
        connections=64, crowd=4, first_bytes=2000, stream=_AT_ONCE,
    ),
    *(_turns(dialect, 100, 80, 2000) for dialect in (CHAT, RESPONSES, MESSAGES)),
    msgspec.structs.replace(
        _turns(CHAT, 400, 10, 8000), name="turns_growing_chat", grows=True,
        title=f"Turns of 10 to 400 KB (chat), answers of {TOKENS} tokens with a call",
    ),
)  # fmt: skip


class Measured(msgspec.Struct, kw_only=True):
    value: float
    """In the shape's unit."""
    cpu_us: float
    """The gateway's processor time for one answer; 0 where there is no gateway."""
    core_share: float
    """Of the measured time, how much the gateway ran."""
    strangers_share: float
    """And how much its core ran something else."""
    answers: int
    failures: int
    first_failure: str


Agents = Sequence[Conversation | Crowd]


def conversations(shape: Shape, rng: random.Random) -> Agents:
    """One for each connection, or a crowd. A fleet has few kinds of agents, and many of each."""
    systems = itertools.cycle([text(rng, SYSTEM_CHARS) for _ in range(KINDS)])

    def one() -> Conversation:
        return Conversation(
            rng,
            first_bytes=shape.first_bytes,
            turn_bytes=shape.turn_bytes,
            turns=shape.turns,
            stream=shape.stream is not None,
            dialect=shape.dialect,
            system=next(systems),
        )

    if shape.crowd > 1:
        return [Crowd([one() for _ in range(shape.crowd)]) for _ in range(shape.connections)]
    agents = [one() for _ in range(shape.connections)]
    if shape.grows:
        for number, agent in enumerate(agents):
            agent.skip_to(number * shape.turns // len(agents))
    return agents


def measure(gateway: Gateway, shape: Shape, agents: Agents, pinning: Pinning, *, seconds: float) -> Measured:
    """Runs in this process, which should be on the cores of the load. The conversations go on."""
    check: Check = is_right
    if shape.stream is not None:
        check = is_right_stream(StreamParts(shape.stream.tokens, shape.dialect.name).events)
    pid = gateway.process.pid if gateway.process is not None else None
    core = min(pinning.gateway)
    before = used_so_far(pid, core)
    outcome = uvloop.run(
        drive(gateway.port, agents, check, warm_up_s=seconds * 0.25, seconds=seconds, pause_s=shape.pause_s)
    )
    wall_s, cpu_s, busy_s = (after - then for after, then in zip(used_so_far(pid, core), before, strict=True))
    cpu_us = cpu_s / max(1, outcome.answered) * 1e6
    values = {
        Unit.CPU: cpu_us,
        Unit.LATENCY: statistics.median(outcome.latencies_ms or [0.0]),
        Unit.ANSWERS: outcome.answers / outcome.seconds,
        Unit.EVENTS: outcome.events / outcome.seconds,
    }
    return Measured(
        value=values[shape.unit],
        cpu_us=cpu_us,
        core_share=cpu_s / wall_s,
        strangers_share=max(0.0, busy_s - cpu_s) / wall_s if pid is not None else 0.0,
        answers=outcome.answered,
        failures=outcome.failures,
        first_failure=outcome.first_failure,
    )
