"""What an agent type that was hardly seen is likely to do: as its relatives do.

Source: none of the papers; hierarchical smoothing, as in language models that back off to a broader class.

Symbols: —

Deviations: two circles of relatives. The *family* is all agents that one client software makes; their tools
have one numbering, so what followed in a context in one of them is a first guess for all. The *world* is all
agents there are; of these only the kind of a step is comparable: the end, an answer without calls, or calls.

Invariants: pure; memory is bounded by the number of contexts; what is said is a distribution.
"""

from collections.abc import Mapping, Sequence
from typing import Final

from gateway.tool_probe.quantiles import LogQuantiles
from gateway.workflow.belief import Belief
from gateway.workflow.evidence import Evidence, smooth
from gateway.workflow.nodes import END, TEXT, Nodes
from gateway.workflow.remaining import Remaining
from gateway.workflow.walk import kind_of

_MAX_CONTEXTS: Final = 512
_PLACE: Final = {END: 0, TEXT: 1}


class World:
    """What follows which kind of step, whoever takes it."""

    def __init__(self, *, half_life: float) -> None:
        self._evidence = Evidence(max_contexts=_MAX_CONTEXTS, half_life=half_life)

    def shares(self, contexts: Sequence[int]) -> list[float]:
        """Of the end, an answer without calls, and calls. `contexts`: the simplest first."""
        said = [1.0 / 3.0] * 3
        for context in contexts:
            counts = self._evidence.get(context)
            if counts is not None and counts.total > 0.0:
                said = smooth(counts.by_node, counts.total, self._evidence.gain, said, _PLACE)
        return said

    def add(self, contexts: tuple[int, ...], node: int, by: float) -> None:
        self._evidence.add(contexts, kind_of(node), by)


class Kin:
    """A family, and the world beyond it."""

    def __init__(self, world: World, *, max_contexts: int, half_life: float) -> None:
        self.nodes = Nodes()
        self.evidence = Evidence(max_contexts=max_contexts, half_life=half_life)
        self.belief = Belief()
        self.tasks = 0
        """Conversations that came to their end."""
        self.steps = 0
        self.remaining = Remaining()
        self.gaps: dict[int, LogQuantiles] = {}
        """By node: how long until the next request."""
        self._world = world

    def add(self, contexts: tuple[int, ...], common: tuple[int, ...], node: int, by: float) -> None:
        self.evidence.add(contexts, node, by)
        self._world.add(common, node, by)

    def shares(self, common: tuple[int, ...], calls: Sequence[float]) -> list[float]:
        """What the world says. `calls`: how a step with calls is shared out, as `spread` has it."""
        ends, answers, rest = self._world.shares(common)
        shares = [rest * share for share in calls]
        shares[0], shares[1] = ends, answers
        return shares

    def spread(self, place: Mapping[int, int]) -> list[float]:
        """Of the family's steps with calls, how many are each candidate's, and last those of all others."""
        found = [0.0, 0.0] + [1.0] * (len(place) - 1)
        gain = self.evidence.gain
        for node, seen in self.evidence.frequent().items():
            if node not in _PLACE:
                found[place.get(node, -1)] += seen / gain
        total = sum(found)
        return [each / total for each in found]
