"""A few sessions in full: when each of their turns waited, prefilled and decoded.

Invariants: nothing is kept of sessions that were not named.
"""

import msgspec

from lab.simulator.results import SessionOutcome, TurnOutcome


class Shown(msgspec.Struct):
    id: str
    arrival_s: float
    isolated_s: float
    end_s: float
    turns: list[TurnOutcome]


class Waterfall:
    def __init__(self, ids: frozenset[str] = frozenset()) -> None:
        """`ids`: of the sessions to keep."""
        self._kept: dict[str, list[TurnOutcome]] = {name: [] for name in sorted(ids)}
        self._shown: list[Shown] = []

    def turn_done(self, outcome: TurnOutcome) -> None:
        turns = self._kept.get(outcome.session)
        if turns is not None:
            turns.append(outcome)

    def session_done(self, outcome: SessionOutcome) -> None:
        turns = self._kept.pop(outcome.id, None)
        if turns is not None:
            self._shown.append(Shown(outcome.id, outcome.arrival_s, outcome.isolated_s, outcome.end_s, turns))

    def sessions(self) -> list[Shown]:
        """Those that are over, in order of arrival."""
        return sorted(self._shown, key=lambda shown: (shown.arrival_s, shown.id))
