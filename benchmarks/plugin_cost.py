"""What the engine plugin costs: steps of vLLM's scheduler per CPU-second, with and without it.

    python -m benchmarks.plugin_cost [--quick] [--json]

The real scheduler and KV cache manager, no model (`turnpike_vllm.simulated`): ``schedule()``, a fabricated
output, ``update_from_output()``, with 1 and with 64 requests that decode. Stock, installed and idle (no hint
has come), and awake with everything on (each request hinted, other sessions retained), in interleaved rounds
of CPU time; ratios round by round, medians.
"""

import gc
import sys
import time
from collections.abc import Callable
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from benchmarks.engine_bench import Bench, hint, prompt, quiet_engine
from benchmarks.verdict import Spread, ratios
from turnpike_vllm.simulated import SimulatedEngine, SimulatedOptions

BLOCK = 16
Make = Callable[[int], SimulatedEngine]


def main() -> int:
    bench = Bench("plugin_cost", __doc__, sys.argv[1:], quick="7 short rounds instead of 15")
    return bench.run(lambda: measure(bench))


def measure(bench: Bench) -> None:
    rounds, steps = (7, 200) if bench.is_quick else (15, 600)
    for running in (1, 64):
        kinds: dict[str, Make] = {"stock": stock, "idle": idle, "on": awake}
        speeds: dict[str, list[float]] = {kind: [] for kind in kinds}
        for _ in range(rounds):
            for kind, make in kinds.items():
                speeds[kind].append(speed(make(running), steps * 64 // (running + 8)))
        bench.tell(f"{running} running, steps per CPU-second")
        for kind, each in speeds.items():
            spread = Spread.of(each)
            bench.tell(f"  {kind:<8}{spread.median:>9.0f}  ({spread.low:.0f} to {spread.high:.0f})")
        bench.verdict.tell(f"stock_{running}_steps_per_cpu_s", Spread.of(speeds["stock"]).median)
        bounds = {("idle", 64): 0.99, ("idle", 1): 0.98, ("on", 64): 0.9}
        for kind in [each for each in kinds if each != "stock"]:
            ratio = ratios(speeds[kind], speeds["stock"])
            name = f"{kind}_{running}_ratio"
            bound = bounds.get((kind, running))
            value = None if ratio is None else ratio.median
            if bound is None:
                bench.verdict.tell(name, value)
            else:
                bench.verdict.at_least(name, value, bound)


def speed(engine: SimulatedEngine, steps: int) -> float:
    """Steps per CPU-second of this thread, the scheduler's part of them alone."""
    scheduler, spent = engine.scheduler, 0.0
    gc.collect()
    gc.disable()
    try:
        for _ in range(steps):
            start = time.thread_time()
            output = scheduler.schedule()
            spent += time.thread_time() - start
            produced = engine.fabricate(output)
            start = time.thread_time()
            scheduler.update_from_output(output, produced)
            spent += time.thread_time() - start
            engine.rest(0.008)
    finally:
        gc.enable()
    return steps / spent


def stock(running: int) -> SimulatedEngine:
    return filled(running, is_biased=False, is_hinted=False)


def idle(running: int) -> SimulatedEngine:
    engine = filled(running, is_biased=True, is_hinted=False)
    assert not engine.biases.is_awake
    return engine


def awake(running: int) -> SimulatedEngine:
    engine = filled(running, is_biased=True, is_hinted=True)
    assert engine.biases.is_awake and engine.account()[2] > 0
    return engine


def filled(running: int, *, is_biased: bool, is_hinted: bool) -> SimulatedEngine:
    """So many requests that decode, with 2,000 tokens behind each; hinted, 32 paused sessions hold their
    state."""
    options = SimulatedOptions(
        blocks=16_384,
        block_size=BLOCK,
        max_batched_tokens=8_192,
        is_biased=is_biased,
        max_num_seqs=128,
        depth=1,
    )
    engine = quiet_engine(options)
    for number in range(32):
        paused = hint(f"paused-{number}", retain_s=300.0) if is_hinted else None
        engine.submit(prompt(1_000 + number, 1_000), max_tokens=2, hint=paused)
    engine.run()
    # First the background work, an eighth of all: beside the other it would get its prompts done slowly.
    for service in (1, 0):
        for number in range(running):
            if (number % 8 == 7) == bool(service):
                session = hint(f"s-{number}", service=service) if is_hinted else None
                engine.submit(prompt(number, 2_000), max_tokens=100_000, hint=session)
        for _ in range(40):
            engine.step()
    assert all(request.num_output_tokens for request in engine.scheduler.requests.values())
    return engine


if __name__ == "__main__":
    sys.exit(main())
