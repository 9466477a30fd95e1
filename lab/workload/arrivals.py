"""Lays sessions out in time: which exchange arrives next?

`at_once` sessions are at work at any moment, as a fleet of agents would be: the first ones start within
START_SPREAD_S, and where one ends the next of the source begins after a pause. Within a session the times
stay its own. The clock starts at 0.

Invariants: exchanges come out in order of arrival; every session's in its own order; as many turns are held
in memory as sessions are at work. The same sessions, seed and `at_once` give the same exchanges.
"""

import heapq
from collections.abc import Iterable, Iterator
from random import Random
from typing import Final

from lab.workload.exchange import Exchange, Truth, without_secrets
from lab.workload.sessions import Session, Turn

START_SPREAD_S: Final = 2.0
PAUSE_S: Final = 1.0
"""Mean time between the end of a session and the start of the one that takes its place."""


def interleave(sessions: Iterable[Session], *, rng: Random, at_once: int) -> Iterator[Exchange]:
    waiting = iter(sessions)
    heap: list[tuple[float, int, _Course]] = []
    started = 0

    def start(at: float) -> None:
        """The next session that has a turn begins at `at`."""
        nonlocal started
        for session in waiting:
            course = _Course(session, at)
            if course.turn is not None:
                heapq.heappush(heap, (course.arrives, started, course))
                started += 1
                return

    for begin in sorted(rng.uniform(0.0, START_SPREAD_S) for _ in range(at_once)):
        start(begin)
    while heap:
        _, number, course = heapq.heappop(heap)
        yield course.take()
        if course.turn is not None:
            heapq.heappush(heap, (course.arrives, number, course))
        else:
            start(course.ends + rng.expovariate(1.0 / PAUSE_S))


class _Course:
    """A session under way: its next turn, and the latest end so far."""

    def __init__(self, session: Session, begin: float) -> None:
        self._session = session
        self._begin = begin
        self._turns = iter(session.turns)
        self.turn: Turn | None = next(self._turns, None)
        self.ends = begin

    @property
    def arrives(self) -> float:
        return self._begin + (self.turn.at_s if self.turn is not None else 0.0)

    def take(self) -> Exchange:
        """The next turn's exchange."""
        turn, session = self.turn, self._session
        assert turn is not None
        exchange = Exchange(
            t=round(self.arrives, 6),
            t_end=round(self.arrives + turn.lasts_s, 6),
            path=turn.path,
            headers=without_secrets(dict(turn.headers)),
            body=turn.body,
            status=turn.status,
            response=turn.response,
            finish=turn.finish,
            response_id=turn.response_id,
            truth=Truth(
                client=session.client, session=session.name, thread=turn.thread, source=session.source
            ),
        )
        self.ends = max(self.ends, self.arrives + turn.lasts_s)
        self.turn = next(self._turns, None)
        return exchange
