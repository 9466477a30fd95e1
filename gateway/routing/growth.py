"""Growth: what sessions hold in the end, as a mean that forgets, of each agent type.

Invariants: those of `ByAgent`; what was expected before anything was seen counts as one session.
"""

from typing import Final

import msgspec

from gateway.domain.by_agent import AgentKey, ByAgent

_PRIOR: Final = 40_000.0
_TYPES: Final = 4_096
_GAIN, _GAIN_OF_TYPE = 0.05, 0.2
"""At least so much does a session change what is expected."""


class _Mean(msgspec.Struct, eq=False, weakref=True):
    tokens: float = _PRIOR
    weight: int = 1

    def add(self, tokens: float, least_gain: float) -> None:
        self.weight += 1
        self.tokens += max(least_gain, 1 / self.weight) * (tokens - self.tokens)


class Growth:
    def __init__(self) -> None:
        self._means = ByAgent(_Mean, _TYPES)

    def of(self, agent: AgentKey) -> float:
        """Tokens."""
        own, overall = self._means.of(agent)
        return own.tokens if own.weight > 1 else overall.tokens

    def ended(self, agent: AgentKey, tokens: float) -> None:
        """A session did, and held so much."""
        own, overall = self._means.of(agent)
        overall.add(tokens, _GAIN)
        if agent.agent_type:
            if own.weight == 1:
                own.tokens = overall.tokens
            own.add(tokens, _GAIN_OF_TYPE)
