"""The shapes of traffic, and one measurement of a gateway under one of them.

Beside what the clients saw, a measurement notes how much processor time the gateway used for it, and how
much of the gateway's core went to strangers: on a shared machine that tells what to make of a round.
"""

import random
import statistics
from typing import Final

import msgspec
import uvloop

from benchmarks.conversations import Conversation
from benchmarks.load import drive, is_right, is_right_stream
from benchmarks.peers import Gateway
from benchmarks.processes import Pinning, used_so_far

EVENTS: Final = 64
_GROWING_TURNS: Final = 64


class Shape(msgspec.Struct, frozen=True, kw_only=True):
    name: str
    title: str
    unit: str
    connections: int
    first_bytes: int
    turn_bytes: int = 400
    turns: int = 1
    events: int = 0
    """Of each answer; 0 for whole answers."""
    is_time: bool = False
    """The figure is a time, so less is better."""
    bound: float
    """Of the ratio to the fastest Rust peer: at least this, or for a time at most this."""


SHAPES: Final = (
    Shape(
        name="json_2kb_c1", title="2 KB JSON, 1 connection", unit="ms (median)", connections=1,
        first_bytes=2000, is_time=True, bound=0.7,
    ),
    Shape(
        name="json_2kb_c32", title="2 KB JSON, 32 connections", unit="requests/s", connections=32,
        first_bytes=2000, bound=1.5,
    ),
    Shape(
        name="json_400kb_c8", title="400 KB JSON of growing conversations, 8 connections",
        unit="requests/s", connections=8, first_bytes=350 << 10, turn_bytes=1600, turns=_GROWING_TURNS,
        bound=1.3,
    ),
    Shape(
        name="sse_64_c64", title=f"Streams of {EVENTS} events, 64 connections", unit="events/s",
        connections=64, first_bytes=2000, events=EVENTS, bound=1.3,
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


def conversations(shape: Shape, rng: random.Random) -> list[Conversation]:
    """One for each connection; those that grow start at different lengths."""
    return [
        Conversation(
            rng,
            first_bytes=shape.first_bytes,
            turn_bytes=shape.turn_bytes,
            turns=shape.turns,
            stream=bool(shape.events),
        )
        for _ in range(shape.connections)
    ]


def measure(
    gateway: Gateway, shape: Shape, agents: list[Conversation], pinning: Pinning, *, seconds: float
) -> Measured:
    """Runs in this process, which should be on the cores of the load."""
    for number, agent in enumerate(agents):
        agent.skip_to(number * shape.turns // len(agents))
    check = is_right_stream(shape.events) if shape.events else is_right
    pid = gateway.process.pid if gateway.process is not None else None
    core = min(pinning.gateway)
    before = used_so_far(pid, core)
    outcome = uvloop.run(drive(gateway.port, agents, check, warm_up_s=seconds * 0.25, seconds=seconds))
    wall_s, cpu_s, busy_s = (after - then for after, then in zip(used_so_far(pid, core), before, strict=True))
    if shape.is_time:
        value = statistics.median(outcome.latencies_ms) if outcome.latencies_ms else 0.0
    else:
        value = (outcome.events if shape.events else outcome.answers) / outcome.seconds
    # The warm-up and the last answers cost processor time too.
    share = outcome.seconds / wall_s
    return Measured(
        value=value,
        cpu_us=cpu_s * share / max(1, outcome.answers) * 1e6,
        core_share=cpu_s / wall_s,
        strangers_share=max(0.0, busy_s - cpu_s) / wall_s if pid is not None else 0.0,
        answers=outcome.answers,
        failures=outcome.failures,
        first_failure=outcome.first_failure,
    )
