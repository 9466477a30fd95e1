"""How many calls may a tool server have at a time, and who of those that wait is next?

Source: ours; the classes and the ageing are Agent.xpu's (`gateway/admission/classes.py`).

Invariants: at most `most` calls run; nobody waits while one may run; of those that wait, a reactive session's
goes before a proactive one's, and within a class the first that came, but a proactive one's that has waited
`age_s` counts as reactive; at most `most_waiting` wait.
"""

from collections.abc import Iterator

import msgspec


class Place(msgspec.Struct, eq=False):
    """A call's, until it leaves."""

    is_proactive: bool
    since_s: float
    may_run: bool = False
    has_left: bool = False


class CallLimit:
    def __init__(self, most: int, *, most_waiting: int, age_s: float) -> None:
        self._most = most
        self._most_waiting = most_waiting
        self._age_s = age_s
        self.running = 0
        # Those that wait, the first that came first.
        self._reactive: dict[Place, None] = {}
        self._proactive: dict[Place, None] = {}

    @property
    def waiting(self) -> int:
        return len(self._reactive) + len(self._proactive)

    def enter(self, *, is_proactive: bool, now: float) -> Place | None:
        place = Place(is_proactive, now)
        if self.running < self._most:
            self._run(place)
        elif self.waiting >= self._most_waiting:
            return None
        else:
            (self._proactive if is_proactive else self._reactive)[place] = None
        return place

    def leave(self, place: Place, *, now: float) -> Place | None:
        if place.has_left:
            return None
        place.has_left = True
        if not place.may_run:
            (self._proactive if place.is_proactive else self._reactive).pop(place)
            return None
        self.running -= 1
        following = self._next(now)
        if following is not None:
            (self._proactive if following.is_proactive else self._reactive).pop(following)
            self._run(following)
        return following

    def overdue(self, *, before_s: float) -> Iterator[Place]:
        for queue in (self._reactive, self._proactive):
            for place in queue:
                if place.since_s >= before_s:
                    break
                yield place

    def _next(self, now: float) -> Place | None:
        reactive, proactive = next(iter(self._reactive), None), next(iter(self._proactive), None)
        if reactive is None or proactive is None:
            return reactive or proactive
        is_aged = now - proactive.since_s >= self._age_s
        return proactive if is_aged and proactive.since_s < reactive.since_s else reactive

    def _run(self, place: Place) -> None:
        place.may_run = True
        self.running += 1
