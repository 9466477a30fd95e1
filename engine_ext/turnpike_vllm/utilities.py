"""What the engine core answers to the API server: methods for ``call_utility_async``.

They run in the scheduler's own thread, between steps, so they need no locks.
"""

from collections.abc import Callable, Mapping
from typing import Any

from turnpike_vllm import hints

READ, HINT = "turnpike_read", "turnpike_hint"
_ABSENT: dict[str, Any] = {"state": "absent", "why": "the engine does not run TurnpikeScheduler"}


def read(core: Any) -> dict[str, Any]:
    """A snapshot (`EnginePlugin.snapshot`), or why there is none."""
    plugin = _plugin(core)
    return _ABSENT if plugin is None else plugin.snapshot()


def hint(core: Any, raw: list[Any], refused: Mapping[str, int]) -> dict[str, Any]:
    """Follow hints. ``refused`` counts those that the API server did not understand."""
    plugin = _plugin(core)
    if plugin is None:
        return _ABSENT
    before = plugin.hint_counts["followed"], plugin.hint_counts["stale"]
    plugin.hint_counts.update(refused)
    plugin.hint([hints.parse(each) for each in raw])
    return {
        "state": "inert" if plugin.is_inert else "awake",
        "followed": plugin.hint_counts["followed"] - before[0],
        "stale": plugin.hint_counts["stale"] - before[1],
    }


METHODS: Mapping[str, Callable[..., Any]] = {READ: read, HINT: hint}


def _plugin(core: Any) -> Any:
    return getattr(core.scheduler, "turnpike", None)
