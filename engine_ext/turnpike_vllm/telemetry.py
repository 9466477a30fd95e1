"""What the engine tells: counters of every bias, and how a snapshot is put together."""

from collections import Counter
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import Any

SNAPSHOT_VERSION = 1
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


@dataclass
class Watchers:
    """Those who wait for the next change. A change answers all of them, once."""

    version: int = 0
    _waiting: list["Future[dict[str, Any]]"] = field(default_factory=list)

    def changed(self) -> None:
        self.version += 1

    def wait(self) -> "Future[dict[str, Any]]":
        future: Future[dict[str, Any]] = Future()
        self._waiting = [each for each in self._waiting if not each.cancelled()]
        self._waiting.append(future)
        return future

    def answer(self, snapshot: Callable[[], dict[str, Any]]) -> None:
        """Called where the state is consistent. Costs nothing while nobody waits."""
        if not self._waiting:
            return
        waiting, self._waiting = self._waiting, []
        told = snapshot()
        for future in waiting:
            if not future.cancelled():
                future.set_result(told)


def counters(**groups: Counter[str]) -> dict[str, dict[str, int]]:
    return {name: dict(counts) for name, counts in groups.items()}
