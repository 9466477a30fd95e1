"""Does holding a session's KV across its tool calls pay, and who pays for it?

1. Two sessions pause with 88 of 159 blocks, twelve strangers of 1,000 tokens pass, then both go on.
2. Ten sessions with tool calls of 0.1 to 20 s, and strangers at 0.7 and 0.95 of the rate that saturates the
   engine beside them, all behind a session window: an arrival waits outside until its footprint fits 0.9 of
   the KV cache. Stock vLLM behind the same window against the plugin: hit rate of later turns, completion of
   the sessions, of the strangers, and of all. Completion is measured from arrival outside.
3. The same without a window at 1.2 of that rate: there is no room to hold anything. What is lost is bounded.
"""

import heapq
import math
import random
import statistics
from collections import deque
from dataclasses import dataclass, field
from typing import Any

from benchmarks.plugin.engines import SEED, bias_count, hint, prompt, quiet_engine
from benchmarks.verdict import Verdict
from lab.engine.simulated import SimulatedEngine, SimulatedOptions

BLOCK, BLOCKS = 64, 1_601
WINDOW = 0.9


SESSIONS, TURNS = 10, 8
"""As many live at any time; of each."""
OPENING, OBSERVATION, ANSWER, STRANGER, STRANGER_ANSWER = 3_000, 400, 60, 2_000, 120
"""Tokens."""
SESSION_TOKENS, STRANGER_TOKENS = OPENING + TURNS * (OBSERVATION + ANSWER), STRANGER + STRANGER_ANSWER
RETAIN_S = 20.0


def measure(is_quick: bool, verdict: Verdict, say: Any) -> None:
    for kind in ("stock", "turnpike"):
        for reserve in (True, False):
            name = f"pause_hit_rate_{kind}{'' if reserve else '_no_reserve'}"
            verdict.tell(name, two_pauses(kind == "turnpike", reserve_full_input=reserve))
    seeds, seconds = ((SEED,), 30.0) if is_quick else ((SEED, SEED + 1, SEED + 2), 90.0)
    saturation = saturating_rate()
    verdict.tell("saturating_strangers_per_s", saturation)
    for load, is_windowed in ((0.7, True), (0.95, True), (1.2, False)):
        shared: Any = {"rate": load * saturation, "seconds": seconds, "is_windowed": is_windowed}
        stock, ours = (
            [Play(has_plugin=has_plugin, seed=seed, **shared).play() for seed in seeds]
            for has_plugin in (False, True)
        )
        judge(verdict, f"{load:g}{'' if is_windowed else '_no_window'}", stock, ours)


def judge(verdict: Verdict, name: str, stock: "list[Run]", ours: "list[Run]") -> None:
    for what in ("hit_rate", "session_s", "turn_ttft_s", "stranger_s", "all_s"):
        for kind, runs in (("stock", stock), ("turnpike", ours)):
            verdict.tell(f"{what}_at_{name}_{kind}", statistics.mean(getattr(run, what) for run in runs))
    ratio = statistics.mean(run.all_s for run in ours) / statistics.mean(run.all_s for run in stock)
    bound = {"0.7": 1.0, "0.95": 0.99, "1.2_no_window": 1.05}[name]
    verdict.at_most(f"all_ratio_at_{name}", ratio, bound)
    losses = statistics.mean(run.stranger_s for run in ours) / statistics.mean(
        run.stranger_s for run in stock
    )
    verdict.tell(f"stranger_ratio_at_{name}", losses)
    verdict.at_least(f"holds_at_{name}", sum(bias_count(run.engine, "holds", "held") for run in ours), 1)


@dataclass
class Run:
    engine: SimulatedEngine
    turns: list[str] = field(default_factory=list)
    """Requests of sessions, first turns left out."""
    sessions: list[float] = field(default_factory=list)
    """How long each took, its tools included."""
    strangers: list[float] = field(default_factory=list)

    @property
    def hit_rate(self) -> float:
        done = [self.engine.done[name] for name in self.turns]
        return sum(each.cached_tokens for each in done) / sum(each.prompt_tokens for each in done)

    @property
    def turn_ttft_s(self) -> float:
        return statistics.mean(self.engine.done[name].ttft_s for name in self.turns)

    @property
    def session_s(self) -> float:
        return statistics.mean(self.sessions)

    @property
    def stranger_s(self) -> float:
        return statistics.mean(self.strangers)

    @property
    def all_s(self) -> float:
        return statistics.mean(self.sessions + self.strangers)


@dataclass
class Agent:
    """A session: arrived at ``since``, has said ``turn`` turns."""

    number: int
    since: float
    rng: random.Random
    turn: int = 0
    history: list[int] = field(default_factory=list)

    @property
    def name(self) -> str:
        return f"agent-{self.number}-{self.since}"


def tokens_of(who: Agent | float) -> int:
    """The footprint."""
    return SESSION_TOKENS if isinstance(who, Agent) else STRANGER_TOKENS


class Play:
    """Sessions and strangers from their arrival outside to their end."""

    def __init__(
        self, *, has_plugin: bool, rate: float, seed: int, seconds: float, is_windowed: bool
    ) -> None:
        self.run = Run(quiet_engine(SimulatedOptions(blocks=BLOCKS, block_size=BLOCK, has_plugin=has_plugin)))
        self.engine = self.run.engine
        self.room = WINDOW * self.engine.total_blocks * BLOCK if is_windowed else math.inf
        self.rng = random.Random(seed)
        self.used = 0
        """Tokens of the footprints inside."""
        self.outside: deque[Agent | float] = deque()
        """Who waits: sessions, and strangers by the time of their arrival."""
        self.inside: dict[str, Agent | float] = {}
        self.events: list[tuple[float, int, Agent | None]] = []
        self.count = 0
        self.end = seconds
        at = 0.0
        while (at := at + self.rng.expovariate(rate)) < seconds:
            self.later(at, None)
        for number in range(SESSIONS):
            # One session ends and another begins: ten live at any time.
            self.later(number * 0.5, Agent(number, number * 0.5, random.Random(seed * 100 + number)))

    def later(self, at: float, agent: Agent | None) -> None:
        self.count += 1
        heapq.heappush(self.events, (at, self.count, agent))

    def play(self) -> Run:
        while self.events or self.inside or self.outside:
            if self.events and (self.events[0][0] <= self.engine.now or self.engine.is_idle):
                at, _, agent = heapq.heappop(self.events)
                if self.engine.is_idle:
                    self.engine.idle_until(at)
                if agent is not None and agent.turn:
                    self.ask(agent)
                else:
                    self.outside.append(at if agent is None else agent)
            else:
                self.engine.step()
            self.collect()
            self.admit()
        return self.run

    def admit(self) -> None:
        while self.outside:
            size = tokens_of(self.outside[0])
            if self.used and self.used + size > self.room:
                return
            self.used += size
            first = self.outside.popleft()
            if isinstance(first, Agent):
                first.history = prompt(self.rng.randrange(10**9), OPENING)
                self.ask(first)
            else:
                tokens = prompt(self.rng.randrange(10**9), STRANGER)
                said = hint(f"stranger-{self.count}-{first}", is_final=True)
                name = self.engine.submit(tokens, max_tokens=STRANGER_ANSWER, hint=said)
                self.inside[name] = first

    def ask(self, agent: Agent) -> None:
        agent.turn += 1
        is_last = agent.turn == TURNS
        said = hint(
            agent.name, is_final=is_last, reuse=0.0 if is_last else 0.9, retain_s=0.0 if is_last else RETAIN_S
        )
        name = self.engine.submit(agent.history, max_tokens=ANSWER, hint=said)
        self.inside[name] = agent
        if agent.turn > 1:
            self.run.turns.append(name)

    def collect(self) -> None:
        for name in [each for each in self.inside if self.engine.done[each].finished is not None]:
            who = self.inside.pop(name)
            now = self.engine.done[name].finished
            assert now is not None
            if not isinstance(who, Agent):
                self.used -= tokens_of(who)
                self.run.strangers.append(now - who)
            elif who.turn < TURNS:
                observed = prompt(who.rng.randrange(10**9), OBSERVATION)
                who.history += self.engine.done[name].tokens + observed
                self.later(now + 0.1 * 200 ** who.rng.random(), who)  # its tool takes 0.1 to 20 s
            else:
                self.used -= tokens_of(who)
                self.run.sessions.append(now - who.since)
                if now < self.end:
                    self.later(now, Agent(who.number, now, who.rng))


def saturating_rate() -> float:
    """Strangers a second that stock vLLM gets done beside the sessions, behind the window, if there are
    always more."""
    seconds = 20.0
    run = Play(has_plugin=False, rate=60.0, seed=SEED, seconds=seconds, is_windowed=True).play()
    done = [each for each in run.engine.done.values() if each.prompt_tokens == STRANGER]
    return sum(1 for each in done if each.finished is not None and each.finished < seconds) / seconds


def two_pauses(has_plugin: bool, *, reserve_full_input: bool) -> float:
    """The share of the later turns' prompts that was still there."""
    engine = quiet_engine(
        SimulatedOptions(
            blocks=160,
            block_size=64,
            has_plugin=has_plugin,
            max_batched_tokens=2_048,
            reserve_full_input=reserve_full_input,
        )
    )
    histories = {}
    for name in ("a", "b"):
        first = prompt(ord(name), 44 * 64 - 40)
        turn = engine.submit(first, max_tokens=41, hint=hint(name, retain_s=10.0, reuse=0.9))
        engine.run()
        histories[name] = first + engine.done[turn].tokens
    for number in range(12):
        engine.submit(prompt(100 + number, 1_000), max_tokens=32)
        engine.run(until=engine.now + 0.02)
    engine.run()
    later = [engine.submit([*histories[name], *prompt(9, 100)], hint=hint(name)) for name in histories]
    engine.run()
    done = [engine.done[name] for name in later]
    return sum(each.cached_tokens for each in done) / sum(each.prompt_tokens for each in done)
