"""Hosts on which tools run: when more cores are asked for than there are, everybody slows down.

Processor sharing: while the tools of a host ask for D cores and it has C, each of them advances by
min(1, C / D) seconds of its own a second. One that asks for no cores (it waits for a network or a person)
always advances by one.

Invariants: between two changes all tools that use cores advance at one rate, so they end in the order of
the *progress* at which they are done; a host without tools that use cores has an alarm for nothing.
"""

import heapq
import itertools
from collections.abc import Callable

from gateway.simulator.kernel import Alarm, Kernel


class ToolHost:
    def __init__(self, kernel: Kernel, cores: float) -> None:
        self._kernel = kernel
        self._cores = cores
        self._demand: dict[int, float] = {}
        """Cores by tool, for those that use any."""
        self._running: list[tuple[float, int, Callable[[], None]]] = []
        """A heap: the progress at which each is done."""
        self._numbers = itertools.count()
        self._progress_s = 0.0
        """What a tool that ran since the beginning would have advanced."""
        self._changed_s = 0.0
        self._rate = 1.0
        self._alarm: Alarm | None = None
        self.busy_core_s = 0.0
        """Cores used, over time."""

    @property
    def demand_cores(self) -> float:
        return sum(self._demand.values())

    def run(self, work_s: float, cores: float, done: Callable[[], None]) -> None:
        """Runs a tool that would take `work_s` alone; calls `done` when it has ended."""
        if cores <= 0:
            self._kernel.after(work_s, done)
            return
        self._advance()
        number = next(self._numbers)
        self._demand[number] = cores
        heapq.heappush(self._running, (self._progress_s + work_s, number, done))
        self._rearm()

    def _advance(self) -> None:
        now = self._kernel.now
        self._progress_s += (now - self._changed_s) * self._rate
        self.busy_core_s += (now - self._changed_s) * self._rate * self.demand_cores
        self._changed_s = now

    def _rearm(self) -> None:
        if self._alarm is not None:
            self._alarm.call_off()
            self._alarm = None
        demand = self.demand_cores
        self._rate = min(1.0, self._cores / demand) if demand else 1.0
        if self._running:
            left_s = max(0.0, self._running[0][0] - self._progress_s)
            self._alarm = self._kernel.after(left_s / self._rate, self._end_first)

    def _end_first(self) -> None:
        self._alarm = None
        self._advance()
        progress_s, number, done = heapq.heappop(self._running)
        self._progress_s = progress_s  # exactly, so that rounding never leaves a tool unfinished
        del self._demand[number]
        self._rearm()
        done()
