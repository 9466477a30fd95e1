"""One agent type's execution graph; the package says what it is.

Steps of one set of tools differ by a word of theirs: a shell that runs a build is gone for longer than one
that lists a folder, and who says goodbye is answered less often than who asks.

Invariants: beyond `MAX_NODES` the longest unseen node is dropped, and what led there counts as `OTHER`;
counts fade, so that old ones count less; an end that is taken back may have faded, so what went on stays; a
tool is told by the first `_NAME` characters of its name, a set by its first `_NAMES` names.
"""

from collections import OrderedDict
from collections.abc import Sequence
from operator import attrgetter
from typing import Final, NamedTuple

from gateway.domain.by_agent import AgentKey
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
ENOUGH: Final = 8.0
"""Pauses from which on they are believed, instead of those of broader classes."""
_LEAST_PAUSE_S: Final = 0.001
_HALF_LIFE: Final = 300.0
"""An observation weighs half as much after so many later ones of its class."""
_KEEP: Final = 0.5 ** (1.0 / _HALF_LIFE)
_STRENGTH: Final = 2.0
"""What is known of the broader class weighs as much as so many observations."""
_PRIOR: Final = {True: 0.95, False: 0.5}
"""Chance that it goes on where nothing is known: behind a step that asks for tools, and behind an answer."""
_FADES_AT: Final = 1000.0
"""Counts of one node's successors are halved then."""
_SAME: Final = 0.02
"""By less no shared prefix changes: whoever keeps sums of it counts anew."""
_HOLDS_FOR: Final = 256
"""What was worked out holds for so many turns of the family at most, and for a sixteenth of those it made."""

ToolSet = tuple[str, ...]
"""Names of tools, each once, in order; empty for an answer without calls."""


def tool_set(names: Sequence[str]) -> ToolSet:
    if len(names) == 1:
        return (names[0][:_NAME],)
    return tuple(sorted({name[:_NAME] for name in names})[:_NAMES])


class Step(NamedTuple):
    """What an answer asks for (SAGA, §3.2: φ)."""

    tools: ToolSet = ()
    word: int = 0
    """Hash of how its calls begin, or of how its text ends if it calls nothing; 0 if that is not known."""


class Pause(NamedTuple):
    """What is expected behind a step."""

    returns: float
    """Probability that the conversation goes on."""
    lengths: LogQuantiles | None
    """Silences until then, of the narrowest class of which enough were seen; None if of none."""
    likely_s: float | None = None
    """For how long that is likelier than not; None while nobody knows how long such pauses are."""

    def quantile_s(self, share: float) -> float | None:
        return self.lengths.quantile(share) if self.lengths is not None else None

    def back(self, silent_s: float) -> float:
        """The chance that it goes on, after so long a silence."""
        if self.lengths is None:
            return self.returns
        later = self.returns * self.lengths.beyond(silent_s)
        return later / max(later + 1.0 - self.returns, 1e-9)


class Silence(NamedTuple):
    """How a session is silent of which nothing runs."""

    has_tools: bool
    pause: Pause | None
    """What is expected; None if nothing is known."""


class HeldContext(NamedTuple):
    """What a session has come to: its longest conversation is what it is about."""

    tokens: float
    """Of that, and of others that are at work."""
    agent: AgentKey
    turns: int


class _Counts:
    """How often a conversation went on behind some steps, and how often it did not."""

    __slots__ = ("ends", "returns")

    def __init__(self) -> None:
        self.returns = 0.0
        self.ends = 0.0

    def ended(self) -> None:
        self.returns *= _KEEP
        self.ends = self.ends * _KEEP + 1.0

    def was_no_end(self) -> None:
        self.ends = max(0.0, self.ends - 1.0)


class _Behind(_Counts):
    """And how long the pauses were."""

    __slots__ = ("pauses",)

    def __init__(self) -> None:
        super().__init__()
        self.pauses = LogQuantiles(low=_LEAST_PAUSE_S, half_life=_HALF_LIFE)


class Node(_Behind):
    """Steps that ask for the same tools."""

    __slots__ = ("following", "number", "tools", "words")

    def __init__(self, number: int, tools: ToolSet) -> None:
        super().__init__()
        self.number = number
        self.tools = tools
        self.following: dict[int, float] = {}
        """How often which node did, `END` too."""
        self.words: OrderedDict[int, _Counts] = OrderedDict()

    def follow(self, number: int) -> None:
        count = self.following[number] = self.following.get(number, 0.0) + 1.0
        if count >= _FADES_AT:
            self.following = {node: count / 2 for node, count in self.following.items()}


class Family:
    """What is known of all types of one client software."""

    def __init__(self) -> None:
        self.by_kind = {True: _Behind(), False: _Behind()}
        """Behind steps that ask for tools, and behind those that do not."""
        self.lifetimes = Lifetimes()
        self.tools_s = DecayedMean(half_life=_HALF_LIFE)
        self.tasks = 0
        self.steps = 0


class Graph(Family):
    def __init__(self, agent: AgentKey, family: Family) -> None:
        super().__init__()
        self.agent = agent
        self.family = family
        self.start = Node(START, ())
        self._nodes: OrderedDict[ToolSet, Node] = OrderedDict()
        self.numbered: dict[int, Node] = {}
        self._given = OTHER
        self.shared = LogQuantiles(low=16.0, half_life=50)
        """Tokens that were cached already when a conversation began."""
        self.shared_tokens = 0.0
        """What nearly all of them found; 0 while that is unknown."""
        self.found = DecayedMean(half_life=50)
        """Of what a turn left, the share that the next one found, if nothing was evicted: prompts change."""
        self._outlook: Outlook | None = None
        """Until the family has seen many more turns."""
        self._holds_until = 0

    def saw_step(self, before: ToolSet | None, tools: ToolSet) -> None:
        node = self._teach(tools)
        first = self.start if before is None else node if before == tools else self._teach(before)
        first.follow(node.number)

    def saw_turn(self, turn: int, *, tokens: float | None, grown: float | None) -> None:
        for level in (self, self.family):
            level.lifetimes.saw_turn(turn, grown, tokens)

    def saw_shared(self, cached_tokens: int) -> bool:
        """What a conversation found when it began. True if what all share is another amount now."""
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
            counts.ended()
        self._teach(step.tools).follow(END)
        for level in (self, self.family):
            level.lifetimes.saw_end(turn)
        self.count(steps=1)

    def was_no_end(self, step: Step, turn: int) -> None:
        for counts in self._classes(step):
            counts.was_no_end()
        following = self._teach(step.tools).following
        following[END] = max(0.0, following.get(END, 0.0) - 1.0)
        for level in (self, self.family):
            level.lifetimes.saw_end(turn, -1.0)
        self.count(steps=-1)

    def count(self, *, steps: int = 0, tasks: int = 0) -> None:
        """`tasks`: conversations that have been over for so long; less than 0 if they came back."""
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
            node = self.numbered[self._given] = Node(self._given, tools)
            if len(self._nodes) >= MAX_NODES:
                self._drop(self._nodes.popitem(last=False)[1].number)
        self._nodes[tools] = node
        return node

    def _drop(self, number: int) -> None:
        del self.numbered[number]
        for node in (self.start, *self._nodes.values()):
            if count := node.following.pop(number, 0.0):
                node.following[OTHER] = node.following.get(OTHER, 0.0) + count

    def pause(self, step: Step) -> Pause:
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
            alone = (self._nodes.get((tool,)) for tool in step.tools if len(step.tools) > 1)
            for classes in (alone, broad[:1], broad[1:]):  # calls side by side last as long as the longest
                known = [each.pauses for each in classes if each and each.pauses.weight >= ENOUGH]
                lengths = lengths or max(known, key=attrgetter("mu"), default=None)
        ends = 1.0 - share
        if ends >= share:
            return Pause(share, lengths, 0.0)
        return Pause(share, lengths, lengths.counted(1.0 - ends / share) if lengths is not None else None)

    def returns(self) -> float:
        """The chance that a conversation goes on, whatever its next step is."""
        for level in (self, self.family):
            kinds = level.by_kind.values()
            returns, ends = sum(each.returns for each in kinds), sum(each.ends for each in kinds)
            if returns + ends >= ENOUGH:
                return returns / (returns + ends)
        return _PRIOR[False]

    def next(self, tools: ToolSet) -> tuple[ToolSet, float]:
        """What the next step asks for, if there is one, and how likely; unknown: the same again."""
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
