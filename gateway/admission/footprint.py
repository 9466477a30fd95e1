"""The KV footprint of sessions: what they hold, and what they will have grown to before they end.

Source: MARS (§4.2): each queued session is annotated with an estimate of its required KV.

Symbols: *required KV blocks* → tokens here (an engine's capacity comes in both); *prefill length* →
`Footprint.tokens`.

Deviations: MARS estimates from the length of the prefill. A session grows with every turn until it ends, and
neither is known in advance: what its agent type did so far says how fast it grows and how likely it is to end
(`decay.py`), and, while little is known of its type, what the tenant's other types did. Before any growth was
seen it is a share of first prompts, so that no constant belongs to a size of context. A silent session counts
for as much as it is likely to be back. A set of sessions
does not reach its peak all at once, so their demand is the largest, over a few horizons, of what is expected
to be alive then, and not the sum of the peaks. A prefix that sessions of a type share (system prompt, tools)
is resident once, whoever they belong to.

Invariants: those of `ByAgent`; demand at horizon 0 is what is held now; the sum is that of its parts,
whatever came and went.
"""

from collections.abc import Mapping
from functools import partial
from typing import Annotated, Final

import msgspec
from msgspec import Meta

from gateway.admission.decay import LATE_TURN, DecayedHistogram, DecayedMean, TurnGrowth, TurnHazard
from gateway.domain.by_agent import AgentKey, ByAgent

HORIZONS: Final = (0, 1, 2, 4, 8, 16, 32)
"""Turns from now at which demand is estimated."""

Demand = tuple[float, ...]
"""Expected tokens, one number for each horizon."""

NOTHING: Final[Demand] = (0.0,) * len(HORIZONS)

_PRIOR_GROWTH: Final = 0.1
"""Of its first prompt, by which a session grows each turn; while none is known, of so many tokens:"""
_PRIOR_PROMPT: Final = 10_000.0
_TRUST: Final = 8.0
"""Observations of its own after which a type counts as much as all types of its owner."""
_HOLDS_FOR: Final = 64
"""Turns of an owner until what was worked out is worked out anew; one, before there were so many."""


class FootprintConfig(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    max_agent_types: Annotated[int, Meta(ge=1)] = 512
    """Agent types remembered per pool; beyond it the longest unseen are forgotten, of the tenant that has
    most."""
    half_life_turns: Annotated[float, Meta(gt=0)] = 2000.0
    """What a turn taught weighs half as much after so many later ones."""


class AgentType:
    """What sessions of one kind did so far. Everything here is a running statistic."""

    __slots__ = (
        "__weakref__",
        "_growth",
        "_survival",
        "_worked_out_at",
        "cycle_s",
        "first_prompt",
        "growth",
        "hazard",
        "shared",
        "shared_tokens",
        "turn_s",
    )

    def __init__(self, config: FootprintConfig) -> None:
        half_life = config.half_life_turns
        self.growth = TurnGrowth(half_life=half_life)
        self.first_prompt = DecayedMean(half_life=half_life)
        """Tokens of sessions' first prompts."""
        self.hazard = TurnHazard(half_life=half_life)
        self.shared = DecayedHistogram(low=16, half_life=50)
        """Tokens that were cached already when a session began."""
        self.shared_tokens = 0.0
        """What nearly all of them found; 0 while that is unknown."""
        self.turn_s = DecayedHistogram(low=0.001, half_life=half_life)
        """How long a turn took on its replica."""
        self.cycle_s = DecayedMean(half_life=100)
        """What sessions take from one turn to the next; learned of all types of an owner together only."""
        self._survival: dict[int, tuple[float, ...]] = {}
        self._growth: dict[int, tuple[float, ...]] = {}
        self._worked_out_at = 0

    def survival(self, turn: int, overall: "AgentType") -> tuple[float, ...]:
        """The chance that a session which made `turn` turns is there at each of the horizons."""
        turn = min(turn, LATE_TURN)
        self._forget_what_is_outdated(overall)
        found = self._survival.get(turn)
        if found is None:
            found = self._survival[turn] = self.hazard.survival(turn, HORIZONS, overall.hazard)
        return found

    def grown(self, turn: int, overall: "AgentType") -> tuple[float, ...]:
        turn = min(turn, LATE_TURN)
        self._forget_what_is_outdated(overall)
        found = self._growth.get(turn)
        if found is None:
            found = self._growth[turn] = self.growth.after(
                turn, HORIZONS, overall.prior_growth(), overall.growth
            )
        return found

    def prior_growth(self) -> float:
        return _PRIOR_GROWTH * self.first_prompt.mean(_PRIOR_PROMPT, 1e-9)

    def _forget_what_is_outdated(self, overall: "AgentType") -> None:
        turns = overall.hazard.turns
        at = min(turns, _HOLDS_FOR - 1 + turns // _HOLDS_FOR)
        if at != self._worked_out_at:
            self._worked_out_at = at
            self._survival.clear()
            self._growth.clear()


class Footprints:
    """What is known of the agent types of one pool."""

    def __init__(self, config: FootprintConfig) -> None:
        self.types = ByAgent(partial(AgentType, config), config.max_agent_types)
        self.shared_changes = 0
        """How often what `shared` says of some type has changed, for those who keep sums of it."""

    # --- what turns teach --------------------------------------------------------------------------

    def saw_turn(self, agent: AgentKey, turn: int, *, grown: float | None, turn_s: float) -> None:
        """A session's `turn`-th turn ended; `grown` is by how many tokens, if that is known."""
        for kind in self.types.of(agent):
            kind.hazard.saw(turn)
            kind.turn_s.add(turn_s)
            if grown is not None:
                kind.growth.saw(turn, grown)

    def saw_first_prompt(self, agent: AgentKey, tokens: int) -> None:
        for kind in self.types.of(agent):
            kind.first_prompt.add(float(tokens))

    def saw_shared(self, agent: AgentKey, cached_tokens: int) -> None:
        own, _ = self.types.of(agent)
        own.shared.add(float(max(cached_tokens, 1)))
        tokens = own.shared.quantile(0.25) or 0.0
        if tokens != own.shared_tokens:
            own.shared_tokens = tokens
            self.shared_changes += 1

    def saw_cycle(self, agent: AgentKey, cycle_s: float) -> None:
        _, overall = self.types.of(agent)
        overall.cycle_s.add(cycle_s)

    def saw_end(self, agent: AgentKey, turn: int) -> None:
        for kind in self.types.of(agent):
            kind.hazard.saw_end(turn)

    def was_no_end(self, agent: AgentKey, turn: int) -> None:
        for kind in self.types.of(agent):
            kind.hazard.saw_end(turn, by=-1.0)

    # --- what they say -----------------------------------------------------------------------------

    def growth(self, agent: AgentKey, turn: int) -> float:
        """Tokens by which the `turn`-th turn makes its session longer."""
        own, overall = self.types.known(agent)
        return own.growth.mean(turn, overall.prior_growth(), overall.growth)

    def shared(self, agent: AgentKey) -> float:
        """Tokens that sessions of this type have in common; 0 while that is unknown."""
        return self.types.known(agent)[0].shared_tokens

    def demand(self, agent: AgentKey, turn: int, tokens: float, *, back: float = 1.0) -> Demand:
        """Of a session alone, its shared prefix left out, which is counted once for all. `back`: the
        chance that it comes back at all."""
        kind, overall = self.types.known(agent)
        own = max(0.0, tokens - kind.shared_tokens)
        alive, grown = kind.survival(turn, overall), kind.grown(turn, overall)
        return tuple([back * chance * (own + more) for chance, more in zip(alive, grown, strict=True)])

    def expected_turns(self, agent: AgentKey, turn: int) -> float:
        """How many more turns a session is expected to make that made `turn`; within the horizons."""
        own, overall = self.types.known(agent)
        alive = own.survival(turn, overall)
        return sum(
            (HORIZONS[n + 1] - HORIZONS[n]) * (alive[n] + alive[n + 1]) / 2 for n in range(len(alive) - 1)
        )

    def cycle_s(self, agent: AgentKey) -> float:
        """What its owner's sessions take from one turn to the next; 0 while that is unknown."""
        _, overall = self.types.known(agent)
        return overall.cycle_s.mean(0.0)

    def turn_s(self, agent: AgentKey) -> float:
        own, overall = (kind.turn_s for kind in self.types.known(agent))
        found = own.quantile(0.25) if own.observations >= _TRUST else overall.quantile(0.25)
        return found if found is not None else 1.0


class Residents:
    """The demand of a set of sessions, kept up to date as they come, grow and go."""

    def __init__(self, footprints: Footprints) -> None:
        self._footprints = footprints
        self._sum = [0.0] * len(HORIZONS)
        self._agents: dict[AgentKey, int] = {}
        self._members = 0
        self._shared_of_types: dict[int, float] | None = None
        """Agent type → tokens that its sessions share; None after one has come or gone."""
        self._shared = 0.0
        self._shared_as_of = 0

    def __len__(self) -> int:
        return self._members

    @property
    def agents(self) -> Mapping[AgentKey, int]:
        return self._agents

    def enter(self, agent: AgentKey, demand: Demand) -> None:
        if agent not in self._agents:
            self._shared_of_types = None
        self._agents[agent] = self._agents.get(agent, 0) + 1
        self._members += 1
        self.change(NOTHING, demand)

    def leave(self, agent: AgentKey, demand: Demand) -> None:
        """`demand`: as it was last counted."""
        self._agents[agent] -= 1
        if not self._agents[agent]:
            del self._agents[agent]
            self._shared_of_types = None
        self._members -= 1
        self.change(demand, NOTHING)
        if not self._members:
            self._sum = [0.0] * len(HORIZONS)  # nothing is left of what rounding left behind

    def change(self, before: Demand, after: Demand) -> None:
        self._sum = [total + new - old for total, new, old in zip(self._sum, after, before, strict=True)]

    def shared(self) -> float:
        """What all of them share with others of their type, once."""
        self._of_types()
        return self._shared

    def _of_types(self) -> dict[int, float]:
        """Engines know no tenants: of what is expected of one type the most counts."""
        known, footprints = self._shared_of_types, self._footprints
        if known is None or self._shared_as_of != footprints.shared_changes:
            known = self._shared_of_types = {}
            self._shared_as_of = footprints.shared_changes
            for agent in self._agents:
                most = known.get(agent.agent_type, 0.0)
                known[agent.agent_type] = max(most, footprints.shared(agent))
            self._shared = sum(known.values())
        return known

    def now(self) -> float:
        return self._sum[0] + self.shared()

    def peak(self, *, also: Demand = NOTHING, agent: AgentKey | None = None) -> float:
        """The most tokens that they, and one more session, are expected to hold."""
        of_types = self._of_types()
        shared = self._shared
        if agent is not None:
            shared += max(0.0, self._footprints.shared(agent) - of_types.get(agent.agent_type, 0.0))
        return shared + max(map(float.__add__, self._sum, also))
