"""Where a composed workload's sessions come from: drawn from recorded ones, or made up."""

import math
from collections.abc import Callable, Sequence
from random import Random
from typing import Final, Protocol

from lab.workload.trace.agents import AgentKind, session_of
from lab.workload.trace.format import Session

_STEPS: Final = 200
"""Halvings; far beyond what a float tells apart."""


class Population(Protocol):
    def draw(self, rng: Random) -> Session | None:
        """The next session, of whatever id and arrival; None if there is none left."""


class MadeUp:
    def __init__(self, kind: AgentKind) -> None:
        self._kind = kind

    def draw(self, rng: Random) -> Session | None:
        return session_of(self._kind, rng, id_=self._kind.name)


class Recorded:
    """Each session once, in an order that chance decides; or, with replacement, any at any time."""

    def __init__(self, sessions: Sequence[Session], *, replace: bool) -> None:
        self._sessions = list(sessions)
        self._replace = replace

    def draw(self, rng: Random) -> Session | None:
        if not self._sessions:
            return None
        at = rng.randrange(len(self._sessions))
        if self._replace:
            return self._sessions[at]
        self._sessions[at], self._sessions[-1] = self._sessions[-1], self._sessions[at]
        return self._sessions.pop()


class Tilted:
    """Recorded sessions, drawn with replacement so that a quantity has a given mean.

    Weights are exp(θ·quantity): of all weights that give the mean, those closest to equal ones.
    """

    def __init__(
        self, sessions: Sequence[Session], quantity: Callable[[Session], float], mean: float
    ) -> None:
        self._sessions = list(sessions)
        values = [quantity(session) for session in sessions]
        if not min(values, default=0) < mean < max(values, default=0):
            raise ValueError(f"no choice of these sessions has a mean of {mean:g}")
        self._weights = _weights(values, mean)

    def draw(self, rng: Random) -> Session | None:
        return rng.choices(self._sessions, weights=self._weights)[0]


def _weights(values: Sequence[float], mean: float) -> list[float]:
    span = max(values) - min(values)
    low, high = -1e4 / span, 1e4 / span
    weights: list[float] = []
    for _ in range(_STEPS):
        theta = (low + high) / 2
        top = max(theta * value for value in values)
        weights = [math.exp(theta * value - top) for value in values]
        if sum(w * v for w, v in zip(weights, values, strict=True)) / sum(weights) < mean:
            low = theta
        else:
            high = theta
    return weights
