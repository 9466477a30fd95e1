"""What happens in a scenario while sessions are played: the load changes, the sessions, the fleet, a tenant.

As many sessions come after the change as before it, each half drawn by itself. Measured are those that arrive
when the fleet has had time to settle.
"""

from collections.abc import Sequence
from random import Random

import msgspec

from lab.simulator.experiment.draw import draw
from lab.simulator.experiment.trial import Setting, Staged, Trial
from lab.simulator.fleet import Change
from lab.workload.trace.format import Session

_LATE_SEEDS = 1000
"""Beyond all others: the second half is drawn by other seeds than the first."""


class World(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    load_times: float = 1.0
    """The load, after the change, to that before."""
    grows: bool = False
    """Before it the workload's shortest third of sessions come, after it the longest."""
    tool_speed: float | None = None
    lost: str | None = None
    """A replica by name."""
    settles_s: float = 0.0
    """Sessions that arrive so long after the change, or later, are measured."""
    flooded_by: str | None = None
    """Instead of all this: a tenant who asks for as many sessions again, of its own, as come in all."""

    def stage(self, setting: Setting, trial: Trial) -> Staged:
        assert trial.per_h is not None
        if self.flooded_by is not None:
            return _flooded(self.flooded_by, setting, trial)
        by_size = sorted(setting.workload, key=lambda session: session.peak_tokens)
        third = len(by_size) // 3
        early, late = (by_size[:third], by_size[-third:]) if self.grows else (setting.workload,) * 2
        changes_s = setting.sessions * 3600 / trial.per_h
        sessions = _drawn(setting, early, trial.per_h, trial.seed)
        sessions += [
            msgspec.structs.replace(each, id=f"{each.id}/late", arrival_s=each.arrival_s + changes_s)
            for each in _drawn(setting, late, trial.per_h * self.load_times, trial.seed + _LATE_SEEDS)
        ]
        since_s, fleet = changes_s + self.settles_s, setting.fleet
        if self.tool_speed is not None or self.lost is not None:
            change = Change(at_s=changes_s, tool_speed=self.tool_speed, lost=self.lost)
            fleet = msgspec.structs.replace(fleet, changes=(change,))
        measured = frozenset(each.id for each in sessions if each.arrival_s >= since_s)
        return Staged(sessions=sessions, fleet=fleet, measured=measured)


def _drawn(setting: Setting, among: Sequence[Session], per_h: float, seed: int) -> list[Session]:
    return draw(among, arrivals=setting.arrivals, per_h=per_h, count=setting.sessions, seed=seed)


def _flooded(tenant: str, setting: Setting, trial: Trial) -> Staged:
    """The others come as they did."""
    assert trial.per_h is not None
    sessions = _drawn(setting, setting.workload, trial.per_h, trial.seed)
    dice, until_s = Random(f"adversary {trial.seed}"), sessions[-1].arrival_s
    own = [each for each in setting.workload if each.tenant == tenant]
    more = [
        msgspec.structs.replace(dice.choice(own), id=f"more-{number}", arrival_s=dice.random() * until_s)
        for number in range(len(sessions))
    ]
    both = sorted([*sessions, *more], key=lambda session: session.arrival_s)
    return Staged(sessions=both, fleet=setting.fleet)
