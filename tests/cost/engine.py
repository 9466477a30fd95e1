"""An engine that is all roofline: chunked prefill, continuous batching, prefix caching; with noise.

Steps take what the profile says, times log-normal noise. Sessions grow turn by turn; those that are at work
at once queue for the same steps. What it does not have: preemption, and anything that a real server does
outside its steps.
"""

import heapq
import math
import random
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, field

from gateway.cost.formula import context_product
from gateway.cost.profile import Profile
from lab.simulator.engine.roofline import Batch, step_s


@dataclass
class Served:
    session: int
    arrived_s: float
    prompt_tokens: int
    cached_tokens: int
    believed_cached_tokens: int
    output_tokens: int
    computed: int = 0
    produced: int = 0
    first_token_s: float | None = None
    ended_s: float | None = None

    @property
    def context_tokens(self) -> int:
        return self.prompt_tokens + self.produced


@dataclass
class Traffic:
    sessions: int
    rng: random.Random
    gap_s: float = 4.0
    miss_share: float = 0.02
    """Turns that find less cached than was believed."""
    context: dict[int, int] = field(default_factory=dict)
    first_prompt: tuple[int, int] = (4_000, 30_000)
    step_tokens: float = 900.0
    output_tokens: float = 150.0
    longest: int = 110_000

    def turn(self, session: int, now: float) -> Served:
        known = self.context.get(session, 0)
        if known == 0 or known > self.longest:
            known, new = 0, self.rng.randint(*self.first_prompt)
        else:
            new = 16 + int(self.rng.lognormvariate(math.log(self.step_tokens), 1.0))
        output = 8 + int(self.rng.lognormvariate(math.log(self.output_tokens), 0.7))
        self.context[session] = known + new + output
        cached = 0 if self.rng.random() < self.miss_share else known
        return Served(session, now, known + new, cached, known, output)


class Engine:
    """Serves the traffic; `run` yields `("sent" | "first" | "end", now, turn)` in the order of time."""

    def __init__(self, profile: Profile, traffic: Traffic, *, noise: float, rng: random.Random) -> None:
        self.profile, self.traffic, self.noise, self.rng = profile, traffic, noise, rng
        self.due = [(rng.random() * traffic.gap_s, session) for session in range(traffic.sessions)]
        self.waiting: deque[Served] = deque()
        self.decoding: list[Served] = []
        self.now = 0.0
        heapq.heapify(self.due)

    def run(self) -> Iterator[tuple[str, float, Served]]:
        while True:
            if not self.waiting and not self.decoding:
                self.now = max(self.now, self.due[0][0])
                yield from self._arrivals()
            step, prefilled = self._schedule()
            self.now += step_s(self.profile, step) * self.rng.lognormvariate(0.0, self.noise)
            yield from self._arrivals()  # who arrives during the step waits for the next one
            yield from self._finish(prefilled)

    def _arrivals(self) -> Iterator[tuple[str, float, Served]]:
        while self.due and self.due[0][0] <= self.now:
            at, session = heapq.heappop(self.due)
            turn = self.traffic.turn(session, at)
            turn.computed = turn.cached_tokens
            self.waiting.append(turn)
            yield "sent", at, turn

    def _schedule(self) -> tuple[Batch, list[Served]]:
        tokens, products, prefilled = len(self.decoding), 0.0, []
        for turn in self.waiting:
            size = min(self.profile.chunk_tokens - tokens, turn.prompt_tokens - turn.computed)
            products += context_product(size, turn.computed)
            turn.computed += size
            tokens += size
            if turn.computed == turn.prompt_tokens:
                prefilled.append(turn)
        read = sum(turn.context_tokens for turn in self.decoding)
        step = Batch(new_tokens=tokens, prefill_context_products=products, decode_context_tokens=read)
        return step, prefilled

    def _finish(self, prefilled: list[Served]) -> Iterator[tuple[str, float, Served]]:
        for turn in prefilled:
            self.waiting.remove(turn)
            turn.first_token_s = self.now
            yield "first", self.now, turn
        self.decoding += prefilled
        for turn in self.decoding:
            turn.produced += 1
        for turn in [turn for turn in self.decoding if turn.produced >= turn.output_tokens]:
            self.decoding.remove(turn)
            turn.ended_s = self.now
            yield "end", self.now, turn
            gap_s = self.rng.expovariate(1 / self.traffic.gap_s)
            heapq.heappush(self.due, (self.now + gap_s, turn.session))
