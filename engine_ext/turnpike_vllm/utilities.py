"""What the engine core answers to the API server: methods for ``call_utility_async``.

They run in the scheduler's own thread, between steps, so they need no locks.
"""

from collections.abc import Callable, Mapping
from typing import Any

from turnpike_vllm import hints

READ, HINT = "turnpike_read", "turnpike_hint"
_ABSENT: dict[str, Any] = {"state": "absent", "why": "the engine does not run TurnpikeScheduler"}


def read(core: Any) -> dict[str, Any]:
    """A snapshot (`Biases.snapshot`), or why there is none."""
    biases = _biases(core)
    return _ABSENT if biases is None else biases.snapshot()


def hint(core: Any, raw: list[Any], refused: Mapping[str, int]) -> dict[str, Any]:
    """Follow hints. ``refused`` counts those that the API server did not understand."""
    biases = _biases(core)
    if biases is None:
        return _ABSENT
    before = biases.heard["followed"], biases.heard["stale"]
    biases.heard.update(refused)
    biases.hint([hints.parse(each) for each in raw])
    return {
        "state": "inert" if biases.is_inert else "awake",
        "followed": biases.heard["followed"] - before[0],
        "stale": biases.heard["stale"] - before[1],
    }


METHODS: Mapping[str, Callable[..., Any]] = {READ: read, HINT: hint}


def _biases(core: Any) -> Any:
    return getattr(core.scheduler, "turnpike", None)
