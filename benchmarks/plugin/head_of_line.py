"""Short continuations behind long prompts: how long until they answer, and what that costs.

Prompts of 16k tokens keep coming at a third more than the engine can take; ten sessions go on every second,
each with 200 new tokens behind some thousand that are in the cache. The same arrivals through vLLM's
scheduler and through the plugin. Then, five times, the long prompts are background work on an engine whose
steps hold 2,048 tokens: fewer than background work may have of one (`classes.preempt_s`), so that it could
fill each. The plugin against itself without `headroom`, which leaves room in such a step to a better class
that waits.
"""

import heapq
import random
import statistics
from typing import Any

from benchmarks.plugin.engines import SEED, bias_count, hint, prompt, quiet_engine
from benchmarks.verdict import Verdict, bootstrapped
from lab.engine.simulated import SimulatedEngine, SimulatedOptions
from turnpike_vllm.hints import ServiceClass

LONG_TOKENS, LONG_EVERY_S = 16_384, 0.18
SESSIONS, PAUSE_S = 10, 1.0
DRAWS, DRAW_S, STEP_TOKENS = 5, 8.0, 2_048


def measure(is_quick: bool, verdict: Verdict, say: Any) -> None:
    seconds = 8.0 if is_quick else 40.0
    engines, waits, longs = {}, {}, {}
    for kind in ("stock", "turnpike"):
        engines[kind], waits[kind], longs[kind] = play(seconds, has_plugin=kind == "turnpike")
        verdict.tell(f"{kind}_ttft_p50_s", statistics.median(waits[kind]))
        verdict.tell(f"{kind}_long_ttft_p50_s", statistics.median(longs[kind]))
    ours, theirs = engines["turnpike"], engines["stock"]
    ratio = statistics.median(waits["turnpike"]) / statistics.median(waits["stock"])
    verdict.at_most("ttft_p50_ratio", ratio, 0.3)
    speed = (needed(ours) / ours.now) / (needed(theirs) / theirs.now)
    verdict.at_least("throughput_ratio", speed, 0.97)
    verdict.at_most("waited_at_most_s", max(map(longest, ours.done.values())), 31.0 + seconds)
    behind_background(verdict)


def behind_background(verdict: Verdict) -> None:
    """With `headroom` and without it, draw by draw."""
    draws = [behind_background_once(seed) for seed in range(1, DRAWS + 1)]
    for name in draws[0]:
        verdict.tell(f"background_{name}", statistics.fmean(each[name] for each in draws))
    waited = bootstrapped([each["ttft_s"] / each["without_ttft_s"] for each in draws])
    verdict.at_most("background_ttft_ratio", waited.mean, 0.6)
    verdict.tell("background_ttft_ratio_low", waited.low)
    verdict.tell("background_ttft_ratio_high", waited.high)
    verdict.at_least("background_least_held_back", min(each["held_back"] for each in draws), 1)


def behind_background_once(seed: int) -> dict[str, float]:
    figures: dict[str, float] = {}
    for prefix, coordinator in (("", {}), ("without_", {"headroom": 0.0})):
        engine, waits, longs = play(
            DRAW_S,
            seed=seed,
            long_class=ServiceClass.PROACTIVE,
            max_batched_tokens=STEP_TOKENS,
            turnpike={"coordinator": coordinator},
        )
        figures[f"{prefix}ttft_s"] = statistics.fmean(waits)
        figures[f"{prefix}ttft_max_s"] = max(waits)
        figures[f"{prefix}long_ttft_s"] = statistics.fmean(longs)
        figures[f"{prefix}tokens_per_s"] = needed(engine) / engine.now
        figures.setdefault("held_back", bias_count(engine, "order", "headroom"))
    return figures


def needed(engine: SimulatedEngine) -> int:
    """Tokens of prompts and answers, cached or not: the same for both."""
    return sum(each.prompt_tokens + len(each.tokens) for each in engine.done.values())


def longest(done: object) -> float:
    return getattr(done, "ttft_s", 0.0)


def play(
    seconds: float, *, seed: int = SEED, long_class: ServiceClass | None = None, **options: Any
) -> tuple[SimulatedEngine, list[float], list[float]]:
    """The engine at the end, and times to first token: of continuations, of long prompts."""
    rng = random.Random(seed)
    engine = quiet_engine(SimulatedOptions(blocks=12_001, block_size=64, **options))
    histories = {number: prompt(number, 3_000) for number in range(SESSIONS)}
    for number, history in histories.items():
        engine.submit(history, max_tokens=2, hint=hint(f"s-{number}"))
    engine.run()
    begin = engine.now
    events: list[tuple[float, int]] = [
        (begin + rng.expovariate(1 / PAUSE_S), number) for number in range(SESSIONS)
    ]
    events += [(begin + LONG_EVERY_S * number, -1 - number) for number in range(int(seconds / LONG_EVERY_S))]
    heapq.heapify(events)
    short: dict[str, int] = {}
    long: list[str] = []
    while events:
        at, who = heapq.heappop(events)
        engine.run(until=at)
        for name in [each for each in short if engine.done[each].finished is not None and short[each] >= 0]:
            number, short[name] = short[name], -1
            histories[number] += engine.done[name].tokens
            if engine.now - begin < seconds:
                heapq.heappush(events, (engine.now + rng.expovariate(1 / PAUSE_S), number))
        if who < 0:
            said = hint(f"long{who}", service=long_class)
            long.append(engine.submit(prompt(-who + 10_000, LONG_TOKENS), hint=said, max_tokens=16))
        else:
            histories[who] += prompt(rng.randrange(10**6), 200)
            short[engine.submit(histories[who], hint=hint(f"s-{who}"), max_tokens=16)] = who
    engine.run()
    return engine, [engine.done[each].ttft_s for each in short], [engine.done[each].ttft_s for each in long]
