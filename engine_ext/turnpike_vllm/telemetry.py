"""What the engine tells: counters of every feature, and how a snapshot is put together."""

from collections import Counter
from dataclasses import dataclass
from typing import Any

SNAPSHOT_VERSION = 2
MAX_SESSIONS_TOLD = 1_000


@dataclass
class LaunchDelay:
    """From arrival at the scheduler to the first step, in seconds."""

    count: int = 0
    total_s: float = 0.0
    last_s: float = 0.0
    max_s: float = 0.0

    def add(self, seconds: float) -> None:
        self.count += 1
        self.total_s += seconds
        self.last_s = seconds
        self.max_s = max(self.max_s, seconds)

    def as_dict(self) -> dict[str, float]:
        return {"count": self.count, "sum_s": self.total_s, "last_s": self.last_s, "max_s": self.max_s}


def counters(**groups: Counter[str]) -> dict[str, dict[str, int]]:
    return {name: dict(counts) for name, counts in groups.items()}


def merge_ranks(ranks: list[dict[str, Any]]) -> dict[str, Any]:
    """One snapshot of the schedulers of all ranks, and what each one's state is. Sums, but for what is
    largest or soonest."""
    first = ranks[0]
    states = [each.get("state", "absent") for each in ranks]
    state = next((each for each in ("absent", "inert", "awake") if each in states), "asleep")
    if state == "absent":
        return next(each for each in ranks if each.get("state", "absent") == "absent")
    delays = [each["launch_delay"] for each in ranks]
    deadlines = [each["next_deadline_s"] for each in ranks if each["next_deadline_s"] is not None]
    summed = ("blocks", "running", "waiting", "sessions", "counters")
    return {
        **first,
        **{name: _sum([each[name] for each in ranks]) for name in summed},
        "state": state,
        "features": next(each["features"] for each in ranks if each["state"] == state),
        "launch_delay": {
            name: (max if name in ("last_s", "max_s") else sum)(each[name] for each in delays)
            for name in delays[0]
        },
        "next_deadline_s": min(deadlines, default=None),
        "ranks": [{"state": each["state"], "blocks": each["blocks"]} for each in ranks],
    }


def _sum(values: list[Any]) -> Any:
    """Of numbers, and objects of numbers."""
    if isinstance(values[0], dict):
        names = dict.fromkeys(name for value in values for name in value)
        return {name: _sum([value[name] for value in values if name in value]) for name in names}
    return sum(values)
