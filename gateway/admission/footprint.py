"""The KV footprint of sessions: what they hold, and what they will have grown to before they end.

Source: MARS (§4.2): each queued session is annotated with an estimate of its required KV.

Symbols: *required KV blocks* → tokens here (an engine's capacity comes in both); *prefill length* →
`Footprint.tokens`.

Deviations: MARS estimates from the length of the prefill. A session grows with every turn until it ends,
and neither is known in advance: what its agent type did so far says how fast it grows and how likely it is
to end (`decay.py`). A set of sessions does not reach its peak all at once, so their demand is the largest,
over a few horizons, of what is expected to be alive then, and not the sum of the peaks. A prefix that
sessions of a type share (system prompt, tools) is resident once.

Invariants: at most `max_agent_types` types are remembered; demand at horizon 0 is what is held now; the sum
is that of its parts, whatever came and went.
"""

from collections import OrderedDict
from collections.abc import Mapping
from typing import Annotated, Final

import msgspec
from msgspec import Meta

from gateway.admission.decay import DecayedHistogram, DecayedMean, TurnGrowth, TurnHazard

HORIZONS: Final = (0, 1, 2, 4, 8, 16, 32)
"""Turns from now at which demand is estimated."""

Demand = tuple[float, ...]
"""Expected tokens, one number for each horizon."""

NOTHING: Final[Demand] = (0.0,) * len(HORIZONS)

_PRIOR_GROWTH: Final = 1000.0
_PRIOR_TOKENS_PER_BYTE: Final = 0.25
_TRUST: Final = 8.0
"""Observations of its own after which a type counts as much as all types together."""


class FootprintConfig(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    max_agent_types: Annotated[int, Meta(ge=1)] = 512
    """Agent types remembered per pool; beyond it the longest unseen are forgotten."""
    half_life_turns: Annotated[float, Meta(gt=0)] = 2000.0
    """What a turn taught weighs half as much after so many later ones."""


class AgentType:
    """What sessions of one kind did so far. Everything here is a running statistic."""

    __slots__ = ("_growth", "_survival", "growth", "hazard", "shared", "tokens_per_byte", "turn_s")

    def __init__(self, config: FootprintConfig) -> None:
        half_life = config.half_life_turns
        self.growth = TurnGrowth(half_life=half_life)
        self.tokens_per_byte = DecayedMean(half_life=half_life)
        self.hazard = TurnHazard(half_life=half_life)
        self.shared = DecayedHistogram(low=16, half_life=50)
        """Tokens that were cached already when a session began."""
        self.turn_s = DecayedHistogram(low=0.001, half_life=half_life)
        """How long a turn took on its replica."""
        self._survival: dict[int, tuple[float, ...]] = {}
        self._growth: dict[int, tuple[float, ...]] = {}

    def survival(self, turn: int, overall: "AgentType") -> tuple[float, ...]:
        """The chance that a session which made `turn` turns is there at each of the horizons."""
        found = self._survival.get(turn)
        if found is None:
            found = self._survival[turn] = self.hazard.survival(turn, HORIZONS, overall.hazard)
        return found

    def grown(self, turn: int, overall: "AgentType") -> tuple[float, ...]:
        """By how much it will have grown until then."""
        found = self._growth.get(turn)
        if found is None:
            found = self._growth[turn] = self.growth.after(turn, HORIZONS, _PRIOR_GROWTH, overall.growth)
        return found

    def forget_what_was_worked_out(self) -> None:
        self._survival.clear()
        self._growth.clear()


class Footprints:
    """What is known of the agent types of one pool."""

    def __init__(self, config: FootprintConfig) -> None:
        self._config = config
        self._types: OrderedDict[int, AgentType] = OrderedDict()
        self.overall = AgentType(config)
        self._lessons = 0

    def __len__(self) -> int:
        return len(self._types)

    def type_of(self, agent: int) -> AgentType:
        """Looks an agent type up, and keeps it from being forgotten soon."""
        found = self._types.get(agent)
        if found is None:
            found = self._types[agent] = AgentType(self._config)
            if len(self._types) > self._config.max_agent_types:
                self._types.popitem(last=False)
        else:
            self._types.move_to_end(agent)
        return found

    # --- what turns teach --------------------------------------------------------------------------

    def saw_turn(self, agent: int, turn: int, *, grown: float | None, turn_s: float) -> None:
        """A session's `turn`-th turn ended; `grown` is by how many tokens, if that is known."""
        for kind in (self.type_of(agent), self.overall):
            kind.hazard.saw(turn)
            kind.turn_s.add(turn_s)
            if grown is not None:
                kind.growth.saw(turn, grown)
        self._lessons += 1
        if self._lessons % 64 == 0 or self._lessons < 64:
            for each in self._types.values():
                each.forget_what_was_worked_out()

    def saw_size(self, agent: int, *, body_bytes: int, prompt_tokens: int) -> None:
        if body_bytes > 0:
            for kind in (self.type_of(agent), self.overall):
                kind.tokens_per_byte.add(prompt_tokens / body_bytes)

    def saw_shared(self, agent: int, cached_tokens: int) -> None:
        """A new session found so many tokens of its first prompt in the cache."""
        self.type_of(agent).shared.add(float(max(cached_tokens, 1)))

    def saw_end(self, agent: int, turn: int, *, by: float = 1.0) -> None:
        for kind in (self.type_of(agent), self.overall):
            kind.hazard.saw_end(turn, by=by)

    # --- what they say -----------------------------------------------------------------------------

    def prompt_tokens(self, agent: int, body_bytes: int) -> float:
        """How many tokens a body of this size is."""
        prior = self.overall.tokens_per_byte.mean(_PRIOR_TOKENS_PER_BYTE)
        return body_bytes * self.type_of(agent).tokens_per_byte.mean(prior)

    def growth(self, agent: int, turn: int) -> float:
        """Tokens by which the `turn`-th turn makes its session longer."""
        return self.type_of(agent).growth.mean(turn, _PRIOR_GROWTH, self.overall.growth)

    def end_chance(self, agent: int, turn: int) -> float:
        return self.type_of(agent).hazard.chance(turn, self.overall.hazard)

    def shared(self, agent: int) -> float:
        """Tokens that sessions of this type have in common; 0 while that is unknown."""
        return self.type_of(agent).shared.quantile(0.25) or 0.0

    def demand(self, agent: int, turn: int, tokens: float) -> Demand:
        """Of a session alone, its shared prefix left out, which is counted once for all."""
        own = max(0.0, tokens - self.shared(agent))
        kind = self.type_of(agent)
        alive, grown = kind.survival(turn, self.overall), kind.grown(turn, self.overall)
        return tuple(chance * (own + more) for chance, more in zip(alive, grown, strict=True))

    def expected_turns(self, agent: int, turn: int) -> float:
        """How many more turns a session is expected to make that made `turn`; within the horizons."""
        alive = self.type_of(agent).survival(turn, self.overall)
        return sum(
            (HORIZONS[n + 1] - HORIZONS[n]) * (alive[n] + alive[n + 1]) / 2 for n in range(len(alive) - 1)
        )

    def turn_s(self, agent: int) -> float:
        """What a turn takes on its replica if nobody is in its way, as far as that was ever seen."""
        own = self.type_of(agent).turn_s
        found = own.quantile(0.25) if own.observations >= _TRUST else self.overall.turn_s.quantile(0.25)
        return found if found is not None else 1.0


class Residents:
    """The demand of a set of sessions, kept up to date as they come, grow and go."""

    def __init__(self, footprints: Footprints) -> None:
        self._footprints = footprints
        self._sum = [0.0] * len(HORIZONS)
        self._agents: dict[int, int] = {}
        self._members = 0

    def __len__(self) -> int:
        return self._members

    @property
    def agents(self) -> Mapping[int, int]:
        """How many there are of each type."""
        return self._agents

    def enter(self, agent: int, demand: Demand) -> None:
        self._agents[agent] = self._agents.get(agent, 0) + 1
        self._members += 1
        self.change(NOTHING, demand)

    def leave(self, agent: int, demand: Demand) -> None:
        """`demand`: as it was last counted."""
        self._agents[agent] -= 1
        if not self._agents[agent]:
            del self._agents[agent]
        self._members -= 1
        self.change(demand, NOTHING)
        if not self._members:
            self._sum = [0.0] * len(HORIZONS)  # nothing is left of what rounding left behind

    def change(self, before: Demand, after: Demand) -> None:
        self._sum = [total + new - old for total, new, old in zip(self._sum, after, before, strict=True)]

    def shared(self) -> float:
        """What all of them share with others of their type, once."""
        return sum(self._footprints.shared(agent) for agent in self._agents)

    def now(self) -> float:
        """Tokens held at present."""
        return self._sum[0] + self.shared()

    def peak(self, *, also: Demand = NOTHING, agent: int | None = None) -> float:
        """The most tokens that they, and one more session, are expected to hold."""
        shared = self.shared()
        if agent is not None and agent not in self._agents:
            shared += self._footprints.shared(agent)
        return shared + max(total + more for total, more in zip(self._sum, also, strict=True))
