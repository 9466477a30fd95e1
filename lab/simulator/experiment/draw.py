"""Which sessions does a run play, and when do they arrive?

Deviation: a run has as many Poisson arrivals as it should have on average, in exactly the time that these
should take. So a load is the load that was asked for, also in a short run.

Invariants: the same seed draws the same sessions, in the same order and rhythm, for every policy and every
load: a load only stretches the time between arrivals. Ids are unique, also where a session is played again.
"""

import random
from collections.abc import Sequence
from enum import Enum

import msgspec

from lab.simulator.errors import SimulatorError
from lab.workload.trace.format import Session

_PER_H = 3600.0


class Arrivals(Enum):
    POISSON = "poisson"
    """Sessions in random order, at random times."""
    FILE = "file"
    """Consecutive sessions of the file in their own rhythm, faster or slower."""


def draw(
    workload: Sequence[Session], *, arrivals: Arrivals, per_h: float | None, count: int, seed: int
) -> list[Session]:
    """So many sessions, arriving at `per_h` on average; None for the file's own pace."""
    if not workload:
        raise SimulatorError("the workload has no sessions that fit the fleet")
    dice = random.Random(f"arrivals {seed}")  # noqa: S311 - no secret
    if arrivals is Arrivals.POISSON:
        if per_h is None:
            raise SimulatorError("Poisson arrivals need a load, in sessions an hour")
        return _poisson(workload, per_h / _PER_H, count, dice)
    return _as_recorded(workload, per_h, count, dice)


def _poisson(workload: Sequence[Session], per_s: float, count: int, dice: random.Random) -> list[Session]:
    """So many arrivals of a Poisson process, in a given time, fall anywhere in it with equal chance."""
    times = sorted(dice.random() * count / per_s for _ in range(count))
    drawn: list[Session] = []
    rounds = 0
    while len(drawn) < count:
        rounds += 1
        for session in dice.sample(workload, min(count - len(drawn), len(workload))):
            drawn.append(_arriving(session, times[len(drawn)], rounds))
    return drawn


def _as_recorded(
    workload: Sequence[Session], per_h: float | None, count: int, dice: random.Random
) -> list[Session]:
    count = min(count, len(workload))
    first = dice.randrange(len(workload) - count + 1)
    chosen = workload[first : first + count]
    begin_s, end_s = chosen[0].arrival_s, chosen[-1].arrival_s
    if end_s <= begin_s:
        raise SimulatorError("the workload's sessions all arrive at once; give Poisson arrivals")
    stretch = 1.0 if per_h is None else (count - 1) * _PER_H / per_h / (end_s - begin_s)
    return [_arriving(session, (session.arrival_s - begin_s) * stretch, 1) for session in chosen]


def _arriving(session: Session, at_s: float, time: int) -> Session:
    name = session.id if time == 1 else f"{session.id}~{time}"
    return msgspec.structs.replace(session, id=name, arrival_s=at_s)


def fitting(workload: Sequence[Session], *, kv_tokens: int, max_model_len: int) -> list[Session]:
    """The sessions that a replica can hold at their longest."""
    most = min(kv_tokens, max_model_len)
    return [session for session in workload if session.peak_tokens <= most]
