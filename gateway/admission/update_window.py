"""The window: limits of admitted sessions and of their expected KV tokens.

Source: MARS (§4.2), UpdateWindow. Its Algorithm 1 is reconstructed from the prose: the text lacks it as
typeset.

Symbols: *raw concurrency window* → `sessions`, and `with_tools` for sessions with heavy tools;
*KV-derived limit* → `budget`; *CPU-derived limit* → `cpu_limit`.

Deviations: the KV-derived limit counts projected footprints of sessions, not requests. It moves by additive
increase and multiplicative decrease up to a share of the stated capacity, or freely without one. So no
constant belongs to a GPU or a model. Before the first overload only the stated capacity limits. Where the
admitted sessions fit into it, lost state moves the budget alone: an eviction would lose state too. MARS
admits ever more slowly near its limit (progressive soft cap); here that had no measurable effect. A decrease
counts from the admitted sessions and needs time to take effect: at most one a *feedback time*, the time from
one turn of a session to its next.

The two pressures move limits of their own, each with its own feedback times: neither delays the other.

Invariants: at most one decrease per feedback time and pressure; overload shorter than a feedback time changes
nothing; between overload and health (hysteresis) nothing changes; without an admitted session nothing
decreases; the window never falls below one session; every change is returned with its reason. Once pressure
ends, a stated capacity is the budget again within 1 / `kv_increase` feedback times.
"""

import math
from typing import Annotated, Final, NamedTuple

import msgspec
from msgspec import Meta

from gateway.admission.cpu_pressure import CpuReading
from gateway.admission.gpu_pressure import LOST, GpuReading
from gateway.domain.decision import WaitReason

HEALTHY: Final = 0.5
OVERLOADED: Final = 1.0
# Without a stated capacity the budget grows only while so much of it is held.
_IN_USE: Final = 0.9
# Smaller changes of the capacity are ignored: a host tier's part moves with the feedback time.
_CAPACITY_CHANGED: Final = 0.05
# Share of a stated capacity that the budget never falls below.
_LEAST_OF_STATED: Final = 0.6
# Step of an increase without a stated capacity, as a share of the budget.
_UNSTATED_INCREASE: Final = 0.1


class WindowConfig(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    decrease: Annotated[float, Meta(gt=0, lt=1)] = 0.7
    """Factor of a decrease of the window, under CPU pressure."""
    kv_decrease: Annotated[float, Meta(gt=0, lt=1)] = 0.85
    """Factor of a decrease of the KV budget."""
    kv_increase: Annotated[float, Meta(ge=0, lt=1)] = 0.03
    """Step of an increase, as a share of the stated capacity."""
    min_feedback_s: Annotated[float, Meta(gt=0)] = 1.0
    """Least feedback time."""
    max_feedback_s: Annotated[float, Meta(gt=0)] = 60.0
    """Greatest feedback time."""


class WindowInputs(msgspec.Struct, frozen=True, kw_only=True):
    gpu: GpuReading
    cpu: CpuReading
    cpu_limit: float
    cpu_floor: float = 0.0
    """Sessions that tools can bear."""
    admitted: int
    overcommit_sessions: float = 0.0
    """As in `Limits`."""
    with_tools: int = 0
    """Admitted sessions with heavy tools."""
    held: float
    """Tokens of admitted sessions."""
    demand: float
    """Expected tokens at most."""
    capacity: float | None
    """Stated KV tokens, with the host's as far as they count."""
    kv_share: float = 1.0
    """The KV budget at first and at most, as a share of the capacity."""
    blocked_by: WaitReason | None
    """Of the next session."""


class WindowChange(NamedTuple):
    reason: str
    is_decrease: bool = False
    is_of_tools: bool = False


class _Feedback:
    """Of one pressure."""

    def __init__(self) -> None:
        self.overloaded_since_s: float | None = None
        self.healthy_since_s: float | None = None
        self.changed_s = -math.inf

    def look(self, pressure: float, *, now: float) -> None:
        self.overloaded_since_s = _since(self.overloaded_since_s, pressure >= OVERLOADED, now=now)
        self.healthy_since_s = _since(self.healthy_since_s, pressure < HEALTHY, now=now)


class Window:
    def __init__(self, config: WindowConfig) -> None:
        self._config = config
        # 1 at least.
        self.sessions = self.with_tools = self.cpu_limit = math.inf
        # Tokens.
        self.budget = math.inf
        # Stated; the most that the budget may be.
        self._capacity: float | None = None
        self._ceiling = math.inf
        # Tokens before the last decrease.
        self._lowered_from = 0.0
        self._gpu, self._cpu = _Feedback(), _Feedback()
        self.feedback_s = config.min_feedback_s

    def set_feedback(self, cycle_s: float) -> None:
        config = self._config
        self.feedback_s = max(config.min_feedback_s, min(config.max_feedback_s, cycle_s))

    def tool_limit(self) -> float:
        return min(self.with_tools, self.cpu_limit)

    def update(self, seen: WindowInputs, *, now: float) -> WindowChange | None:
        """Call about once a second."""
        change = self._follow_capacity(seen)
        gpu, cpu = self._gpu, self._cpu
        gpu.look(seen.gpu.pressure, now=now)
        cpu.look(seen.cpu.pressure, now=now)
        self.cpu_limit = seen.cpu_limit if self._has_lasted(cpu.overloaded_since_s, now=now) else math.inf
        for side, decrease, increase in (
            (gpu, self._decrease, self._increase),
            (cpu, self._decrease_tools, self._increase_tools),
        ):
            found = None
            if now - side.changed_s >= self.feedback_s:
                if self._has_lasted(side.overloaded_since_s, now=now):
                    found = decrease(seen)
                elif self._has_lasted(side.healthy_since_s, now=now):
                    found = increase(seen)
            if found is not None:
                side.changed_s = now
                return found
        return change

    def _has_lasted(self, since_s: float | None, *, now: float) -> bool:
        return since_s is not None and now - since_s >= self.feedback_s

    @property
    def reference(self) -> float:
        """Tokens for the throughput model. Not a lowered budget: with it so little would fit that admitting
        all would seem to pay."""
        return self.budget if self._capacity is None else self._ceiling

    def _follow_capacity(self, seen: WindowInputs) -> WindowChange | None:
        if seen.capacity is None:
            return None
        before, ceiling = self._ceiling, seen.kv_share * seen.capacity
        if abs(ceiling - before) <= _CAPACITY_CHANGED * before < math.inf:
            return None
        kept = self.budget / before if self._capacity is not None else 1.0
        self._capacity, self._ceiling = seen.capacity, ceiling
        self.budget = min(ceiling, kept * ceiling)
        return WindowChange("capacity")

    def _decrease(self, seen: WindowInputs) -> WindowChange | None:
        if not seen.admitted:  # others' load, or evidence of sessions that are gone
            return None
        config = self._config
        used = max(seen.demand, seen.held)
        least = _LEAST_OF_STATED * self._capacity if self._capacity is not None else 1.0
        self._lowered_from = min(self.budget, used)
        self.budget = max(least, config.kv_decrease * min(self.budget, used))
        fits = self._capacity is not None and seen.held <= self._capacity
        if seen.gpu.reason != LOST or not fits:
            # As many sessions stay as fit, between a half and nine tenths.
            room = max(self.budget, config.kv_decrease * (self._capacity or 0.0))
            factor = max(0.5, min(0.9, room / max(seen.held, 1.0)))
            fewer = factor * min(self.sessions, float(seen.admitted))
            self.sessions = max(1.0, fewer, seen.overcommit_sessions if seen.gpu.reason == LOST else 0.0)
        self._gpu.overloaded_since_s = None
        return WindowChange(seen.gpu.reason, is_decrease=True)

    def _decrease_tools(self, seen: WindowInputs) -> WindowChange | None:
        was = min(self.with_tools, float(seen.with_tools))
        fewer = max(1.0, min(was, seen.cpu_floor), self._config.decrease * was)
        if fewer >= self.with_tools and seen.with_tools <= self.tool_limit():
            return None
        self.with_tools = min(self.with_tools, fewer)
        return WindowChange(seen.cpu.reason, is_decrease=True, is_of_tools=True)

    def _increase(self, seen: WindowInputs) -> WindowChange | None:
        if seen.blocked_by is WaitReason.WINDOW_FULL:
            self.sessions += max(1.0, 0.05 * self.sessions)
        elif seen.blocked_by is WaitReason.KV_FULL and self._may_grow(seen):
            step = _UNSTATED_INCREASE * max(self.budget, self._lowered_from)
            self.budget += step if self._capacity is None else self._config.kv_increase * self._capacity
            self.budget = min(self.budget, self._ceiling)
        elif math.isfinite(self.sessions) and self.sessions < 2 * seen.admitted + 2:
            self.sessions += 1.0
        else:
            return None
        return WindowChange("healthy")

    def _increase_tools(self, seen: WindowInputs) -> WindowChange | None:
        if seen.blocked_by is WaitReason.TOOLS_FULL:
            self.with_tools += max(1.0, 0.05 * self.with_tools)
        elif math.isfinite(self.with_tools) and self.with_tools < 2 * seen.with_tools + 2:
            self.with_tools += 1.0
        else:
            return None
        return WindowChange("healthy")

    def _may_grow(self, seen: WindowInputs) -> bool:
        """Without a stated capacity, beyond its last size only while it is in use and losses are known."""
        is_well = seen.gpu.is_loss_known and seen.held >= _IN_USE * self.budget
        may = self._capacity is not None or is_well or self.budget < self._lowered_from
        return self.budget < self._ceiling and may


def _since(since_s: float | None, holds: bool, *, now: float) -> float | None:
    if not holds:
        return None
    return since_s if since_s is not None else now
