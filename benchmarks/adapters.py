"""What is it worth to know where a LoRA adapter has a place? (docs/design/models.md)

    python -m benchmarks.adapters

The brain places sessions of adapters on toy engines that follow vLLM's rule: at most so many different
adapters are in one batch, and a request for one more waits until all requests of one of them are over. The
same sessions are played with what the brain knows of places, and without.
"""

import random
import statistics
from heapq import heappop, heappush
from typing import Final

import msgspec

from gateway.assembly import assemble
from gateway.config import Config
from gateway.core import events as ev
from gateway.core.commands import Dispatch, Refuse
from gateway.domain.engine import EngineSignals
from gateway.domain.fleet import ReplicaFacts
from gateway.domain.ids import PoolId, ReplicaId, RequestId, TenantId
from gateway.domain.request import Answer, ExplicitId, Protocol, RequestFacts, Usage, Work
from gateway.domain.session_ids import numbered_ids

REPLICAS: Final = 4
SESSIONS: Final = 300
SEEDS: Final = (1, 2, 3)
STEP_S: Final = 0.02
SHAPES: Final = ((8, 2, 0.8), (8, 2, 1.6), (4, 1, 0.8), (16, 4, 2.0), (3, 4, 1.6))
"""Adapters, of which Zipf's law says how often each is asked for; how many an engine runs at a time; sessions
a second."""


class _Turn(msgspec.Struct):
    adapter: str
    session: int
    number: int
    arrived_s: float
    left_s: float
    """Of its work, alone on an engine."""
    output_tokens: int


class _Engine:
    def __init__(self, most: int) -> None:
        self.most = most
        self.waiting: list[RequestId] = []
        self.running: list[RequestId] = []


class Play:
    """One run of all sessions."""

    def __init__(
        self, adapters: int, most: int, sessions_per_s: float, seed: int, *, knows_places: bool
    ) -> None:
        self._rng = rng = random.Random(seed)
        settings = {"pools": [{"replicas": [{"url": "http://engine"}]}]}
        self._brain = assemble(msgspec.convert(settings, Config), session_ids=numbered_ids())
        self._knows_places = knows_places
        self._engines = {ReplicaId(f"r{number}"): _Engine(most) for number in range(REPLICAS)}
        self._turns: dict[RequestId, _Turn] = {}
        self._now = 1000.0
        self._due: list[tuple[float, int, int]] = []
        """Turns to come: when, of which session, which one."""
        self.took_s: list[float] = []
        names = [f"adapter-{number}" for number in range(adapters)]
        for replica in self._engines:
            listed = ("base", *names)
            facts = ReplicaFacts(id=replica, pool=PoolId("default"), models=listed, adapters=tuple(names))
            self._tell(ev.ReplicaCameUp(facts))
        at_s, shares = self._now, [1 / (number + 1) for number in range(adapters)]
        self._adapters = rng.choices(names, shares, k=SESSIONS)
        self._lengths = [rng.randint(2, 8) for _ in range(SESSIONS)]
        self._tokens = [rng.randint(2000, 6000) for _ in range(SESSIONS)]
        for session in range(SESSIONS):
            at_s += rng.expovariate(sessions_per_s)
            heappush(self._due, (at_s, session, 0))

    def run(self) -> float:
        """The mean time of a turn, in seconds."""
        report_s = self._now
        while len(self.took_s) < sum(self._lengths):
            self._now += STEP_S
            if self._now >= report_s:
                report_s += 1.0
                self._report()
            due_s = self._brain.next_deadline_s()
            if due_s is not None and due_s <= self._now:
                self._tell(ev.TimerFired())
            while self._due and self._due[0][0] <= self._now:
                self._arrive(*heappop(self._due)[1:])
            for engine in self._engines.values():
                self._step(engine)
        return statistics.mean(self.took_s)

    def _tell(self, event: ev.Event) -> None:
        for command in self._brain.handle(event, now=self._now):
            assert not isinstance(command, Refuse)
            if isinstance(command, Dispatch):
                self._engines[command.placement.replica].waiting.append(command.request)

    def _report(self) -> None:
        for replica, engine in self._engines.items():
            signals = EngineSignals(
                kv_tokens=400_000,
                kv_used=0.3,
                running=len(engine.running),
                waiting=len(engine.waiting),
                most_adapters=engine.most if self._knows_places else None,
            )
            self._tell(ev.EngineReported(replica, signals))

    def _arrive(self, session: int, number: int) -> None:
        request = RequestId(f"{session}.{number}")
        tokens, work_s = self._tokens[session], self._rng.uniform(0.5, 4.0)
        self._turns[request] = _Turn(
            adapter=self._adapters[session],
            session=session,
            number=number,
            arrived_s=self._now,
            left_s=work_s + tokens / 8000,
            output_tokens=int(60 * work_s),
        )
        is_last = number == self._lengths[session] - 1
        facts = RequestFacts(
            protocol=Protocol.CHAT,
            work=Work.GENERATE,
            model=self._adapters[session],
            stream=True,
            body_bytes=4 * tokens,
            is_replayable=True,
            explicit=ExplicitId(schema="codex", session=str(session), final=is_last),
        )
        self._tell(ev.RequestArrived(request, TenantId("t"), facts))

    def _step(self, engine: _Engine) -> None:
        running = {self._turns[request].adapter for request in engine.running}
        for request in tuple(engine.waiting):
            adapter = self._turns[request].adapter
            if adapter in running or len(running) < engine.most:
                running.add(adapter)
                engine.waiting.remove(request)
                engine.running.append(request)
                self._tell(ev.ResponseStarted(request, 200))
                self._tell(ev.FirstTokenSeen(request))
        done_s = STEP_S / (1 + 0.06 * len(engine.running))
        for request in tuple(engine.running):
            turn = self._turns[request]
            turn.left_s -= done_s
            if turn.left_s <= 0:
                engine.running.remove(request)
                self._end(request, turn)

    def _end(self, request: RequestId, turn: _Turn) -> None:
        self.took_s.append(self._now - turn.arrived_s)
        prompt = self._tokens[turn.session]
        usage = Usage(prompt_tokens=prompt, cached_tokens=0, output_tokens=turn.output_tokens)
        self._tell(ev.ResponseFinished(request, Answer(status=200, has_terminal=True, usage=usage)))
        self._tokens[turn.session] += turn.output_tokens + 300
        if turn.number + 1 < self._lengths[turn.session]:
            heappush(self._due, (self._now + self._rng.uniform(0.5, 3.0), turn.session, turn.number + 1))


def main() -> None:
    print(
        "| adapters | at a time | sessions a second | without, s | with, to without |\n|---|---|---|---|---|"
    )
    for shape in SHAPES:
        means = [[Play(*shape, seed, knows_places=knows).run() for knows in (False, True)] for seed in SEEDS]
        without = ", ".join(f"{before:.1f}" for before, _ in means)
        ratios = ", ".join(f"{after / before:.2f}" for before, after in means)
        print(f"| {shape[0]} | {shape[1]} | {shape[2]:g} | {without} | {ratios} |", flush=True)


if __name__ == "__main__":
    main()
