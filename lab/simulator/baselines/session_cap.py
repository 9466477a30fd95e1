"""Static caps: so many sessions on a replica at a time, or so many requests.

Source: none; what an operator can set by hand. The best cap in hindsight is what an adaptive window has to
beat.

Deviations: the cap knows when a session ends.

Invariants: never more than `n` sessions (requests) are on a replica; sessions enter in order of arrival.
"""

from lab.simulator.baselines.plan import Knob, Plan, Recipe, Values
from lab.simulator.baselines.router import Member, ReplicaBook


class SessionCap:
    def __init__(self, n: int) -> None:
        self._n = n

    def may_enter(self, member: Member, book: ReplicaBook) -> bool:
        return len(book.members) < self._n

    def may_run(self, book: ReplicaBook) -> bool:
        return True


class RequestCap:
    def __init__(self, n: int) -> None:
        self._n = n

    def may_enter(self, member: Member, book: ReplicaBook) -> bool:
        return True

    def may_run(self, book: ReplicaBook) -> bool:
        return book.running < self._n


def _sessions(plan: Plan, values: Values) -> Plan:
    return plan.with_window(SessionCap(int(values["n"])))


def _requests(plan: Plan, values: Values) -> Plan:
    return plan.with_window(RequestCap(int(values["n"])))


SESSION_CAP = Recipe(
    name="session-cap",
    summary="at most n sessions on a replica, first come, first served",
    source="by hand",
    apply=_sessions,
    knobs=(
        Knob(name="n", default=12, sweep=(6, 8, 10, 12, 16, 20, 24, 32), meaning="sessions on a replica"),
    ),
)
REQUEST_CAP = Recipe(
    name="request-cap",
    summary="at most n turns on a replica, first come, first served",
    source="by hand",
    apply=_requests,
    knobs=(Knob(name="n", default=4, sweep=(2, 4, 8, 16, 32), meaning="turns on a replica"),),
)
