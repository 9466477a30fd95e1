"""Small worlds for tests of the simulator: a slow little model, and random workloads."""

import random
from collections.abc import Sequence

import pytest
from msgspec.structs import replace

from gateway.cost.profile import Hardware, Model, Profile
from gateway.domain.records import Record
from lab.simulator.results import ReplicaSample, SessionOutcome, TurnOutcome
from lab.workload.trace.format import Session, Thread, Tool, Turn, TurnRef

IMPORTS_VLLM = [pytest.mark.slow, pytest.mark.filterwarnings("ignore"), pytest.mark.timeout(600)]
"""What importing it asks for: it is slow and loud."""

_HARDWARE = Hardware(
    name="slow",
    peak_flops=2e12,
    memory_bytes_per_s=50e9,
    memory_bytes=16e9,
    host_link_bytes_per_s=1e9,
    source="made up",
)
_MODEL = Model(
    name="little",
    active_parameters=1e9,
    dense_weight_bytes=2e9,
    kv_bytes_per_token=8192,
    attention_flops_per_context_token=65_536,
    source="made up",
)
LITTLE = Profile(hardware=_HARDWARE, model=_MODEL, chunk_tokens=512, kv_capacity_tokens=20_000)


def load_little(name: str) -> Profile:
    """Every fleet of these tests consists of the same replicas."""
    return LITTLE


class Recorder:
    """A sink that keeps everything."""

    def __init__(self) -> None:
        self.turns: list[TurnOutcome] = []
        self.sessions: list[SessionOutcome] = []
        self.samples: list[tuple[float, tuple[ReplicaSample, ...]]] = []
        self.records: list[Record] = []

    def turn_done(self, outcome: TurnOutcome) -> None:
        self.turns.append(outcome)

    def session_done(self, outcome: SessionOutcome) -> None:
        self.sessions.append(outcome)

    def sample(self, at_s: float, replicas: Sequence[ReplicaSample]) -> None:
        self.samples.append((at_s, tuple(replicas)))

    def record(self, record: Record) -> None:
        self.records.append(record)


def sessions(count: int, *, every_s: float, seed: int, longest: int = 4000) -> list[Session]:
    """Random sessions, some with sub-agents; the prompts of a conversation build on one another."""
    dice = random.Random(seed)
    now, made = 0.0, []
    for number in range(count):
        now += dice.expovariate(1 / every_s)
        threads = [_thread(dice, longest, f"sys-{number % 2}")]
        if dice.random() < 0.3:
            threads = _with_sub_agent(dice, threads[0], longest)
        made.append(
            Session(
                id=f"s{number}",
                arrival_s=now,
                threads=tuple(threads),
                tenant=f"t{number % 3}",
                agent_type=f"type-{number % 2}",
            )
        )
    return made


def _thread(dice: random.Random, longest: int, key: str) -> Thread:
    turns: list[Turn] = []
    tokens = dice.randint(200, 1500)
    before: int | None = None
    for at in range(dice.randint(1, 6)):
        output = dice.randint(1, 120)
        if tokens + output > longest:
            break
        tools = tuple(
            Tool(name="bash", duration_s=dice.expovariate(1 / 2), cpu_cores=dice.choice((0.0, 1.0, 2.0)))
            for _ in range(dice.randint(0, 2))
        )
        turns.append(
            Turn(
                input_tokens=tokens,
                output_tokens=output,
                prefix_of=None if before is None else TurnRef(0, at - 1),
                prefix_tokens=before or 0,
                tools=tools,
                pause_s=dice.expovariate(1 / 2),
            )
        )
        before = tokens + output
        tokens = before + dice.randint(1, 600)
    return Thread(turns=tuple(turns), shared_key=key, shared_tokens=150)


def _with_sub_agent(dice: random.Random, main: Thread, longest: int) -> list[Thread]:
    """The first turn of the main conversation starts one, and perhaps goes on without waiting for it."""
    sub = _thread(dice, longest, "sub")
    sub_turns = tuple(
        turn if turn.prefix_of is None else replace(turn, prefix_of=TurnRef(1, turn.prefix_of.turn))
        for turn in sub.turns
    )
    tool = Tool(name="task", duration_s=0.5, starts_thread=1, is_detached=dice.random() < 0.5)
    first = replace(main.turns[0], tools=(*main.turns[0].tools, tool))
    return [
        replace(main, turns=(first, *main.turns[1:])),
        replace(sub, turns=sub_turns),
    ]
