"""The KV footprint of sessions: present, and expected until they end.

Source: MARS (§4.2): each queued session has an estimate of its required KV.

Symbols: *required KV blocks* → tokens here; *prefill length* → `Member.tokens`.

Deviations: MARS estimates from the length of the prefill. Sessions grow with every turn; their agent type's
execution graph has the growth and the chance of an end. An idle session counts by its chance of a return.
Sessions do not peak together, so the demand of a set is the largest expected sum over a few horizons, not the
sum of peaks. A prefix that sessions of a type share (system prompt, tools) counts once, for all tenants.

Invariants: demand at horizon 0 is what is held now; the sum is that of its parts, whatever came and went.
"""

from typing import Final

from gateway.domain.agent_key import AgentKey
from gateway.workflow.aeg.graph import Graph
from gateway.workflow.aeg.graphs import Graphs
from gateway.workflow.aeg.lifetimes import HORIZONS

# Tokens that a session is expected to hold, at each of `HORIZONS`.
Demand = tuple[float, ...]

NOTHING: Final[Demand] = (0.0,) * len(HORIZONS)


def demand_of(graph: Graph, turn: int, tokens: float, *, back: float = 1.0) -> Demand:
    """Without the shared prefix, which counts once for all. `back`: the chance that the session returns."""
    own = max(0.0, tokens - graph.shared_tokens)
    return tuple([back * alive * (own + grown) for alive, grown in graph.outlook().ahead(turn)])


class Residents:
    """The demand of a set of sessions, kept up to date as they come, grow and go."""

    def __init__(self, graphs: Graphs) -> None:
        self._graphs = graphs
        self._sum = [0.0] * len(HORIZONS)
        # Sessions of each.
        self.agents: dict[AgentKey, int] = {}
        # Shared tokens by agent type; None after a change of types.
        self._shared_of_types: dict[int, float] | None = None
        self._shared = 0.0
        self._shared_as_of = 0

    def enter(self, agent: AgentKey, demand: Demand) -> None:
        if agent not in self.agents:
            self._shared_of_types = None
        self.agents[agent] = self.agents.get(agent, 0) + 1
        self._sum = list(map(float.__add__, self._sum, demand))

    def leave(self, agent: AgentKey, demand: Demand) -> None:
        self.agents[agent] -= 1
        if not self.agents[agent]:
            del self.agents[agent]
            self._shared_of_types = None
        # When all have gone, so has what rounding left of them.
        self._sum = list(map(float.__sub__, self._sum, demand)) if self.agents else [0.0] * len(HORIZONS)

    def change(self, before: Demand, after: Demand) -> None:
        self._sum = list(map(float.__sub__, map(float.__add__, self._sum, after), before))

    def _of_types(self) -> dict[int, float]:
        """Engines know no tenants: the largest expectation for a type counts."""
        known, graphs = self._shared_of_types, self._graphs
        if known is None or self._shared_as_of != graphs.shared_changes:
            known = self._shared_of_types = {}
            self._shared_as_of = graphs.shared_changes
            for agent in self.agents:
                most = known.get(agent.agent_type, 0.0)
                known[agent.agent_type] = max(most, graphs.known(agent).shared_tokens)
            self._shared = sum(known.values())
        return known

    def now(self) -> float:
        self._of_types()
        return self._sum[0] + self._shared

    def peak(self, *, also: Demand = NOTHING, agent: AgentKey | None = None) -> float:
        """Expected tokens at most, with one more session."""
        of_types = self._of_types()
        shared = self._shared
        if agent is not None:
            shared += max(0.0, self._graphs.known(agent).shared_tokens - of_types.get(agent.agent_type, 0.0))
        return shared + max(map(float.__add__, self._sum, also))
