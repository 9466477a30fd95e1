"""Work that somebody waits for beside a backlog of work that nobody waits for.

Background requests always wait; now and then a reactive one arrives. vLLM's own ``--scheduling-policy
priority``, given the same classes, against the plugin: how long the reactive requests take against one alone,
how long until their first step, and what the background work loses. Then reactive work that never ends, and
one background request: how long it waits.
"""

import random
from dataclasses import dataclass
from typing import Any

from benchmarks.plugin.engines import SEED, bias_count, hint, prompt, quiet_engine
from benchmarks.verdict import Verdict, percentile
from lab.engine.simulated import RequestResult, SimulatedEngine, SimulatedOptions

BACKLOG, BACK_PROMPT, BACK_ANSWER = 16, 1_000, 300
PROMPT, ANSWER = 2_000, 150
RARE_S, OFTEN_S = 12.0, 6.0
"""Between reactive requests. While one is there, background work gets a tenth of a step: what it loses,
compared with an engine that treats them alike, is about the share of the time that one is there."""
SLOTS = 64


@dataclass
class Seen:
    engine: SimulatedEngine
    reactive: list[RequestResult]
    background: list[RequestResult]

    @property
    def background_tokens_per_s(self) -> float:
        served = [each for each in self.background if each.first_token is not None]
        return sum(each.prompt_tokens + len(each.tokens) for each in served) / self.engine.now


def measure(is_quick: bool, verdict: Verdict, say: Any) -> None:
    seconds = 30.0 if is_quick else 150.0
    alone = isolated()
    whole = took(alone)
    verdict.tell("isolated_s", whole)
    seen = {kind: play(kind == "turnpike", seconds, RARE_S) for kind in ("stock", "turnpike")}
    for kind, each in seen.items():
        verdict.tell(f"{kind}_background_tokens_per_s", each.background_tokens_per_s)
        verdict.tell(
            f"{kind}_reactive_p90_ratio", percentile([took(one) for one in each.reactive], 90) / whole
        )
    ours, stock = seen["turnpike"], seen["stock"]
    verdict.at_most("reactive_p90_ratio", percentile([took(one) for one in ours.reactive], 90) / whole, 1.3)
    late = [one.ttft_s - alone.ttft_s for one in ours.reactive]
    verdict.at_most("preemption_max_s", max(late), 0.1)
    verdict.tell("preemption_max_stock_s", max(one.ttft_s - alone.ttft_s for one in stock.reactive))
    ratio = ours.background_tokens_per_s / stock.background_tokens_per_s
    verdict.at_least("background_throughput_ratio", ratio, 0.95)
    often = {kind: play(kind == "turnpike", seconds / 2, OFTEN_S) for kind in ("stock", "turnpike")}
    ratio = often["turnpike"].background_tokens_per_s / often["stock"].background_tokens_per_s
    verdict.tell("background_throughput_ratio_twice_as_often", ratio)
    p90 = {kind: percentile([took(one) for one in each.reactive], 90) / whole for kind, each in often.items()}
    verdict.tell("reactive_p90_ratio_twice_as_often", p90["turnpike"])
    verdict.at_least("left_out_of_steps", bias_count(ours.engine, "classes", "left_out"), 1)
    engine, waited = starving()
    verdict.at_most("background_waits_at_most_s", waited, 32.0)
    verdict.at_least("promoted", bias_count(engine, "order", "promoted"), 1)


def took(done: RequestResult) -> float:
    assert done.finished is not None
    return done.finished - done.arrived


def isolated() -> RequestResult:
    engine = quiet_engine(SimulatedOptions(blocks=6_001, block_size=64, has_plugin=False))
    name = engine.submit(prompt(1, PROMPT), max_tokens=ANSWER)
    engine.run()
    return engine.done[name]


def play(has_plugin: bool, seconds: float, every_s: float) -> Seen:
    policy = "fcfs" if has_plugin else "priority"
    engine = quiet_engine(
        SimulatedOptions(
            blocks=6_001, block_size=64, max_num_seqs=SLOTS, has_plugin=has_plugin, policy=policy
        )
    )
    rng = random.Random(SEED)
    back: list[str] = []
    front: list[str] = []
    live: list[str] = []
    next_at = rng.expovariate(1 / every_s)
    while engine.now < seconds:
        live = [name for name in live if engine.done[name].finished is None]
        while len(live) < SLOTS + BACKLOG:
            said = hint(f"b{len(back)}", service=1)
            # Of unlike lengths, as they are.
            length = BACK_ANSWER // 2 + rng.randrange(BACK_ANSWER)
            tokens = prompt(len(back), BACK_PROMPT)
            back.append(engine.submit(tokens, max_tokens=length, hint=said, priority=0 if has_plugin else 1))
            live.append(back[-1])
        if engine.now >= next_at:
            next_at += rng.expovariate(1 / every_s)
            said = hint(f"r{len(front)}", service=0)
            front.append(engine.submit(prompt(10**6 + len(front), PROMPT), max_tokens=ANSWER, hint=said))
        for _ in range(4):
            engine.step()
    while any(engine.done[name].finished is None for name in front):
        engine.step()
    return Seen(engine, [engine.done[name] for name in front], [engine.done[name] for name in back])


def starving() -> tuple[SimulatedEngine, float]:
    """Eight reactive requests at any time on eight places, and one that nobody waits for."""
    engine = quiet_engine(SimulatedOptions(blocks=2_001, block_size=64, max_num_seqs=8))
    poor = ""
    live: list[str] = []
    while engine.now < 60.0:
        live = [name for name in live if engine.done[name].finished is None]
        while len(live) < 12:
            number = len(engine.done)
            live.append(
                engine.submit(prompt(number, 128), max_tokens=200, hint=hint(f"r{number}", service=0))
            )
        if not poor:
            poor = engine.submit(prompt(10**6, 500), max_tokens=20, hint=hint("poor", service=1))
        if engine.done[poor].first_token is not None:
            break
        for _ in range(20):
            engine.step()
    first = engine.done[poor].first_token
    return engine, float("inf") if first is None else first - engine.done[poor].arrived
