"""The execution graph of one agent type: which step follows which, how surely, and how much is to come.

Source: SAGA (arXiv 2605.00528), §3.2, agent execution graphs.

Symbols: V → `nodes`; E, P → `Evidence`, by context; φ → `Nodes.tools`.

Deviations: a node is the exact set of tools that a step asks for, not a position in a plan. P(v → u) depends
on more than v: on the two steps before it, what its calls and its text begin with, whether it ends with a
question, whether a tool has failed, how often the same step was repeated, and how far the task has come.
Each such context has an opinion, which leans on that of the next simpler one, and a mixture weighs them.
Edges below θ_conf are kept; the threshold is applied to predictions (`calibration.py`).

Invariants: pure; memory is bounded by `GraphConfig`; what is predicted is a distribution over END, TEXT, the
most frequent nodes, and all others together.
"""

from math import log
from typing import Annotated, Final

import msgspec
from msgspec import Meta

from gateway.domain.request import Manner
from gateway.tool_probe.quantiles import LogQuantiles
from gateway.workflow.evidence import Evidence
from gateway.workflow.mixture import Mixture, Opinion, level
from gateway.workflow.nodes import END, OTHER, TEXT, Nodes
from gateway.workflow.remaining import Remaining

_CANDIDATES: Final = 10
_REFRESH: Final = 64
_STRENGTH: Final = 1.0
"""What the simpler context weighs, for each different node that was seen in the one that leans on it."""
KINDS: Final = 8
_LEANS_ON: Final = (-1, 0, 1, 0, 3, 0, 3, 3)
"""Of each kind of context, which one it leans on; -1 for none."""
_MAX_RUN: Final = 6
_FREQUENT: Final = 0
"""The context that is no context."""


class GraphConfig(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    max_contexts: Annotated[int, Meta(ge=16)] = 4096
    """Contexts remembered of one agent type; beyond it the half that was seen least is forgotten."""
    half_life_steps: Annotated[float, Meta(gt=0)] = 4000.0
    """What a step taught weighs half as much after so many later ones."""


class Walk(msgspec.Struct, gc=False):
    """Where a conversation stands in its graph."""

    steps: int = 0
    last: int = -1
    before: int = -1
    third: int = -1
    run: int = 0
    """How often the last step was repeated."""
    left: int = -1
    """The step before that run."""
    opening: int = 0
    """How the last step's calls begin."""
    lead: int = 0
    """How its text begins."""
    asks: bool = False
    """Its text ends with a question."""
    has_failed: bool = False
    """A tool's result that the last step was given says so."""
    is_asked: bool = False
    """No tool's result led to the last step, but somebody's words."""

    def step(self, node: int, manner: Manner, *, has_failed: bool, is_asked: bool) -> None:
        if node == self.last:
            self.run += 1
        else:
            self.run, self.left = 1, self.last
        self.third, self.before, self.last = self.before, self.last, node
        self.steps += 1
        self.opening, self.lead, self.asks = manner.opening, manner.lead, manner.asks
        self.has_failed, self.is_asked = has_failed, is_asked

    def contexts(self) -> tuple[int, ...]:
        last, before = self.last, self.before
        called = hash((last, self.opening))
        steps = self.steps
        return (
            hash((1, last)),
            hash((2, before, last)),
            hash((3, self.third, before, last)),
            hash((4, called)),
            hash((6, called, self.has_failed, self.is_asked)),
            hash((7, last, self.run if self.run < _MAX_RUN else _MAX_RUN, self.left)),
            hash((8, called, self.asks, steps if steps < 8 else 7 + steps.bit_length())),
            hash((9, called, self.asks, self.lead)),
        )


class Forecast:
    """What a graph says at one point of a walk."""

    __slots__ = ("candidates", "contexts", "opinions", "shares")

    def __init__(
        self,
        contexts: tuple[int, ...],
        candidates: tuple[int, ...],
        opinions: list[Opinion],
        shares: list[float],
    ) -> None:
        self.contexts = contexts
        self.candidates = candidates
        self.opinions = opinions
        self.shares = shares
        """Of the candidates, and last of all others together."""

    @property
    def likeliest(self) -> tuple[int, float]:
        """A candidate, and its probability."""
        share = max(self.shares[:-1])
        return self.candidates[self.shares.index(share)], share

    def of(self, node: int) -> float:
        return self.shares[self.candidates.index(node)] if node in self.candidates else self.shares[-1]


class Graph:
    def __init__(self, config: GraphConfig, mixture: Mixture, nodes: Nodes) -> None:
        """`mixture` may be shared, since it knows contexts by kind alone; and so may the numbers of nodes."""
        self.nodes = nodes
        self._evidence = Evidence(max_contexts=config.max_contexts, half_life=config.half_life_steps)
        self._mixture = mixture
        self._candidates: tuple[int, ...] = (END, TEXT)
        self._place = {END: 0, TEXT: 1}
        self._lessons = 0
        self.tasks = 0
        """Conversations that came to their end."""
        self.steps = 0
        self.remaining = Remaining()
        self.gaps: dict[int, LogQuantiles] = {}
        """By node: how long until the next request."""

    def forecast(self, walk: Walk) -> Forecast:
        """What follows the step where the walk stands."""
        contexts, candidates, place = walk.contexts(), self._candidates, self._place
        others = len(candidates)
        evidence, gain = self._evidence, self._evidence.gain
        uniform = 1.0 / (len(candidates) + 1)
        nothing = [uniform] * (len(candidates) + 1)
        said: list[list[float]] = []
        opinions: list[Opinion] = []
        for kind, context in enumerate(contexts):
            leans_on = _LEANS_ON[kind]
            simpler = said[leans_on] if leans_on >= 0 else nothing
            counts = evidence.get(context)
            if counts is None or counts.total <= 0.0:
                said.append(simpler)
                continue
            by_node = counts.by_node
            weight = counts.total / gain
            prior = _STRENGTH * (len(by_node) + 0.5)
            scale = 1.0 / (weight + prior)
            prior *= scale
            scale /= gain
            shares = [prior * share for share in simpler]
            for node, seen in by_node.items():
                shares[place.get(node, others)] += seen * scale
            said.append(shares)
            trusted = level(weight, is_sure=len(by_node) == 1)
            opinions.append(Opinion(kind, trusted, list(map(log, shares))))
        mixed = self._mixture.mix(opinions) if opinions else nothing
        return Forecast(contexts, candidates, opinions, mixed)

    def learn(self, forecast: Forecast, node: int) -> None:
        """This node is what followed."""
        self.learn_weights(forecast, node)
        self.observe(forecast.contexts, node)

    def observe(self, contexts: tuple[int, ...], node: int) -> None:
        """The same, of a forecast that another graph made."""
        self._evidence.add((_FREQUENT, *contexts), node)
        self.steps += 1
        self._lessons += 1
        candidates = self._candidates
        if (node not in candidates and len(candidates) < _CANDIDATES) or self._lessons % _REFRESH == 0:
            self._choose_candidates()

    def learn_weights(self, forecast: Forecast, node: int) -> None:
        """The same, for the opinions' weights alone."""
        if forecast.opinions:
            candidates = forecast.candidates
            came = candidates.index(node) if node in candidates else len(candidates)
            self._mixture.learn(forecast.opinions, forecast.shares, came)

    def suppose(self, contexts: tuple[int, ...], node: int, by: float = 1.0) -> None:
        """This counts as what followed, until it turns out otherwise (`by` = -1)."""
        self._evidence.add((_FREQUENT, *contexts), node, by)

    def saw_gap(self, node: int, gap_s: float) -> None:
        gaps = self.gaps.get(node)
        if gaps is None:
            gaps = self.gaps[node] = LogQuantiles(low=0.001)
        gaps.add(gap_s)

    def edges(self) -> list[tuple[int, int, float, float]]:
        """From, to, probability and weight: of what follows each node, whatever came before it."""
        found = []
        gain = self._evidence.gain
        for node in (-1, *range(len(self.nodes))):
            counts = self._evidence.get(hash((1, node)))
            if counts is not None and counts.total > 0.0:
                for to, weight in counts.by_node.items():
                    if weight > 0.0:
                        found.append((node, to, weight / counts.total, weight / gain))
        return found

    def _choose_candidates(self) -> None:
        counts = self._evidence.get(_FREQUENT)
        if counts is None:
            return
        frequent = sorted(counts.by_node, key=counts.by_node.__getitem__, reverse=True)
        rest = [node for node in frequent if node not in (END, TEXT, OTHER)]
        self._candidates = (END, TEXT, *rest[: _CANDIDATES - 2])
        self._place = {node: at for at, node in enumerate(self._candidates)}
