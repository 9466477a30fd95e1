"""What live benchmarks share: sessions, real servers on the CPU that answer them, and what became of them."""

import asyncio
import json
import os
import random
import statistics
import time
import urllib.request
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any, Final

import aiohttp
import msgspec

from benchmarks.processes import Strangers, on_cpus
from benchmarks.speedometer import pace_s
from benchmarks.verdict import percentile
from lab.engine.step_log import VARIABLE, Step, read
from lab.simulator.live.endpoint import Endpoint
from lab.simulator.live.player import Work, play, sleep
from lab.simulator.results import Ignore, SessionOutcome, TurnOutcome
from lab.workload.trace.format import Session, Thread, Tool, Turn, TurnRef
from scripted_engine import process as scripted

MODEL: Final = "scripted"
BLOCK: Final = 32
LONGEST: Final = 32_768
CHUNK: Final = 2_048
_HEALTHY_WITHIN_S: Final = 600.0
SEQUENCES: Final = 64
SCRIPT: Final = {"default": {"turns": [{"text": " and so on" * 500}]}, "scripts": {}}
"""Long enough that whoever asks for tokens gets words."""


class Kind(msgspec.Struct, frozen=True, kw_only=True):
    """Sessions of one workload."""

    name: str
    seed: int
    turns: tuple[int, int]
    first_tokens: tuple[int, int]
    grows_by: tuple[int, int]
    output_tokens: tuple[int, int]
    tool_s: float
    apart_s: float
    """Between two arrivals, on average."""


def drawn(kind: Kind, count: int) -> list[Session]:
    dice = random.Random(kind.seed)
    sessions, arrival_s = [], 0.0
    for number in range(count):
        turns: list[Turn] = []
        tokens = dice.randint(*kind.first_tokens)
        for at in range(dice.randint(*kind.turns)):
            output = dice.randint(*kind.output_tokens)
            before = turns[-1].input_tokens + turns[-1].output_tokens if turns else 0
            tool = Tool(name="tool", duration_s=dice.expovariate(1 / kind.tool_s))
            turns.append(
                Turn(
                    input_tokens=tokens,
                    output_tokens=output,
                    prefix_of=TurnRef(0, at - 1) if at else None,
                    prefix_tokens=before,
                    tools=(tool,),
                )
            )
            tokens += output + dice.randint(*kind.grows_by)
        thread = Thread(turns=tuple(turns), shared_key="agent", shared_tokens=500)
        sessions.append(Session(id=f"{kind.name}-{number}", threads=(thread,), arrival_s=arrival_s))
        arrival_s += dice.expovariate(1 / kind.apart_s)
    return sessions


class Completions(Ignore):
    """How long each session took, and when its turns ran."""

    def __init__(self) -> None:
        self.seconds: dict[str, float] = {}
        self.turns: list[TurnOutcome] = []
        self.failed = 0
        self.began_s = 0.0
        """By the wall clock, if it was live."""
        self.pace_s = 0.0
        """Of the machine meanwhile, if it was live."""
        self.strangers = 0.0
        """Their share of the machine meanwhile, if it was live."""
        self.stream: Path | None = None
        """The gateway's information stream, if it was live."""

    def turn_done(self, outcome: TurnOutcome) -> None:
        self.turns.append(outcome)

    def session_done(self, outcome: SessionOutcome) -> None:
        self.seconds[outcome.id] = outcome.end_s - outcome.arrival_s
        self.failed += outcome.failed

    def of(self, names: str) -> "Completions":
        """Of the sessions whose names begin so."""
        found = Completions()
        found.pace_s, found.strangers, found.failed = self.pace_s, self.strangers, self.failed
        found.seconds = {name: each for name, each in self.seconds.items() if name.startswith(names)}
        found.turns = [turn for turn in self.turns if turn.session.startswith(names)]
        return found

    @property
    def mean(self) -> float:
        return statistics.mean(self.seconds.values())

    @property
    def p90(self) -> float:
        return percentile(list(self.seconds.values()), 90)


def launch(stack: ExitStack, engines: Sequence[scripted.ScriptedEngine], *, are_pinned: bool = True) -> None:
    """Side by side, each on a core of its own as far as there are as many. They end with `stack`."""
    cores = sorted(os.sched_getaffinity(0))
    for number, engine in enumerate(engines):
        stack.callback(engine.stop)
        with on_cpus(frozenset({cores[number % len(cores)]} if are_pinned else cores)):
            engine.launch()
    for engine in engines:
        engine.wait_healthy(_HEALTHY_WITHIN_S)


class Engines:
    def __init__(
        self,
        stack: ExitStack,
        at: Path,
        *,
        replicas: int,
        kv_blocks: int,
        scripts: Mapping[str, Any] = SCRIPT,
        flags: Sequence[str] = (),
        env: Mapping[str, str] | None = None,
        are_pinned: bool = True,
    ) -> None:
        self._logs = [at / f"steps-{number}" for number in range(replicas)]
        options = [_options(log, kv_blocks, flags, env or {}) for log in self._logs]
        engines = [scripted.ScriptedEngine(scripts, each) for each in options]
        launch(stack, engines, are_pinned=are_pinned)
        self.urls = [engine.url for engine in engines]
        self.kv_blocks = kv_blocks
        """Of each."""

    def steps(self, since_s: float = 0.0) -> list[list[Step]]:
        """Of each engine, that began since then, by the wall clock."""
        return [[step for step in read(log) if step.began_s >= since_s] for log in self._logs]


def _options(
    log: Path, kv_blocks: int, flags: Sequence[str], env: Mapping[str, str]
) -> scripted.EngineOptions:
    return scripted.EngineOptions(
        served_model_names=(MODEL,),
        max_model_len=LONGEST,
        block_size=BLOCK,
        extra_args=(
            *("--num-gpu-blocks-override", str(kv_blocks)),
            *("--max-num-batched-tokens", str(CHUNK)),
            *("--max-num-seqs", str(SEQUENCES)),
            *("--scheduler-cls", "lab.engine.logging_scheduler.LoggingScheduler"),
            *flags,
        ),
        extra_env={
            "VLLM_SERVER_DEV_MODE": "1",  # for `/reset_prefix_cache`
            VARIABLE: str(log),
            **env,
        },
    )


def followed(engine: str) -> float:
    """Hints that it followed."""
    with urllib.request.urlopen(f"{engine}/turnpike/kv", timeout=60) as answer:
        return float(json.load(answer)["counters"]["hints"].get("followed", 0))


def played(
    sessions: Iterable[Session],
    engines: Sequence[str],
    endpoint: Callable[[aiohttp.ClientSession], Endpoint],
    work: Work = sleep,
) -> Completions:
    """`engines`: their URLs. Their caches are empty when it begins, as simulated ones are."""
    found = Completions()

    async def run() -> None:
        connector = aiohttp.TCPConnector(limit=0)
        timeout = aiohttp.ClientTimeout(total=600)
        async with aiohttp.ClientSession(
            connector=connector, timeout=timeout, read_bufsize=1 << 20
        ) as client:
            for engine in engines:
                async with client.post(f"{engine}/reset_prefix_cache") as answer:
                    answer.raise_for_status()
            found.began_s = time.time()
            await play(sessions, endpoint(client), found, work=work)

    before_s, strangers = pace_s(), Strangers()
    asyncio.run(run())
    found.strangers = strangers.share
    found.pace_s = statistics.fmean((before_s, pace_s()))
    return found
