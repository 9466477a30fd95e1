"""One agent type's execution graph (see the package).

Steps with the same tools differ by a word: a build runs longer than a listing, and a goodbye has fewer
answers than a question.

Invariants: beyond `MAX_NODES` the longest unseen node is dropped, and edges to it lead to `OTHER`; counts
fade; an end that is taken back may have faded, so counts never fall below 0; a tool is identified by the
first `_NAME` characters of its name, a set by its first `_NAMES` names.
"""

from collections import OrderedDict
from collections.abc import Sequence
from functools import partial
from operator import attrgetter
from typing import Final, NamedTuple

import msgspec

from gateway.domain.agent_key import AgentKey
from gateway.domain.decay import DecayedMean
from gateway.tool_probe.quantiles import LogQuantiles
from gateway.workflow.aeg.lifetimes import Lifetimes, Outlook

_NAME: Final = 64
_NAMES: Final = 16
START: Final = -1
END: Final = 0
OTHER: Final = 1
_LABELS: Final = {START: "START", END: "END", OTHER: "other"}
MAX_NODES: Final = 64
_MAX_WORDS: Final = 64
# Least pauses of a class, before a broader one counts.
ENOUGH: Final = 8.0
_LEAST_PAUSE_S: Final = 0.001
# In observations of the class.
_HALF_LIFE: Final = 300.0
_KEEP: Final = 0.5 ** (1.0 / _HALF_LIFE)
# Observations that the broader class weighs.
_STRENGTH: Final = 2.0
# Chance of a next turn: after a step with tools, and without.
_PRIOR: Final = {True: 0.95, False: 0.5}
# Counts of a node's successors are halved then.
_FADES_AT: Final = 1000.0
# Smaller changes of a shared prefix are ignored: each makes its users recompute their sums.
_SAME: Final = 0.02
# Turns of the family for which an outlook holds at most; else a sixteenth of its turns.
_HOLDS_FOR: Final = 256

# Distinct names, sorted; empty for an answer without calls.
ToolSet = tuple[str, ...]


def tool_set(names: Sequence[str]) -> ToolSet:
    if len(names) == 1:
        return (names[0][:_NAME],)
    return tuple(sorted({name[:_NAME] for name in names})[:_NAMES])


class Step(NamedTuple):
    """An answer (SAGA, §3.2: φ)."""

    tools: ToolSet = ()
    word: int = 0
    """Hash of the beginning of its calls, else of the end of its text; 0 if unknown."""


class ExpectedReturn(NamedTuple):
    """The expectation after a step."""

    returns: float
    """Probability of a next turn."""
    lengths: LogQuantiles | None
    """Of the narrowest class with enough evidence."""
    likely_s: float | None = None
    """How long a return stays likelier than not; None without known lengths."""

    def quantile_s(self, share: float) -> float | None:
        return self.lengths.quantile(share) if self.lengths is not None else None

    def back(self, silent_s: float) -> float:
        """The chance of a return after so long a silence."""
        if self.lengths is None:
            return self.returns
        later = self.returns * self.lengths.beyond(silent_s)
        return later / max(later + 1.0 - self.returns, 1e-9)


class Silence(NamedTuple):
    """Of a session without a live turn."""

    has_tools: bool
    pause: ExpectedReturn | None


class HeldContext(NamedTuple):
    """A session's context, after its longest conversation."""

    tokens: float
    """Of that, and of active others."""
    agent: AgentKey
    turns: int


class _Counts(msgspec.Struct, eq=False):
    """Returns and ends after a class of steps."""

    returns: float = 0.0
    ends: float = 0.0


class _Behind(_Counts, eq=False):
    pauses: LogQuantiles = msgspec.field(
        default_factory=partial(LogQuantiles, low=_LEAST_PAUSE_S, half_life=_HALF_LIFE)
    )


class Node(_Behind, kw_only=True, eq=False):
    number: int
    tools: ToolSet
    following: dict[int, float] = {}
    """Counts by node number, with `END`."""
    words: OrderedDict[int, _Counts] = msgspec.field(default_factory=OrderedDict)

    def follow(self, number: int) -> None:
        count = self.following[number] = self.following.get(number, 0.0) + 1.0
        if count >= _FADES_AT:
            self.following = {node: count / 2 for node, count in self.following.items()}


class Family:
    """All types of one client software."""

    def __init__(self) -> None:
        # Steps with tools, and without.
        self.by_kind = {True: _Behind(), False: _Behind()}
        self.lifetimes = Lifetimes()
        self.tools_s = DecayedMean(half_life=_HALF_LIFE)
        self.tasks = 0
        self.steps = 0


class Graph(Family):
    def __init__(self, agent: AgentKey, family: Family) -> None:
        super().__init__()
        self.agent = agent
        self.family = family
        self.start = Node(number=START, tools=())
        self._nodes: OrderedDict[ToolSet, Node] = OrderedDict()
        self.numbered: dict[int, Node] = {}
        self._given = OTHER
        # Cached tokens of first prompts.
        self.shared = LogQuantiles(low=16.0, half_life=50)
        # The common prefix; 0 while unknown.
        self.shared_tokens = 0.0
        # Share of a turn's context that the next prompt repeats: prompts change.
        self.found = DecayedMean(half_life=50)
        self._outlook: Outlook | None = None
        self._holds_until = 0

    def saw_step(self, before: ToolSet | None, tools: ToolSet) -> None:
        node = self._teach(tools)
        first = self.start if before is None else node if before == tools else self._teach(before)
        first.follow(node.number)

    def saw_turn(self, turn: int, *, tokens: float | None, grown: float | None) -> None:
        for level in (self, self.family):
            level.lifetimes.saw_turn(turn, grown, tokens)

    def saw_shared(self, cached_tokens: int) -> bool:
        """`cached_tokens`: of a first prompt. Returns whether the common prefix has changed."""
        self.shared.add(float(max(cached_tokens, 1)))
        tokens = self.shared.counted(0.25) or 0.0
        if abs(tokens - self.shared_tokens) <= _SAME * self.shared_tokens:
            return False
        self.shared_tokens = tokens
        return True

    def went_on(self, step: Step, pause_s: float) -> None:
        word, *behind = self._classes(step)
        for counts in (word, *behind):
            counts.returns = counts.returns * _KEEP + 1.0
            counts.ends *= _KEEP
        for of_steps in behind:
            of_steps.pauses.add(pause_s)
        for level in (self, self.family):
            level.steps += 1
            if step.tools:
                level.tools_s.add(pause_s)

    def ended(self, step: Step, turn: int) -> None:
        for counts in self._classes(step):
            counts.returns *= _KEEP
            counts.ends = counts.ends * _KEEP + 1.0
        self._teach(step.tools).follow(END)
        for level in (self, self.family):
            level.lifetimes.saw_end(turn)
        self.count(steps=1)

    def was_no_end(self, step: Step, turn: int) -> None:
        for counts in self._classes(step):
            counts.ends = max(0.0, counts.ends - 1.0)
        following = self._teach(step.tools).following
        following[END] = max(0.0, following.get(END, 0.0) - 1.0)
        for level in (self, self.family):
            level.lifetimes.saw_end(turn, -1.0)
        self.count(steps=-1)

    def count(self, *, steps: int = 0, tasks: int = 0) -> None:
        """`tasks`: finished conversations; negative for those that went on after all."""
        for level in (self, self.family):
            level.steps = max(0, level.steps + steps)
            level.tasks = max(0, level.tasks + tasks)

    def _classes(self, step: Step) -> tuple[_Counts, _Behind, _Behind, _Behind]:
        node, kind = self._teach(step.tools), bool(step.tools)
        word = node.words.pop(step.word, None) or _Counts()
        node.words[step.word] = word
        if len(node.words) > _MAX_WORDS:
            node.words.popitem(last=False)
        return word, node, self.by_kind[kind], self.family.by_kind[kind]

    def _teach(self, tools: ToolSet) -> Node:
        node = self._nodes.pop(tools, None)
        if node is None:
            self._given += 1
            node = self.numbered[self._given] = Node(number=self._given, tools=tools)
            if len(self._nodes) >= MAX_NODES:
                self._drop(self._nodes.popitem(last=False)[1].number)
        self._nodes[tools] = node
        return node

    def _drop(self, number: int) -> None:
        del self.numbered[number]
        for node in (self.start, *self._nodes.values()):
            if count := node.following.pop(number, 0.0):
                node.following[OTHER] = node.following.get(OTHER, 0.0) + count

    def expected_return(self, step: Step) -> ExpectedReturn:
        kind = bool(step.tools)
        node = self._nodes.get(step.tools)
        broad = self.by_kind[kind], self.family.by_kind[kind]
        share, word = _PRIOR[kind], node.words.get(step.word) if node is not None else None
        for counts in (broad[1], broad[0], node, word):
            if counts is not None:
                seen = counts.returns + counts.ends
                share = (counts.returns + _STRENGTH * share) / (seen + _STRENGTH)
        lengths: LogQuantiles | None = None
        if node is not None and node.pauses.weight >= ENOUGH:
            lengths = node.pauses
        else:
            if len(step.tools) > 1:  # parallel calls take as long as the longest
                alone = filter(None, [self._nodes.get((tool,)) for tool in step.tools])
                known = [each.pauses for each in alone if each.pauses.weight >= ENOUGH]
                lengths = max(known, key=attrgetter("mu"), default=None)
            for each in broad:
                if lengths is None and each.pauses.weight >= ENOUGH:
                    lengths = each.pauses
        ends = 1.0 - share
        if ends >= share:
            return ExpectedReturn(share, lengths, 0.0)
        return ExpectedReturn(
            share, lengths, lengths.counted(1.0 - ends / share) if lengths is not None else None
        )

    def overall_returns(self) -> float:
        """The chance of a next turn after any step."""
        for level in (self, self.family):
            kinds = level.by_kind.values()
            returns, ends = sum(each.returns for each in kinds), sum(each.ends for each in kinds)
            if returns + ends >= ENOUGH:
                return returns / (returns + ends)
        return _PRIOR[False]

    def next(self, tools: ToolSet) -> tuple[ToolSet, float]:
        """The likeliest next step's tools, and their probability; the same tools if unknown."""
        node = self._nodes.get(tools)
        following = node.following if node is not None else {}
        found, most = tools, 0.0
        for number, count in following.items():
            if count > most and number in self.numbered:
                found, most = self.numbered[number].tools, count
        return found, most / (1.0 + sum(following.values()) - following.get(END, 0.0))

    def outlook(self) -> Outlook:
        turns = self.family.lifetimes.turns
        if self._outlook is None or turns >= self._holds_until:
            self._holds_until = turns + min(_HOLDS_FOR, 1 + turns // 16)
            self._outlook = self.lifetimes.outlook(self.family.lifetimes.outlook())
        return self._outlook

    def tool_s(self) -> float:
        return self.tools_s.mean(self.family.tools_s.mean(0.0, 1e-9), ENOUGH)

    def edges(self) -> list[tuple[int, int, float, float]]:
        return [
            (node.number, to, count / total, count)
            for node in (self.start, *self._nodes.values())
            if (total := sum(node.following.values())) > 0.0
            for to, count in node.following.items()
            if count > 0.0
        ]

    def label(self, number: int) -> str:
        return _LABELS.get(number) or " + ".join(self.numbered[number].tools) or "answer"
