"""What sessions hold in the end, learned of those that ended lately: of an agent type, and of its owner.

Invariant: of each type, and of each owner, the last `_RECENT` sessions count, all alike; where there are few,
a type is taken to be like its owner's other types, and an owner's sessions to be of `_FIRST_GUESS` tokens.
"""

from collections import deque
from typing import Final

import msgspec

from gateway.domain.by_agent import AgentKey, ByAgent

_FIRST_GUESS: Final = 40_000.0
"""Tokens."""
_RECENT: Final = 16
_TYPES: Final = 4_096


class FinalSize(msgspec.Struct, eq=False):
    """What a session held when it seemed to be over, the last time. Whoever goes on sets it again then."""

    tokens: float = 0.0


class _Recent(msgspec.Struct, eq=False, weakref=True):
    sizes: deque[FinalSize] = msgspec.field(default_factory=lambda: deque(maxlen=_RECENT))

    def mean(self, guess: float) -> float:
        return (guess + sum([size.tokens for size in self.sizes])) / (1 + len(self.sizes))


class FinalSizes:
    def __init__(self) -> None:
        self._recent = ByAgent(_Recent, _TYPES)

    def expected(self, agent: AgentKey) -> float:
        own, overall = self._recent.known(agent)
        return own.mean(overall.mean(_FIRST_GUESS))

    def add(self, agent: AgentKey) -> FinalSize:
        size = FinalSize()
        own, overall = self._recent.of(agent)
        overall.sizes.append(size)
        if agent.agent_type:
            own.sizes.append(size)
        return size
