"""Prompts computed ahead, and those that run beside them on the same engine.

Two engines: one as a GPU is, where requests of some hundred tokens come and prompts ahead have 8,000; and
(`cpu_`) one as a tiny model on one core, 10 ms and 150 µs a token, where prompts ahead have 2,000, which is
one step. Requests come at three rates. Behind a quarter of them an agent pauses, and its next turn stands
under another system prompt, of which nothing is cached. With prefill ahead what is known of that is computed
in the pause, for one token, until the turn comes; without, when it comes. The same arrivals through the
plugin, as background work of its thread; and through vLLM's scheduler (`stock_`), where the gateway's rule is
played, by which a prefill begins while nothing else is in flight, and is stopped when a turn comes.
"""

import random
from typing import Any, Final

import msgspec

from benchmarks.plugin.engines import SEED, prompt, quiet_engine
from benchmarks.verdict import Verdict, percentile
from gateway.routing.prefill_ahead import has_slack
from lab.engine.simulated import SimulatedEngine, SimulatedOptions, StepTime
from turnpike_vllm.hints import Hint, ServiceClass

_PAUSES: Final = 0.25
_SAID: Final = 40
"""By a turn under another system prompt."""


class Kind(msgspec.Struct, frozen=True, kw_only=True):
    """Of an engine, and of what it is asked."""

    name: str
    step: StepTime
    apart_s: tuple[float, ...]
    known_tokens: int
    new_tokens: int
    pause_s: float
    prompts: tuple[int, ...]
    answers: tuple[int, ...]


GPU: Final = Kind(
    name="",
    step=StepTime(),
    apart_s=(0.12, 0.3, 0.6),
    known_tokens=8_000,
    new_tokens=300,
    pause_s=2.0,
    prompts=(300, 800, 1_500),
    answers=(20, 40, 80),
)
CPU: Final = Kind(
    name="cpu_",
    step=StepTime(base_s=0.01, per_token_s=150e-6),
    apart_s=(0.5, 1.0, 2.0),
    known_tokens=2_000,
    new_tokens=50,
    pause_s=2.5,
    prompts=(100, 150, 600),
    answers=(30, 45, 60),
)


class Seen(msgspec.Struct):
    others_first_s: list[float]
    others_whole_s: list[float]
    switched_first_s: list[float]


def measure(is_quick: bool, verdict: Verdict, say: Any) -> None:
    count = 300 if is_quick else 1_500
    for kind in (GPU, CPU):
        for is_biased in (True, False):
            for apart_s in kind.apart_s:
                without, ahead = (
                    Play(kind, is_biased, with_ahead).seen(apart_s, count) for with_ahead in (False, True)
                )
                for what, q in (
                    ("others_first", 50),
                    ("others_first", 99),
                    ("others_whole", 99),
                    ("switched_first", 50),
                ):
                    before, after = (percentile(getattr(each, f"{what}_s"), q) for each in (without, ahead))
                    scheduler = "plugin" if is_biased else "stock"
                    name = f"{kind.name}{scheduler}_{what}_p{q}_every_{apart_s:g}_s"
                    verdict.at_most(name, after / before, 1.05 if what.startswith("others") else 0.9)


class Play:
    """An engine, and the gateway before it."""

    def __init__(self, kind: Kind, is_biased: bool, with_ahead: bool) -> None:
        self._kind = kind
        self._is_biased = is_biased
        self._with_ahead = with_ahead
        self._engine = quiet_engine(
            SimulatedOptions(
                blocks=4_000,
                block_size=64,
                max_batched_tokens=2_048,
                is_biased=is_biased,
                step_time=kind.step,
            )
        )
        self._turns: list[str] = []
        """In flight."""
        self._wanted: dict[int, None] = {}
        """Of whom the next prompt is to be computed."""
        self._under_way: dict[int, str] = {}

    def seen(self, apart_s: float, count: int) -> Seen:
        rng, kind, engine = random.Random(SEED), self._kind, self._engine
        others: list[str] = []
        switched: list[str] = []
        at = 0.0
        events: list[tuple[float, str, int]] = []
        for number in range(count):
            at += rng.expovariate(1 / apart_s)
            events.append((at, "other", number))
            if rng.random() < _PAUSES:
                begins_s = at + rng.uniform(0.0, 2 * apart_s)
                events += [(begins_s, "pause", number), (begins_s + kind.pause_s, "turn", number)]
        for due_s, what, number in sorted(events):
            while engine.now < due_s and not engine.is_idle:
                engine.step()
                self._begin()
            engine.now = max(engine.now, due_s)
            if what == "other":
                tokens = prompt(number, rng.choice(kind.prompts))
                others.append(self._turn(count + number, tokens, rng.choice(kind.answers)))
            elif what == "turn":
                self._wanted.pop(number, None)
                self._stop(number)
                tokens = [*self._known(number), *prompt(20_000 + number, kind.new_tokens)]
                switched.append(self._turn(number, tokens, _SAID, begins=2))
            elif self._with_ahead:
                self._wanted[number] = None
                self._begin()
        engine.run()
        done = [engine.done[name] for name in others]
        return Seen(
            [each.ttft_s for each in done],
            [each.finished - each.arrived for each in done if each.finished is not None],
            [engine.done[name].ttft_s for name in switched],
        )

    def _turn(self, who: int, tokens: list[int], said: int, begins: int = 1) -> str:
        if not self._is_biased:
            for number in tuple(self._under_way):
                if self._stop(number):
                    self._wanted[number] = None
        name = submit(self._engine, who, tokens, said, begins=begins)
        self._turns.append(name)
        return name

    def _begin(self) -> None:
        self._turns = [name for name in self._turns if self._runs(name)]
        for number in tuple(self._wanted):
            in_flight = len(self._turns) + sum(map(self._runs, self._under_way.values()))
            if not has_slack(in_flight=in_flight, displaces=self._is_biased):
                return
            del self._wanted[number]
            self._under_way[number] = submit(
                self._engine, number, self._known(number), 1, service=ServiceClass.PROACTIVE, retain_s=30.0
            )

    def _stop(self, number: int) -> bool:
        """As the gateway does; whether it ran."""
        name = self._under_way.pop(number, None)
        if name is None or not self._runs(name):
            return False
        self._engine.abort(name)
        return True

    def _runs(self, name: str) -> bool:
        return self._engine.done[name].finished is None

    def _known(self, number: int) -> list[int]:
        return prompt(10_000 + number, self._kind.known_tokens)


def submit(
    engine: SimulatedEngine,
    who: int,
    tokens: list[int],
    said: int,
    *,
    begins: int = 1,
    service: ServiceClass = ServiceClass.REACTIVE,
    retain_s: float | None = None,
) -> str:
    told = Hint(session=f"s{who}", seq=begins, service=service, retain_s=retain_s)
    return engine.submit(tokens, max_tokens=said, hint=told)
