"""Prompts computed ahead, and those that run beside them on the same engine.

    python -m benchmarks.beside_prefills [--quick] [--json]

The real scheduler on a virtual clock; a step takes 4 ms, 14 µs a token, and what attention costs. Requests of
some hundred tokens come at three rates. Behind a quarter of them an agent pauses for two seconds, and its
next turn stands under another system prompt: 8,000 tokens that nobody has computed, and 300 that nobody knows
before. With prefill ahead the 8,000 are computed in the pause, for one token, as background work of its
thread, until the turn comes; without, when it comes. The same arrivals through the plugin, and through vLLM's
scheduler, to which all requests are alike (`stock_`; there the gateway would stop a prefill when others come,
which is not played).
"""

import random
import sys
from pathlib import Path
from typing import Final

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import msgspec

from benchmarks.engine_bench import SEED, Bench, prompt, quiet_engine
from benchmarks.verdict import percentile
from turnpike_vllm.hints import Hint, ServiceClass
from turnpike_vllm.simulated import SimulatedEngine, SimulatedOptions

APART_S: Final = (0.12, 0.3, 0.6)
KNOWN_TOKENS, NEW_TOKENS, PAUSE_S = 8_000, 300, 2.0
_PAUSES: Final = 0.25


class Seen(msgspec.Struct):
    others_first_s: list[float]
    others_whole_s: list[float]
    switched_first_s: list[float]


def main() -> int:
    bench = Bench(
        "beside_prefills", __doc__, sys.argv[1:], quick="300 requests at each rate instead of 1,500"
    )
    return bench.run(lambda: measure(bench))


def measure(bench: Bench) -> None:
    count = 300 if bench.is_quick else 1_500
    for kind in ("plugin", "stock"):
        for apart_s in APART_S:
            without, ahead = (
                play(kind == "plugin", with_ahead, apart_s, count) for with_ahead in (False, True)
            )
            for what, q in (
                ("others_first", 50),
                ("others_first", 99),
                ("others_whole", 99),
                ("switched_first", 50),
            ):
                before, after = (percentile(getattr(each, f"{what}_s"), q) for each in (without, ahead))
                name = f"{kind}_{what}_p{q}_every_{apart_s:g}_s"
                if kind == "plugin":
                    bench.verdict.at_most(name, after / before, 1.05 if what.startswith("others") else 0.9)
                else:
                    bench.verdict.tell(name, after / before)


def play(is_biased: bool, with_ahead: bool, apart_s: float, count: int) -> Seen:
    rng = random.Random(SEED)
    options = SimulatedOptions(blocks=4_000, block_size=64, max_batched_tokens=2_048, is_biased=is_biased)
    engine = quiet_engine(options)
    others: list[str] = []
    switched: list[str] = []
    under_way: dict[int, str] = {}
    at = 0.0
    events: list[tuple[float, str, int]] = []
    for number in range(count):
        at += rng.expovariate(1 / apart_s)
        events.append((at, "other", number))
        if rng.random() < _PAUSES:
            begins_s = at + rng.uniform(0.0, 2 * apart_s)
            events += [(begins_s, "pause", number), (begins_s + PAUSE_S, "turn", number)]
    for due_s, what, number in sorted(events):
        engine.run(until=due_s)
        engine.now = max(engine.now, due_s)
        known = prompt(10_000 + number, KNOWN_TOKENS) if what != "other" else []
        if what == "other":
            tokens, said = rng.choice((300, 800, 1_500)), rng.choice((20, 40, 80))
            others.append(submit(engine, count + number, prompt(number, tokens), said))
        elif what == "turn":
            ahead = under_way.pop(number, None)
            if ahead is not None and engine.done[ahead].finished is None:
                engine.abort(ahead)  # as the gateway does
            switched.append(
                submit(engine, number, [*known, *prompt(20_000 + number, NEW_TOKENS)], 40, begins=2)
            )
        elif with_ahead:
            service = ServiceClass.PROACTIVE
            under_way[number] = submit(engine, number, known, 1, service=service, retain_s=30.0)
    engine.run()
    done = [engine.done[name] for name in others]
    return Seen(
        [each.ttft_s for each in done],
        [each.finished - each.arrived for each in done if each.finished is not None],
        [engine.done[name].ttft_s for name in switched],
    )


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


if __name__ == "__main__":
    sys.exit(main())
