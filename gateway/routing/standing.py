"""How a replica stands: the states of the circuit breaker, as a table, and the settings (U5).

Source, deviations: those of `health.py`, which decides what the signs are.

Symbols: —

Invariants: a (condition, sign) pair that is not in the table raises.
"""

from typing import Annotated, Final

import msgspec
from msgspec import Meta

from gateway.domain.ids import PoolId, RequestId
from gateway.domain.words import Word
from gateway.routing.lateness import Part

_Seconds = Annotated[float, Meta(gt=0, le=3600)]


class HealthConfig(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    failures_until_out: Annotated[int, Meta(ge=1, le=1000)] = 3
    """Turns in a row that a replica failed (no answer, one that broke off, a 5xx) before it is ejected."""
    slow_until_out: Annotated[int, Meta(ge=1, le=1000)] = 3
    """The same for turns that were too slow."""
    slow_factor: Annotated[float, Meta(ge=1, le=100)] = 2.0
    """Too slow is a first token after so many times what nine in ten were expected to stay below, and what it
    and the prompts before it take if nothing of them is cached, …"""
    slow_least_s: _Seconds = 0.25
    """… and after this long."""
    rest_s: _Seconds = 5.0
    """How long nothing is sent to an ejected replica the first time; twice as long each time after it, …"""
    rest_most_s: _Seconds = 60.0
    """… up to this."""
    slow_start_s: _Seconds = 10.0
    """Until a replica that came back has its full share."""
    out_at_most: Annotated[float, Meta(ge=0, le=1)] = 0.5
    """Share of a pool that may be ejected; 0 ejects nobody."""
    trials: Annotated[int, Meta(ge=1, le=100)] = 5
    """Ejections in a row for being slow, before a replica counts as one that is slow by nature."""


class Condition(Word):
    UP = "up"
    EJECTED = "ejected"
    TRIED = "tried"
    WARMING = "warming"
    DOWN = "down"


class Sign(Word):
    CAME = "came"
    WENT = "went"
    OFFENDED = "offended"
    RESTED = "rested"
    PASSED = "passed"
    WARMED = "warmed"


TRANSITIONS: Final[dict[Condition, dict[Sign, Condition]]] = {
    Condition.UP: {Sign.WENT: Condition.DOWN, Sign.OFFENDED: Condition.EJECTED},
    Condition.EJECTED: {Sign.WENT: Condition.DOWN, Sign.RESTED: Condition.TRIED},
    Condition.TRIED: {
        Sign.WENT: Condition.DOWN,
        Sign.OFFENDED: Condition.EJECTED,
        Sign.PASSED: Condition.WARMING,
    },
    Condition.WARMING: {
        Sign.WENT: Condition.DOWN,
        Sign.OFFENDED: Condition.EJECTED,
        Sign.WARMED: Condition.UP,
    },
    Condition.DOWN: {Sign.CAME: Condition.WARMING},
}


class Standing(msgspec.Struct, kw_only=True, eq=False):
    """One replica's."""

    pool: PoolId
    condition: Condition = Condition.UP
    since_s: float
    failures: int = 0
    slow: dict[Part, int] = msgspec.field(default_factory=dict)
    """Turns in a row of which that part was."""
    ahead_s: float = 0.0
    """What the prompts take that were sent and have no first token yet, if nothing of them is cached."""
    ejections: int = 0
    """In a row."""
    slow_ejections: int = 0
    trial: RequestId | None = None

    def step(self, sign: Sign, *, now: float) -> None:
        after = TRANSITIONS[self.condition].get(sign)
        if after is None:
            raise ValueError(f"a replica that is {self.condition.value} is never {sign.value}")
        self.condition, self.since_s, self.trial = after, now, None
        self.failures, self.slow = 0, {}
