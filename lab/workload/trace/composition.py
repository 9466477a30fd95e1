"""Composes a workload: at each arrival, whose session starts, and which one is it?

Flows are streams of sessions, each of one tenant, class and population. An arrival is a flow's with a chance
in proportion to its share; where arrivals come as a Poisson process, every flow's then do, independently.

Invariants: sessions come in order of arrival; ids are unique; the same seed gives the same sessions, and what
is drawn for arrivals, for flows and within a population moves none of the others.
"""

from collections.abc import Iterable, Iterator, Sequence

import msgspec

from lab.workload.sessions import rng_of
from lab.workload.trace.format import ServiceClass, Session
from lab.workload.trace.populations import Population


class Flow(msgspec.Struct, frozen=True, kw_only=True):
    tenant: str
    population: Population
    share: float = 1.0
    service_class: ServiceClass | None = None
    """None for the session's own."""


class Arrival(msgspec.Struct, frozen=True):
    at_s: float
    tenant: str | None = None
    """Who comes; None where the flow says."""


def compose(arrivals: Iterable[Arrival], flows: Sequence[Flow], *, seed: int) -> Iterator[Session]:
    """Until the arrivals end, or a population has no session left."""
    choosing = rng_of(seed, "flows")
    drawing = [rng_of(seed, f"sessions {number}") for number in range(len(flows))]
    shares = [flow.share for flow in flows]
    for number, arrival in enumerate(arrivals):
        at = choosing.choices(range(len(flows)), weights=shares)[0]
        session = flows[at].population.draw(drawing[at])
        if session is None:
            return
        yield msgspec.structs.replace(
            session,
            id=f"{session.id}~{number}",
            arrival_s=round(arrival.at_s, 6),
            tenant=arrival.tenant or flows[at].tenant,
            service_class=flows[at].service_class or session.service_class,
        )
