"""Growth: what sessions hold in the end.

Source: none; a mean that forgets, by agent.

Symbols: —

Deviations: —

Invariants: at most `_AGENTS` agents are known, who ended a session longest ago is forgotten first; what was
expected before anything was seen counts as one session.
"""

from collections import OrderedDict
from typing import Final

import msgspec

_PRIOR: Final = 40_000.0
_AGENTS: Final = 4_096
_GAIN, _GAIN_OF_AGENT = 0.05, 0.2
"""At least so much does a session change what is expected."""


class _Mean(msgspec.Struct, eq=False):
    tokens: float
    weight: int = 1

    def add(self, tokens: float, least_gain: float) -> None:
        self.weight += 1
        self.tokens += max(least_gain, 1 / self.weight) * (tokens - self.tokens)


class Growth:
    def __init__(self) -> None:
        self._all = _Mean(_PRIOR)
        self._by_agent: OrderedDict[int, _Mean] = OrderedDict()

    @property
    def usual(self) -> float:
        """Tokens."""
        return self._all.tokens

    def of(self, agent: int) -> float:
        """Tokens. `agent`: 0 if unknown."""
        return self._by_agent.get(agent, self._all).tokens

    def ended(self, agent: int, tokens: float) -> None:
        """A session did, and held so much."""
        self._all.add(tokens, _GAIN)
        if not agent:
            return
        if agent not in self._by_agent:
            self._by_agent[agent] = _Mean(self.usual)
        self._by_agent[agent].add(tokens, _GAIN_OF_AGENT)
        self._by_agent.move_to_end(agent)
        if len(self._by_agent) > _AGENTS:
            self._by_agent.popitem(last=False)
