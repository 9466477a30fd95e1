"""A few sessions in full: when each of their turns waited, prefilled and decoded.

Sessions are chosen by id, or, where none is named, by a reservoir: each has the same chance, and the choice
is the same for the same seed.

Invariants: never more sessions are kept than asked for.
"""

import random

import msgspec

from gateway.simulator.results import SessionOutcome, TurnOutcome


class Shown(msgspec.Struct):
    id: str
    arrival_s: float
    isolated_s: float
    end_s: float
    turns: list[TurnOutcome]


class Waterfall:
    def __init__(self, *, most: int, seed: int, ids: frozenset[str] = frozenset()) -> None:
        self._most = most
        self._ids = ids
        self._rng = random.Random(f"waterfall {seed}")  # noqa: S311 - a choice, not a secret
        self._seen = 0
        self._kept: dict[str, list[TurnOutcome]] = {}
        self._shown: dict[str, Shown] = {}

    def turn_done(self, outcome: TurnOutcome) -> None:
        if outcome.thread == 0 and outcome.turn == 0:
            self._consider(outcome.session)
        if outcome.session in self._kept:
            self._kept[outcome.session].append(outcome)

    def session_done(self, outcome: SessionOutcome) -> None:
        if outcome.id in self._kept:
            self._shown[outcome.id] = Shown(
                outcome.id, outcome.arrival_s, outcome.isolated_s, outcome.end_s, self._kept[outcome.id]
            )

    def sessions(self) -> list[Shown]:
        """Those that are over, in order of arrival."""
        return sorted(self._shown.values(), key=lambda shown: (shown.arrival_s, shown.id))

    def _consider(self, session: str) -> None:
        self._seen += 1
        if self._ids:
            if session in self._ids:
                self._kept[session] = []
        elif len(self._kept) < self._most:
            self._kept[session] = []
        elif (place := self._rng.randrange(self._seen)) < self._most:
            gone = list(self._kept)[place]
            del self._kept[gone]
            self._shown.pop(gone, None)
            self._kept[session] = []
