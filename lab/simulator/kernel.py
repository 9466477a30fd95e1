"""The virtual clock: what is to happen next, in one order.

Invariants: actions run in the order of their times, and at equal times in the order in which they were
asked for; time never goes back; nothing runs after `stop`.
"""

import heapq
import itertools
from collections.abc import Callable
from typing import Any


class Alarm:
    """An action that was asked for. It can be called off until it runs."""

    __slots__ = ("_action", "_arguments", "time_s")

    def __init__(self, time_s: float, action: Callable[..., None], arguments: tuple[Any, ...]) -> None:
        self.time_s = time_s
        self._action: Callable[..., None] | None = action
        self._arguments = arguments

    def call_off(self) -> None:
        """It will not run. Nothing happens if it did already."""
        self._action = None
        self._arguments = ()

    def go_off(self) -> None:
        """Called by the kernel."""
        if self._action is not None:
            action, self._action = self._action, None
            action(*self._arguments)


class Kernel:
    def __init__(self) -> None:
        self.now = 0.0
        self.actions = 0
        """How many ran."""
        self._alarms: list[tuple[float, int, Alarm]] = []
        self._numbers = itertools.count()
        self._is_stopped = False

    def at(self, time_s: float, action: Callable[..., None], *arguments: Any) -> Alarm:
        """Runs `action` at `time_s`; behind everything asked for at that time before."""
        if not time_s >= self.now:
            raise ValueError(f"{time_s} s is not a time from {self.now} s on")
        alarm = Alarm(time_s, action, arguments)
        heapq.heappush(self._alarms, (time_s, next(self._numbers), alarm))
        return alarm

    def after(self, delay_s: float, action: Callable[..., None], *arguments: Any) -> Alarm:
        return self.at(self.now + delay_s, action, *arguments)

    @property
    def has_more(self) -> bool:
        """Something is to happen, or was until it was called off."""
        return bool(self._alarms)

    def stop(self) -> None:
        """Nothing more runs."""
        self._is_stopped = True

    def run(self) -> None:
        """Until nothing is left to do, or somebody stops it."""
        alarms, pop = self._alarms, heapq.heappop
        while alarms and not self._is_stopped:
            time_s, _, alarm = pop(alarms)
            self.now = time_s
            self.actions += 1
            alarm.go_off()
