"""Steps of vLLM's scheduler per CPU-second, with the plugin and without it.

The real scheduler and KV cache manager, no model: ``schedule()``, a fabricated output,
``update_from_output()``, with 1 and with 64 requests that decode. Stock, installed and idle (no hint has
come), and awake with everything on (each request hinted, other sessions retained). ``full``: the batch has no
place for one more, which waits; then the plugin looks at every step anew. CPU time, without the clock's own;
each kind has its own process, as Python adapts its code to the objects that run through it. They take turns.
A figure is the 20th percentile of a kind's turns: what a step takes when nobody else has emptied the caches.
``calls``: Python calls of a step to stock's; the same on every machine, however busy.
"""

import gc
import multiprocessing
import statistics
import sys
import time
from collections.abc import Callable
from multiprocessing.connection import Connection
from typing import Any, Final

from benchmarks.plugin.engines import hint, prompt, quiet_engine
from benchmarks.verdict import Spread, Verdict
from lab.engine.simulated import SimulatedEngine, SimulatedOptions

BLOCK: Final = 16
TURNS: Final = 20
"""Of the same engines."""
Fill = tuple[int, bool]
"""How many requests run, and whether one waits."""
COUNTED_STEPS: Final = 128
"""A negative number of steps counts calls."""
BOUNDS: Final = {("idle", "64"): 0.99, ("idle", "1"): 0.99, ("on", "64"): 0.97, ("on", "1"): 0.93}


def measure(is_quick: bool, verdict: Verdict, say: Any) -> None:
    kinds: dict[str, Callable[[Fill], SimulatedEngine]] = {"stock": stock, "idle": idle, "on": awake}
    fills: dict[str, Fill] = {"1": (1, False), "64": (64, False), "64_full": (64, True)}
    spent: dict[str, dict[str, list[float]]] = {name: {kind: [] for kind in kinds} for name in fills}
    calls: dict[str, dict[str, float]] = {}
    for _ in range(1 if is_quick else 2):
        workers = {kind: Worker(make) for kind, make in kinds.items()}
        for name, fill in fills.items():
            for worker in workers.values():
                worker.ask(fill)
            steps = 3_200 // (fill[0] + 16)
            for turn in range(TURNS):
                for kind in sorted(workers, reverse=turn % 2 == 1):
                    spent[name][kind].append(workers[kind].ask(steps))
            calls[name] = {kind: worker.ask(-COUNTED_STEPS) for kind, worker in workers.items()}
        for worker in workers.values():
            worker.stop()
    for name, found in spent.items():
        tell(verdict, say, name, found)
        for kind in ("idle", "on"):
            verdict.at_most(f"{kind}_{name}_calls", calls[name][kind] / calls[name]["stock"], 1.03)


def tell(verdict: Verdict, say: Any, name: str, spent: dict[str, list[float]]) -> None:
    say(f"{name} running, CPU time of a step in µs")
    for kind, each in spent.items():
        spread = Spread.of([seconds * 1e6 for seconds in each])
        say(f"  {kind:<8}{spread.median:>9.1f}  ({spread.low:.1f} to {spread.high:.1f})")
    undisturbed_s = {kind: statistics.quantiles(each, n=5)[0] for kind, each in spent.items()}
    stock_s = undisturbed_s.pop("stock")
    verdict.tell(f"stock_{name}_steps_per_cpu_s", 1.0 / stock_s)
    for kind, step_s in undisturbed_s.items():
        verdict.at_least(f"{kind}_{name}_ratio", stock_s / step_s, BOUNDS.get((kind, name), 0.0))


class Worker:
    """A process with an engine."""

    def __init__(self, make: Callable[[Fill], SimulatedEngine]) -> None:
        context = multiprocessing.get_context("spawn")
        self._pipe, other = context.Pipe()
        self._process = context.Process(target=_work, args=(make, other), daemon=True)
        self._process.start()
        other.close()

    def ask(self, what: Fill | int) -> float:
        """Fill a new engine, or step so often: seconds a step."""
        self._pipe.send(what)
        answer: float = self._pipe.recv()
        return answer

    def stop(self) -> None:
        self._pipe.send(None)
        self._process.join()


def _work(make: Callable[[Fill], SimulatedEngine], pipe: Connection) -> None:
    engine: SimulatedEngine | None = None
    is_full = False
    while (asked := pipe.recv()) is not None:
        if isinstance(asked, int):
            assert engine is not None
            pipe.send(seconds_per_step(engine, asked) if asked > 0 else calls_per_step(engine, -asked))
            if engine.plugin is not None and engine.plugin.is_awake:
                assert is_full or engine.plugin.planner.is_steady, "every step was looked at"
        else:
            engine, is_full = make(asked), asked[1]
            pipe.send(0.0)


def seconds_per_step(engine: SimulatedEngine, steps: int) -> float:
    """CPU time of this thread, the scheduler's part of each step alone."""
    clock = time.thread_time
    clock_s = statistics.median(-(clock() - clock()) for _ in range(101))
    spent = 0.0

    def timed(part: Callable[..., Any], *values: Any) -> Any:
        nonlocal spent
        start = clock()
        found = part(*values)
        spent += clock() - start
        return found

    gc.collect()
    gc.disable()
    try:
        step(engine, steps, timed)
    finally:
        gc.enable()
    return spent / steps - 2 * clock_s


def calls_per_step(engine: SimulatedEngine, steps: int) -> float:
    calls = 0

    def counted(part: Callable[..., Any], *values: Any) -> Any:
        sys.setprofile(count)
        found = part(*values)
        sys.setprofile(None)
        return found

    def count(frame: Any, event: str, argument: Any) -> None:
        nonlocal calls
        calls += event == "call"

    step(engine, steps, counted)
    return calls / steps


def step(engine: SimulatedEngine, steps: int, measured: Callable[..., Any]) -> None:
    for _ in range(steps):
        output = measured(engine.scheduler.schedule)
        engine.idle(0.008)  # what the model takes: the plugin learns from it what a step costs
        measured(engine.scheduler.update_from_output, output, engine.make_model_output(output))


def stock(fill: Fill) -> SimulatedEngine:
    return filled(fill, has_plugin=False, is_hinted=False)


def idle(fill: Fill) -> SimulatedEngine:
    engine = filled(fill, has_plugin=True, is_hinted=False)
    assert not engine.plugin.is_awake
    return engine


def awake(fill: Fill) -> SimulatedEngine:
    engine = filled(fill, has_plugin=True, is_hinted=True)
    assert engine.plugin.is_awake and engine.account()[2] > 0
    return engine


def filled(fill: Fill, *, has_plugin: bool, is_hinted: bool) -> SimulatedEngine:
    """So many requests that decode, with 2,000 tokens behind each; hinted, 32 paused sessions hold their
    state."""
    running, is_full = fill
    options = SimulatedOptions(
        blocks=24_576,
        block_size=BLOCK,
        max_batched_tokens=8_192,
        has_plugin=has_plugin,
        max_num_seqs=running if is_full else 128,
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
    if is_full:
        engine.submit(prompt(running, 2_000), max_tokens=8, hint=hint("waits") if is_hinted else None)
        engine.step()
    assert len(engine.scheduler.running) == running and len(engine.scheduler.waiting) == is_full
    return engine
