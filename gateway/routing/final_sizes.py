"""What sessions hold in the end, as a mean that forgets, of each agent type.

Few clients say that a session is over, so one that is silent counts with what it held last; one that goes on
and is silent again still counts once, with what it holds by then.

Invariants: those of `ByAgent`; what was expected before anything was seen counts as one session; a session
counts once.
"""

from typing import Final

import msgspec

from gateway.domain.by_agent import AgentKey, ByAgent

_PRIOR: Final = 40_000.0
_TYPES: Final = 4_096
_KEEP, _KEEP_OF_TYPE = 0.95, 0.8
"""What a session weighs when another one of the tenant, or of the type, has been counted behind it."""


class _Mean(msgspec.Struct, eq=False, weakref=True):
    tokens: float = _PRIOR
    weight: float = 1.0
    """Of all that were counted, each weighing less with every later one."""
    counted: int = 0

    def add(self, tokens: float, keep: float) -> None:
        self.counted += 1
        self.weight = keep * self.weight + 1.0
        self.tokens += (tokens - self.tokens) / self.weight

    def correct(self, number: int, more: float, keep: float) -> None:
        """The session that was counted as such a number held so much more; one that is forgotten, nothing."""
        if number <= self.counted:
            self.tokens += more * keep ** (self.counted - number) / self.weight


class Counted(msgspec.Struct, frozen=True):
    """A session, as it was counted."""

    tokens: float
    of_type: int
    of_owner: int


class FinalSizes:
    def __init__(self) -> None:
        self._means = ByAgent(_Mean, _TYPES)

    def of(self, agent: AgentKey) -> float:
        """Tokens."""
        own, overall = self._means.of(agent)
        return own.tokens if own.counted else overall.tokens

    def held(self, agent: AgentKey, tokens: float, before: Counted | None = None) -> Counted:
        """A session that seems to be over holds so much. `before`: as it was counted already."""
        own, overall = self._means.of(agent)
        if before is not None:
            overall.correct(before.of_owner, tokens - before.tokens, _KEEP)
            own.correct(before.of_type, tokens - before.tokens, _KEEP_OF_TYPE)
            return Counted(tokens, before.of_type, before.of_owner)
        if agent.agent_type:
            if not own.counted:
                own.tokens = overall.tokens
            own.add(tokens, _KEEP_OF_TYPE)
        overall.add(tokens, _KEEP)
        return Counted(tokens, own.counted, overall.counted)
