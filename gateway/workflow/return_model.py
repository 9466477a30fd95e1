"""Does a conversation go on after a step, and when? Counts and quantiles, for every agent type.

Source: SAGA (arXiv 2605.00528), §3.3 (what is known of a type decides what is acted on), §4.2, Alg. 1
(H_t).

Symbols: 1 − P(end) → `Returns.share`; H_t → `Returns.gaps`; *cold start*, 30 tasks → `min_tasks`.

Deviations: of all that may follow a step, what is acted on is whether anything does, and when; so that
alone is estimated. A step that was hardly seen is expected to be like all steps with its set of tools;
these like all of their agent type that ask for tools, or that do not; these like those of the type's
family, which is all types of the same client software; these like a prior. An end is only supposed (nobody
says that a conversation is over), so it can be taken back. What counts for a tier is evidence: a type is
known after as many steps, too, as `min_tasks` short tasks have, and with its family.

Invariants: pure; nothing that one owner teaches is read for another one; at most `max_types` types are
remembered, whoever has most of them loses its longest unseen first; a family is remembered exactly as long
as one of its types is; of a type at most `_MAX_STEPS` steps and `_MAX_SETS` sets of tools are remembered,
the longest unseen is dropped.
"""

from collections import OrderedDict
from collections.abc import Callable, Hashable
from typing import Annotated, Final, NamedTuple, TypeVar
from weakref import WeakValueDictionary

import msgspec
from msgspec import Meta

from gateway.domain.ids import TenantId
from gateway.domain.tenant_lru import TenantLru
from gateway.tool_probe.quantiles import LogQuantiles
from gateway.workflow.agent_types import AgentType
from gateway.workflow.steps import Step, ToolSet

K = TypeVar("K", bound=Hashable)
V = TypeVar("V")

ENOUGH: Final = 8.0
"""Gaps from which on they are believed, instead of those of broader classes."""
_LEAST_GAP_S: Final = 0.001
"""Shorter gaps are not told apart."""
_HALF_LIFE: Final = 300.0
"""An observation weighs half as much after so many later ones of its class."""
_KEEP: Final = 0.5 ** (1.0 / _HALF_LIFE)
_STRENGTH: Final = 2.0
"""What is known of the broader class weighs as much as so many observations."""
_PRIOR: Final = {True: 0.95, False: 0.5}
"""Share that goes on where nothing is known: behind a step that asks for tools, and behind an answer."""
_MAX_STEPS: Final = 256
_MAX_SETS: Final = 64


class ReturnModelConfig(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    max_types: Annotated[int, Meta(ge=1)] = 512
    """Agent types remembered. Beyond it the longest unseen are forgotten, of the tenant that has most."""
    max_tenants: Annotated[int, Meta(ge=1)] = 256
    """Tenants of which something learned is remembered; beyond it the longest unseen are forgotten."""
    min_tasks: Annotated[int, Meta(ge=0)] = 30
    """Tasks that must have been seen before anything is acted on; or"""
    min_steps: Annotated[int, Meta(ge=0)] = 100
    """so many of their steps."""


class _Counts:
    """How often a conversation went on behind some steps, and how often it did not."""

    __slots__ = ("ends", "returns")

    def __init__(self) -> None:
        self.returns = 0.0
        self.ends = 0.0

    def went_on(self, gap_s: float) -> None:
        self.returns = self.returns * _KEEP + 1.0
        self.ends *= _KEEP

    def ended(self) -> None:
        self.returns *= _KEEP
        self.ends = self.ends * _KEEP + 1.0

    def was_no_end(self) -> None:
        self.ends = max(0.0, self.ends - 1.0)

    def share(self, broader: float) -> float:
        return (self.returns + _STRENGTH * broader) / (self.returns + self.ends + _STRENGTH)


class _Seen(_Counts):
    """And how long it was silent before."""

    __slots__ = ("gaps",)

    def __init__(self) -> None:
        super().__init__()
        self.gaps = LogQuantiles(low=_LEAST_GAP_S, half_life=_HALF_LIFE)

    def went_on(self, gap_s: float) -> None:
        super().went_on(gap_s)
        self.gaps.add(gap_s)


class _Class:
    """All types of one family, or all steps of one type."""

    __slots__ = ("__weakref__", "by_kind", "steps", "tasks")

    def __init__(self) -> None:
        self.by_kind = {True: _Seen(), False: _Seen()}
        """Behind steps that ask for tools, and behind those that do not."""
        self.tasks = 0
        """Conversations that came to their end."""
        self.steps = 0
        """Of which it is known what came of them."""


class _Type(_Class):
    __slots__ = ("by_step", "by_tools", "family")

    def __init__(self, family: _Class) -> None:
        super().__init__()
        self.family = family
        self.by_step: OrderedDict[Step, _Counts] = OrderedDict()
        self.by_tools: OrderedDict[ToolSet, _Seen] = OrderedDict()
        """Of both, the longest unseen first."""

    def seen(self, step: Step) -> tuple[_Counts, ...]:
        asks = bool(step.tools)
        return (
            _newest(self.by_step, step, _Counts, _MAX_STEPS),
            _newest(self.by_tools, step.tools, _Seen, _MAX_SETS),
            self.by_kind[asks],
            self.family.by_kind[asks],
        )

    def count(self, *, steps: int = 0, tasks: int = 0) -> None:
        for seen in (self, self.family):
            seen.steps = max(0, seen.steps + steps)
            seen.tasks = max(0, seen.tasks + tasks)


def _newest(known: OrderedDict[K, V], key: K, new: Callable[[], V], most: int) -> V:
    found = known.pop(key, None)
    known[key] = found = new() if found is None else found
    if len(known) > most:
        known.popitem(last=False)
    return found


class Returns(NamedTuple):
    """What is expected behind a step."""

    share: float
    """Probability that the conversation goes on."""
    gaps: LogQuantiles | None
    """Silences until then, of the narrowest class of which enough were seen; None if of none."""
    is_own: bool
    """They are those behind steps that ask for the same."""

    def quantile_s(self, share: float) -> float | None:
        return self.gaps.quantile(share) if self.gaps is not None else None


class ReturnModel:
    def __init__(self, config: ReturnModelConfig) -> None:
        self._config = config
        self._types: TenantLru[TenantId, int, _Type] = TenantLru(config.max_types)
        self._families: WeakValueDictionary[tuple[TenantId, int, bool], _Class] = WeakValueDictionary()
        """Each of its types keeps one alive."""

    def __len__(self) -> int:
        return len(self._types)

    def went_on(self, agent: AgentType, step: Step, gap_s: float) -> None:
        """A conversation went on after this step, and so many seconds."""
        known = self._type(agent)
        for seen in known.seen(step):
            seen.went_on(gap_s)
        known.count(steps=1)

    def ended(self, agent: AgentType, step: Step) -> None:
        known = self._type(agent)
        for seen in known.seen(step):
            seen.ended()
        known.count(steps=1)

    def was_no_end(self, agent: AgentType, step: Step) -> None:
        known = self._type(agent)
        for seen in known.seen(step):
            seen.was_no_end()
        known.count(steps=-1)

    def saw_task(self, agent: AgentType, by: int = 1) -> None:
        """A conversation has been over for so long that it counts as a task; `by` = -1: it has come back."""
        self._type(agent).count(tasks=by)

    def behind(self, agent: AgentType, step: Step) -> Returns:
        known = self._type(agent)
        asks = bool(step.tools)
        counts, own = known.by_step.get(step), known.by_tools.get(step.tools)
        broad = known.by_kind[asks], known.family.by_kind[asks]
        share = _PRIOR[asks]
        for seen in (broad[1], broad[0], own, counts):
            share = seen.share(share) if seen is not None else share
        if own is not None and own.gaps.weight >= ENOUGH:
            return Returns(share, own.gaps, is_own=True)
        gaps = next((seen.gaps for seen in broad if seen.gaps.weight >= ENOUGH), None)
        return Returns(share, gaps, is_own=False)

    def ahead(self, agent: AgentType) -> float:
        known = self._type(agent)
        for seen in (known, known.family):
            counts = seen.by_kind.values()
            returns, ends = sum(each.returns for each in counts), sum(each.ends for each in counts)
            if returns + ends >= ENOUGH:
                return returns / (returns + ends)
        return _PRIOR[False]

    def pauses(self, agent: AgentType, tools: ToolSet) -> LogQuantiles | None:
        """Silences behind steps that ask for these; None if there were none."""
        own = self._type(agent).by_tools.get(tools)
        return own.gaps if own is not None and own.gaps.weight else None

    def is_known(self, agent: AgentType) -> bool:
        known, config = self._type(agent), self._config
        return any(
            seen.tasks >= config.min_tasks or seen.steps >= config.min_steps for seen in (known, known.family)
        )

    def _type(self, agent: AgentType) -> _Type:
        key = agent.key
        known = self._types.get(agent.owner, key)
        if known is None:
            family = self._families.get(agent.family)
            if family is None:
                family = self._families[agent.family] = _Class()
            known = _Type(family)
            self._types.put(agent.owner, key, known)
        return known
