"""What the engine reports: how often each feature acted, and one snapshot of several ranks."""

from collections.abc import Mapping
from typing import Any, Final

SNAPSHOT_VERSION = 2
MAX_SESSIONS_REPORTED = 1_000
# By feature: the counters of what it changed.
_ACTS: Final = {
    "coordinator": ("order", ("promoted", "reordered")),
    "headroom": ("order", ("headroom",)),
    "retention": ("holds", ("held",)),
    "classes": ("classes", ("left_out", "held_back", "chunk_bounded")),
}


def acted(counters: Mapping[str, Mapping[str, int]]) -> dict[str, int]:
    """How often each feature changed what vLLM would have done."""
    return {
        feature: sum(counters[group].get(name, 0) for name in names)
        for feature, (group, names) in _ACTS.items()
    }


def merge_ranks(ranks: list[dict[str, Any]]) -> dict[str, Any]:
    """One snapshot of the schedulers of all ranks, and what each one's state is. Sums, but for what is
    largest or soonest."""
    first = ranks[0]
    states = [each.get("state", "absent") for each in ranks]
    state = next((each for each in ("absent", "inert", "awake") if each in states), "asleep")
    if state == "absent":
        return next(each for each in ranks if each.get("state", "absent") == "absent")
    deadlines = [each["next_deadline_s"] for each in ranks if each["next_deadline_s"] is not None]
    summed = ("blocks", "running", "waiting", "sessions", "counters", "acted", "saved_s", "failures")
    return {
        **first,
        **{name: _sum([each[name] for each in ranks if name in each] or [{}]) for name in summed},
        "state": state,
        "features": next(each["features"] for each in ranks if each["state"] == state),
        "next_deadline_s": min(deadlines, default=None),
        "ranks": [{"state": each["state"], "blocks": each["blocks"]} for each in ranks],
    }


def _sum(values: list[Any]) -> Any:
    """Of numbers, and objects of numbers."""
    if isinstance(values[0], dict):
        names = dict.fromkeys(name for value in values for name in value)
        return {name: _sum([value[name] for value in values if name in value]) for name in names}
    return sum(values)
