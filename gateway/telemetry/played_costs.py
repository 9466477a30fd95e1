"""What turns take in a play: as learned from the real ones, corrected by a play of these (pure).

Most real turns find nearly all of their prompts cached. What they teach is off elsewhere: if nothing
was told of the replica, 8 % too little for prompts of tens of thousands of tokens, and too much for steps of
many rows. A play of the turns as they ran has all that makes them wait, so it shows by how much.

Invariants: memory is constant; a factor is at least 1 / `_MOST` and at most `_MOST`.
"""

from collections.abc import Callable
from typing import Final, Protocol

from gateway.domain.ids import ReplicaId
from gateway.domain.request import Usage

LONG_TOKENS: Final = 4_000.0
"""Of a prompt, to compute: from there on most of the time to its first token is what its tokens take. With
2,000 or 8,000 it is nearly the same."""
_SOME_S: Final = 2.0
"""Seconds that turns have to take, all together, before what they say counts for a half; from 0.2 to 10 it is
nearly the same."""
_REMEMBERED: Final = 1_000
"""Turns after which one counts 1/e in a correction; 300 and 5,000 make no difference."""
_MOST: Final = 1.25
"""A correction. Turns that take longer than that are held up by something else, such as the turns of other
gateways; the error bar tells of the rest."""


class Watched(Protocol):
    """Who has watched the replicas. None: too little is known of that one."""

    def prefill_s(self, replica: ReplicaId, usage: Usage) -> float | None:
        """A prompt of so many tokens, so many of them cached, alone."""
        ...

    def step_s(self, replica: ReplicaId, rows: int, context_tokens: float) -> float | None:
        """A step of so many turns that decode, whose contexts are so long together."""
        ...

    def first_token_bars(self, replica: ReplicaId) -> tuple[float, float] | None:
        """By what factors first tokens lately came sooner or later than was expected: p10 and p90."""
        ...


class Correction:
    """The factor by which what is played takes longer in truth."""

    def __init__(self) -> None:
        self.factor = 1.0
        self._took_s = self._played_s = _SOME_S

    def learn(self, took_s: float, played_s: float) -> None:
        """`played_s`: with the factor."""
        self._took_s += took_s - self._took_s / _REMEMBERED
        self._played_s += played_s / self.factor - self._played_s / _REMEMBERED
        self.factor = min(_MOST, max(1 / _MOST, self._took_s / self._played_s))


class PlayedCosts:
    """As `Costs`, of a pool, corrected: of a replica that is not known yet, as of one that is."""

    def __init__(self, watched: Watched, kv_tokens: Callable[[ReplicaId], int | None]) -> None:
        self._watched = watched
        self.kv_tokens = kv_tokens
        self.known: ReplicaId | None = None
        self.prompts = Correction()
        self.steps = Correction()

    def prompt_s(self, replica: ReplicaId, new_tokens: float, cached_tokens: float) -> float:
        usage = Usage(prompt_tokens=int(new_tokens + cached_tokens), cached_tokens=int(cached_tokens))
        seconds = self._watched.prefill_s(replica, usage)
        if seconds is None and self.known is not None:
            seconds = self._watched.prefill_s(self.known, usage)
        return (seconds or 1e-3) * (1 + (self.prompts.factor - 1) * min(1.0, new_tokens / LONG_TOKENS))

    def step_s(self, replica: ReplicaId, rows: int, context_tokens: float) -> float:
        seconds = self._watched.step_s(replica, rows, context_tokens)
        if seconds is None and self.known is not None:
            seconds = self._watched.step_s(self.known, rows, context_tokens)
        return (seconds or 1e-3) * self.steps.factor
