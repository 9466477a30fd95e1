"""The execution graph of one agent type: which step follows which, how surely, and how much is to come.

Source: SAGA (arXiv 2605.00528), §3.2, agent execution graphs.

Symbols: V → `nodes`; E, P → `Evidence`, by context; φ → `Nodes.tools`.

Deviations: a node is the exact set of tools that a step asks for, not a position in a plan. P(v → u) depends
on several contexts (`walk.py`). Each has an opinion, which leans on that of the next simpler one, and a
mixture weighs them (`mixture.py`). What they amount to is one view, plain Markov models of order 3 are
others, and what is said is what is to be believed of them (`belief.py`). A young type leans on its relatives
(`kin.py`). Edges below θ_conf are kept; the threshold is applied to predictions (`calibration.py`).

Invariants: pure; memory is bounded by `GraphConfig`; what is predicted is a distribution over END, TEXT, the
most frequent nodes, and all others together.
"""

from math import log
from typing import Annotated, Final

import msgspec
from msgspec import Meta

from gateway.tool_probe.quantiles import LogQuantiles
from gateway.workflow.belief import Belief, Plain
from gateway.workflow.evidence import FREQUENT, Evidence, smooth
from gateway.workflow.kin import Kin
from gateway.workflow.mixture import Mixture, Opinion, level
from gateway.workflow.nodes import END, OTHER, TEXT
from gateway.workflow.remaining import Remaining
from gateway.workflow.walk import LEANS_ON, ORDERS, Walk, after

_CANDIDATES: Final = 10
_REFRESH: Final = 64
_YOUNG: Final = 100
"""Steps of a type until which it leans on its relatives, and teaches them."""


class GraphConfig(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    max_contexts: Annotated[int, Meta(ge=16)] = 4096
    """Contexts remembered of one agent type; beyond it the half that was seen least is forgotten."""
    half_life_steps: Annotated[float, Meta(gt=0)] = 4000.0
    """What a step taught weighs half as much after so many later ones."""


class Forecast:
    """What a graph says at one point of a walk."""

    __slots__ = ("candidates", "common", "contexts", "mixed", "opinions", "shares", "tables")

    def __init__(self, contexts: tuple[int, ...], candidates: tuple[int, ...]) -> None:
        self.contexts = contexts
        self.common: tuple[int, ...] = ()
        """Contexts that all agents have in common; none, where the type is grown up."""
        self.candidates = candidates
        self.opinions: list[Opinion] = []
        self.mixed: list[float] = []
        """What the opinions amount to."""
        self.tables: list[Plain] = []
        self.shares: list[float] = []
        """Of the candidates, and last of all others together: what is predicted."""

    @property
    def likeliest(self) -> tuple[int, float]:
        """A candidate, and its probability."""
        share = max(self.shares[:-1])
        return self.candidates[self.shares.index(share)], share

    def place(self, node: int) -> int:
        """Of this node among the shares."""
        return self.candidates.index(node) if node in self.candidates else len(self.candidates)

    def of(self, node: int) -> float:
        return self.shares[self.place(node)]


class Graph:
    def __init__(self, config: GraphConfig, mixture: Mixture, kin: Kin) -> None:
        """`mixture` may be shared, since it knows contexts by kind alone."""
        self.kin = kin
        self.nodes = kin.nodes
        self._evidence = Evidence(max_contexts=config.max_contexts, half_life=config.half_life_steps)
        self._mixture = mixture
        self._belief = Belief()
        self._lessons = 0
        self.tasks = 0
        """Conversations that came to their end."""
        self.steps = 0
        self.weight = 1
        """How many types it counts as."""
        self._remaining = Remaining()
        self.gaps: dict[int, LogQuantiles] = {}
        """By node: how long until the next request."""
        self._choose_candidates()

    @property
    def contexts(self) -> int:
        """How many contexts are remembered; each takes about half a kilobyte."""
        return len(self._evidence)

    def forecast(self, walk: Walk) -> Forecast:
        """What follows the step where the walk stands."""
        own, kin, place = self._evidence, self.kin, self._place
        found = Forecast(walk.contexts(), self._candidates)
        size = len(found.candidates) + 1
        nothing, belief, told = [1.0 / size] * size, self._belief, [own]
        if self.steps < _YOUNG:
            found.common = walk.common_contexts()
            nothing, belief, told = kin.shares(found.common, self._spread), kin.belief, [kin.evidence, own]
        said: list[list[float]] = []
        for kind, context in enumerate(found.contexts):
            leans_on = LEANS_ON[kind]
            shares = said[leans_on] if leans_on >= 0 else nothing
            trusted = -1
            for evidence in told:
                counts = evidence.get(context)
                if counts is not None and counts.total > 0.0:
                    by_node, total, gain = counts.by_node, counts.total, evidence.gain
                    shares = smooth(by_node, total, gain, shares, place)
                    trusted = level(total / gain, is_sure=len(by_node) == 1)
            if trusted >= 0:
                found.opinions.append(Opinion(kind, trusted, list(map(log, shares))))
            said.append(shares)
        if not found.opinions:
            found.shares = nothing
            return found
        found.mixed = self._mixture.mix(found.opinions)
        found.tables = [_plain(each, found.contexts, place, size) for each in reversed(told)]
        found.shares = belief.average(found.mixed, found.tables)
        return found

    def learn(self, forecast: Forecast, node: int) -> None:
        """This node is what followed."""
        self.learn_weights(forecast, node)
        self.suppose(forecast, node)
        self.steps += 1
        self.kin.steps += 1
        self._lessons += 1
        is_new = node not in self._candidates and len(self._evidence.frequent()) <= _CANDIDATES
        if is_new or self._lessons % _REFRESH == 0:
            self._choose_candidates()

    def learn_weights(self, forecast: Forecast, node: int) -> None:
        """The same, for the opinions' weights alone."""
        if forecast.opinions:
            self._mixture.learn(forecast.opinions, forecast.mixed, forecast.place(node))

    def suppose(self, forecast: Forecast, node: int, by: float = 1.0) -> None:
        """This counts as what followed, until it turns out otherwise (`by` = -1)."""
        contexts = (FREQUENT, *forecast.contexts)
        self._evidence.add(contexts, node, by)
        if forecast.common:
            self.kin.add(contexts, forecast.common, node, by)
        if forecast.tables:
            came = forecast.place(node)
            self._belief.learn(forecast.mixed, forecast.tables, came, by)
            if forecast.common:
                self.kin.belief.learn(forecast.mixed, forecast.tables, came, by)

    def saw_end(self, steps: int) -> None:
        """A conversation was over after so many steps."""
        self.tasks += 1
        self.kin.tasks += 1
        self._remaining.saw_end(steps)
        self.kin.remaining.saw_end(steps)

    def take_back_end(self) -> None:
        """It was not."""
        self.tasks -= 1
        self.kin.tasks -= 1

    @property
    def remaining(self) -> Remaining:
        """What is left of its tasks; of its family's, while none of its own was seen to the end."""
        return self._remaining if self.tasks > 0 else self.kin.remaining

    def saw_step(self, new_tokens: float, output_tokens: float) -> None:
        """A step's prompt had so much more than the one before, and its answer was so long."""
        self._remaining.saw_step(new_tokens, output_tokens)
        self.kin.remaining.saw_step(new_tokens, output_tokens)

    def saw_gap(self, node: int, gap_s: float) -> None:
        for gaps in (self.gaps, self.kin.gaps):
            known = gaps.get(node)
            if known is None:
                known = gaps[node] = LogQuantiles(low=0.001)
            known.add(gap_s)

    def gaps_behind(self, node: int, *, enough: float) -> LogQuantiles | None:
        """How long until the next request; of its family, while not enough of its own were seen."""
        own = self.gaps.get(node)
        if own is not None and own.weight >= enough:
            return own
        theirs = self.kin.gaps.get(node)
        return theirs if theirs is not None and theirs.weight >= enough else own

    def edges(self) -> list[tuple[int, int, float, float]]:
        """From, to, probability and weight: of what follows each node, whatever came before it."""
        found = []
        gain = self._evidence.gain
        for node in (-1, *range(len(self.nodes))):
            counts = self._evidence.get(after(node))
            if counts is not None and counts.total > 0.0:
                for to, weight in counts.by_node.items():
                    if weight > 0.0:
                        found.append((node, to, weight / counts.total, weight / gain))
        return found

    def _choose_candidates(self) -> None:
        own, kin = self._evidence.frequent(), self.kin.evidence.frequent()
        frequent = sorted(own, key=own.__getitem__, reverse=True)
        if len(frequent) < _CANDIDATES:
            frequent += sorted(kin.keys() - own.keys(), key=kin.__getitem__, reverse=True)
        rest = [node for node in frequent if node not in (END, TEXT, OTHER)]
        self._candidates = (END, TEXT, *rest[: _CANDIDATES - 2])
        self._place = {node: at for at, node in enumerate(self._candidates)}
        self._spread = self.kin.spread(self._place)


def _plain(evidence: Evidence, contexts: tuple[int, ...], place: dict[int, int], size: int) -> Plain:
    """What followed the longest context of the last steps that is known."""
    found = [0.0] * size
    for context in (*[contexts[order] for order in ORDERS], FREQUENT):
        counts = evidence.get(context)
        if counts is not None and counts.total > 0.0:
            gain = evidence.gain
            for node, seen in counts.by_node.items():
                found[place.get(node, -1)] += seen / gain
            return Plain(found, counts.total / gain)
    return Plain(found, 0.0)
