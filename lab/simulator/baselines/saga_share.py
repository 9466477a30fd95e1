"""SAGA's Agent Fair Share: how urgent is what each tenant's tasks still need?

Source: SAGA (arXiv 2605.00528), §6 Eq. 8–9.

Symbols: AFS_i → `Urgency.shares`; work_remain(t) → `Task.left_s`; deadline(t) → `alpha` times what tasks of
its kind took alone, on average.

Deviations: estimates are calibrated on tasks that are over, by what their calls and tools take alone: load
does not stretch deadlines. A task has as much left as its kind takes on average, less what it had, and one
call at least; until `KNOWN` of a kind are over the average is that of all kinds. A deadline that has passed
is one epoch away, where Eq. 8 has no value.

Invariants: shares are positive; all tenants' tasks count alike while no task is over.
"""

import msgspec

from gateway.cost.profile import Profile
from gateway.domain.request import Usage
from lab.simulator.engine.roofline import decode_s, prefill_s

EPOCH_S = 0.1
KNOWN = 30


class Task(msgspec.Struct):
    tenant: str
    kind: int
    arrived_s: float
    turns: int = 0
    work_s: float = 0.0
    """In engines, alone."""
    tools_s: float = 0.0

    def served(self, profile: Profile, usage: Usage) -> None:
        """A call of it has ended."""
        prompt, cached = usage.prompt_tokens or 0, usage.cached_tokens or 0
        self.turns += 1
        self.work_s += prefill_s(profile, prompt - cached, cached)
        self.work_s += decode_s(profile, prompt, usage.output_tokens or 0)

    def left_s(self, usual_s: float) -> float:
        return max(usual_s - self.work_s, self.work_s / self.turns if self.turns else 0.0)


class _Usual(msgspec.Struct):
    """Of the tasks of a kind that are over."""

    count: int = 0
    work_s: float = 0.0
    whole_s: float = 0.0

    def add(self, work_s: float, whole_s: float) -> None:
        self.count += 1
        self.work_s += (work_s - self.work_s) / self.count
        self.whole_s += (whole_s - self.whole_s) / self.count


class Urgency:
    """Eq. 8, with estimates that were calibrated on tasks that are over."""

    def __init__(self, alpha: float) -> None:
        self._alpha = alpha
        self.tasks: dict[str, Task] = {}
        self._usual: dict[int, _Usual] = {}
        self._all = _Usual()

    def over(self, name: str) -> None:
        task = self.tasks.pop(name, None)
        if task is not None:
            for usual in (self._all, self._usual.setdefault(task.kind, _Usual())):
                usual.add(task.work_s, task.work_s + task.tools_s)

    def shares(self, *, now: float) -> dict[str, float]:
        """AFS, by tenant; 1 for all while no task is over."""
        shares: dict[str, float] = {}
        for task in self.tasks.values():
            usual = self._usual.get(task.kind, self._all)
            usual = usual if usual.count >= KNOWN else self._all
            share = 1.0
            if usual.count:
                slack_s = task.arrived_s + self._alpha * usual.whole_s - now
                share = task.left_s(usual.work_s) / max(slack_s, EPOCH_S)
            shares[task.tenant] = shares.get(task.tenant, 0.0) + share
        return shares
