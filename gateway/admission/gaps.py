"""Gaps between turns: how long may a session be silent before it counts as gone?

Source: SAGA, Alg. 1, for a limit by quantile that never exceeds 300 s (S4). The rule is ours.

What is silent here is a session: all of its conversations at once. `workflow/return_model.py` knows when one
conversation goes on behind one step; behind a sub-agent's last answer none does, and its session does.

Deviations: SAGA sets a limit at a fixed quantile of the tool's latency. Here a silent session counts as
gone as soon as that is likelier than not, from how often sessions of its type came back at all, and how
soon: with P the share that ends in such a gap and S(t) the share of gaps longer than t, that is when S(t) <
P / (1 − P). While nothing is known, a session is as likely over as not after a plain answer, so by the same
rule its place is anybody's at once. One that comes back after it was let go was no end, and teaches how long
it was silent: else each limit would make the next one shorter. A place is kept after a plain answer for no
longer than it is worth: to hold a session of c tokens for g seconds takes the share c / C of a replica's
memory for that long, to let it go takes a prefill of c tokens. So it is worth holding for as long as
computing the whole cache anew would take, C times a token's time; and to hold it for just so long costs at
most twice what it would cost if it was known when it returns. Whose tools run keeps its place for longer: it
comes back.

Invariants: those of `ByAgent`; gaps after tool calls and gaps after plain answers are kept apart; a limit
lies between `least_s` and the most for its kind.
"""

import enum
from typing import Annotated, Final

import msgspec
from msgspec import Meta

from gateway.admission.decay import DecayedHistogram, DecayedMean
from gateway.domain.by_agent import AgentKey, ByAgent


class Gap(enum.Enum):
    TOOL = "tool"
    """The last answer asked for tools."""
    IDLE = "idle"
    """It did not: a person is next, or nobody."""


class GapsConfig(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    least_s: Annotated[float, Meta(ge=0)] = 2.0
    """A session keeps its place at least so long after its last turn."""
    max_tool_s: Annotated[float, Meta(gt=0)] = 300.0
    """And at most so long while its tools run."""
    max_idle_s: Annotated[float, Meta(gt=0)] = 60.0
    """And at most so long after an answer without tool calls."""
    unknown_tool_s: Annotated[float, Meta(gt=0)] = 120.0
    """What is used for tools while little is known."""
    max_agent_types: Annotated[int, Meta(ge=1)] = 512
    """Agent types remembered; beyond it the longest unseen are forgotten, of the tenant that has most."""


_ENOUGH: Final = 8
_PRIOR_RETURN: Final = {Gap.TOOL: 0.95, Gap.IDLE: 0.5}


class _Seen:
    __slots__ = ("__weakref__", "cached_s", "lengths", "mean_s", "returns")

    def __init__(self) -> None:
        self.cached_s: float | None = None
        self.mean_s = DecayedMean(half_life=300)
        self.lengths = DecayedHistogram(low=0.05, half_life=300)
        self.returns = DecayedMean(half_life=300)


class Gaps:
    def __init__(self, config: GapsConfig) -> None:
        self._config = config
        self._types = {gap: ByAgent(_Seen, config.max_agent_types) for gap in Gap}

    def saw_return(self, agent: AgentKey, gap: Gap, length_s: float) -> None:
        for seen in self._types[gap].of(agent):
            seen.lengths.add(length_s)
            seen.mean_s.add(length_s)
            seen.cached_s = None
            seen.returns.add(1.0)

    def saw_end(self, agent: AgentKey, gap: Gap) -> None:
        for seen in self._types[gap].of(agent):
            seen.returns.add(0.0)
            seen.cached_s = None

    def was_no_end(self, agent: AgentKey, gap: Gap) -> None:
        for seen in self._types[gap].of(agent):
            seen.returns.take_back_zero()
            seen.cached_s = None

    def limit_s(self, agent: AgentKey, gap: Gap, *, worth_s: float | None = None) -> float:
        """`worth_s`: as long as a place is worth holding; None if that is not known."""
        likely_s = self._likely_s(agent, gap)
        if gap is Gap.TOOL or worth_s is None:
            return likely_s
        return max(self._config.least_s, min(worth_s, likely_s))

    def _likely_s(self, agent: AgentKey, gap: Gap) -> float:
        config = self._config
        own, overall = self._types[gap].known(agent)
        seen = own if own.lengths.observations >= _ENOUGH else overall
        if seen.cached_s is not None:
            return seen.cached_s
        most_s = config.max_tool_s if gap is Gap.TOOL else config.max_idle_s
        if seen.lengths.observations < _ENOUGH and seen.returns.weight < _ENOUGH:
            return config.unknown_tool_s if gap is Gap.TOOL else config.least_s
        ends = 1.0 - seen.returns.mean(_PRIOR_RETURN[gap], 2.0)
        longer = ends / max(1.0 - ends, 1e-9)
        limit_s = seen.lengths.quantile(1.0 - longer) if longer < 1.0 else None
        seen.cached_s = max(config.least_s, min(most_s, limit_s or 0.0))
        return seen.cached_s

    def back(self, agent: AgentKey, gap: Gap, silent_s: float) -> float:
        own, overall = self._types[gap].known(agent)
        chance = own.returns.mean(overall.returns.mean(_PRIOR_RETURN[gap], 2.0), 2.0)
        seen = own if own.lengths.observations >= _ENOUGH else overall
        if seen.lengths.observations >= _ENOUGH:
            later = chance * seen.lengths.beyond(silent_s)
            chance = later / max(later + 1.0 - chance, 1e-9)
        return chance

    def tool_s(self, agent: AgentKey) -> float:
        own, overall = self._types[Gap.TOOL].known(agent)
        return own.mean_s.mean(overall.mean_s.mean(0.0, 1e-9), _ENOUGH)
