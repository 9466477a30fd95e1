"""Hosts on which tools run: when more cores are asked for than there are, everybody slows down.

Processor sharing: while the tools of a host ask for D cores and it has C, each of them advances by
min(1, C / D) seconds of its own a second, times the host's speed. One that asks for no cores (it waits for a
network or a person) always advances by one.

Invariants: between two changes all tools that use cores advance at one rate, so they end in the order of
the *progress* at which they are done; a host without tools that use cores has an alarm for nothing.
"""

import heapq
import itertools
from collections.abc import Callable
from typing import Final

from gateway.core import events as ev
from gateway.domain.engine import HostSignals
from lab.simulator.kernel import Alarm, Kernel

_PERIOD_S: Final = 1.0


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
        self._rate = self._speed = 1.0
        self._alarm: Alarm | None = None
        self.busy_core_s = 0.0
        """Cores used, over time."""
        self.wanted_core_s = 0.0
        """Cores that were asked for, over time."""

    @property
    def demand_cores(self) -> float:
        return sum(self._demand.values())

    @property
    def cores(self) -> float:
        return self._cores

    def settle(self) -> None:
        """Brings the counts up to now."""
        self._advance()

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

    def set_speed(self, speed: float) -> None:
        """From now on tools that use cores advance so many times as fast as at first."""
        self._advance()
        self._speed = speed
        self._rearm()

    def _advance(self) -> None:
        now = self._kernel.now
        self._progress_s += (now - self._changed_s) * self._rate
        self.busy_core_s += (now - self._changed_s) * min(self.demand_cores, self._cores)
        self.wanted_core_s += (now - self._changed_s) * self.demand_cores
        self._changed_s = now

    def _rearm(self) -> None:
        if self._alarm is not None:
            self._alarm.call_off()
            self._alarm = None
        demand = self.demand_cores
        self._rate = self._speed * min(1.0, self._cores / demand) if demand else self._speed
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


class HostProbe:
    """Says how busy a host is, once a second, as a probe beside real tools does."""

    def __init__(self, name: str, host: ToolHost, kernel: Kernel, send: Callable[[ev.Event], None]) -> None:
        self._name = name
        self._host = host
        self._kernel = kernel
        self._send = send
        self._wanted_core_s = 0.0

    def begin(self) -> None:
        self._kernel.after(_PERIOD_S, self._report)

    def _report(self) -> None:
        self._host.settle()
        wanted_core_s, before = self._host.wanted_core_s, self._wanted_core_s
        self._wanted_core_s = wanted_core_s
        signals = HostSignals(cores=self._host.cores, runnable=(wanted_core_s - before) / _PERIOD_S)
        self._send(ev.HostReported(self._name, signals))
        self.begin()
