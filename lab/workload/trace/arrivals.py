"""When sessions of a composed workload arrive."""

from collections.abc import Iterable, Iterator
from itertools import count, islice, takewhile
from random import Random

from lab.workload.trace.composition import Arrival
from lab.workload.trace.format import Session


def poisson(per_hour: float, rng: Random) -> Iterator[Arrival]:
    at_s = 0.0
    while True:
        at_s += rng.expovariate(per_hour / 3600)
        yield Arrival(at_s)


def at_once() -> Iterator[Arrival]:
    return (Arrival(0.0) for _ in count())


def recorded(
    sessions: Iterable[Session], *, per_hour: float | None, with_tenants: bool, number: int | None = None
) -> Iterator[Arrival]:
    """As the first `number` sessions of a workload arrive, the first one at 0; stretched to a rate."""
    known = [(session.arrival_s, session.tenant) for session in islice(sessions, number)]
    if not known:
        return
    begin_s, end_s = known[0][0], known[-1][0]
    if per_hour is None:
        factor = 1.0
    elif end_s == begin_s:
        raise ValueError("sessions that all arrive at once have no rate to change")
    else:
        factor = (len(known) - 1) / (per_hour / 3600) / (end_s - begin_s)
    for at_s, tenant in known:
        yield Arrival((at_s - begin_s) * factor, tenant if with_tenants else None)


def limited(arrivals: Iterable[Arrival], *, number: int | None, until_s: float | None) -> Iterator[Arrival]:
    if until_s is not None:
        limit_s = until_s
        arrivals = takewhile(lambda arrival: arrival.at_s < limit_s, arrivals)
    return islice(arrivals, number)
