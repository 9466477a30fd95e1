"""How much service a session has had lately: it travels with a session that moves to another engine.

Source: SAGA (arXiv 2605.00528), §3.1 (what is known of a session moves with it); MARS, §4.3 (the level of a
session follows from the service that it has attained).

Symbols: attained service → tokens that were computed for the session.

Deviations: the engine counts in a sliding window; here older service fades by halves, which takes two numbers
for each session instead of a window's slots.

Invariants: never negative; a session that is forgotten costs nothing.
"""

from typing import Final

from gateway.domain.ids import SessionId

_HALF_LIFE_S: Final = 30.0
"""Half of the engine's window, by default."""


class AttainedService:
    def __init__(self) -> None:
        self._tokens: dict[SessionId, tuple[float, float]] = {}
        """And when they were counted. Whoever adds sessions here forgets them."""

    def add(self, session: SessionId, tokens: int, *, now: float) -> None:
        self._tokens[session] = self._faded(session, now=now) + max(0, tokens), now

    def of(self, session: SessionId, *, now: float) -> int:
        return int(self._faded(session, now=now))

    def forget(self, session: SessionId) -> None:
        self._tokens.pop(session, None)

    def _faded(self, session: SessionId, *, now: float) -> float:
        tokens, at_s = self._tokens.get(session, (0.0, now))
        fading: float = 0.5 ** ((now - at_s) / _HALF_LIFE_S)
        return tokens * fading
