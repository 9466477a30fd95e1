"""Conversations that begin by quoting another one: sub-agents, next tasks, summaries, side requests.

Source: ours (CLIENTS: rules 8, 10 to 12). A request that follows no turn that we know may still belong to a
run that we know, because it says what that run's model or user said.

Symbols: —

Deviations: —

Invariants: nothing is changed here. A quote that turns of several sessions could have left names the one
that spoke last, if it did so clearly later than the others; otherwise it names nobody.
"""

from collections.abc import Set
from typing import Final, NamedTuple

from gateway.domain.decision import Edge
from gateway.domain.request import RequestFacts
from gateway.wire.marks import is_most
from gateway.workflow.ancestry import Within
from gateway.workflow.traces import Holders, Traces, holders
from gateway.workflow.turns import Outcome, Session, Thread, Turn

SIDE_S: Final = 2.0
"""A side request about a prompt alone goes with it: it comes while the prompt is answered."""
TITLE_S: Final = 30.0
"""So long may an agent take from asking for a title to its first turn."""
SPAWN_S: Final = 30.0
_MAX_QUESTIONS: Final = 3
CLEARLY: Final = 5.0
"""Times as long ago: what makes one of two equal sources the likelier one."""
FRESH_S: Final = 2.0
PHRASE_CHARS: Final = 24
"""A handed text as short as this is as likely a command; then it takes another kind of agent, and"""
MIN_HANDED_PHRASE: Final = 0.6
MIN_HANDED: Final = 0.1
"""How much of a sub-agent's opening is what it was told; the rest is its harness's template."""


class Quote(NamedTuple):
    turn: Turn
    edge: Edge
    is_choice: bool = False
    """Another session would have fitted as well."""


class _Hits:
    """How much of one turn's words was found."""

    def __init__(self, turn: Turn) -> None:
        self.turn = turn
        self.new: set[int] = set()
        self.old: set[int] = set()
        self.common: set[int] = set()
        """What other sessions left, too: phrases that a model, or a template, always says."""

    def is_handed(self, facts: RequestFacts) -> bool:
        """Whether its calls handed over what this conversation opens with: not any words of it."""
        is_same_agent = facts.transcript.agent == self.turn.session.main.agent
        for marks, size in zip(self.turn.handed, self.turn.handed_sizes, strict=True):
            if is_most(self.new, marks):
                is_phrase = size <= PHRASE_CHARS
                least = MIN_HANDED_PHRASE if is_phrase else MIN_HANDED
                if not (is_phrase and is_same_agent) and facts.transcript.words.share(marks, size) >= least:
                    return True
        return False

    @property
    def said(self) -> float:
        """How much of its answer, 0 to 1; 0 if too little to mean anything."""
        marks = self.turn.said
        if _has_all(self.new, marks):
            return 1.0
        found = self.new - self.common
        return sum(mark in found for mark in marks) / len(marks) if is_most(found, marks) else 0.0

    def is_asked(self) -> bool:
        """The whole prompt: of prompts that a template makes, the larger part is the same."""
        return _has_all(self.new, self.turn.asked)

    def is_history(self) -> bool:
        """A prompt alone would not do: others have it, too."""
        return is_most(self.old, self.turn.said)


def find_quote(traces: Traces, facts: RequestFacts, within: Within, *, now: float) -> Quote | None:
    """The turn that a new conversation quotes, and what that makes of it."""
    if traces.is_worn(facts.transcript.body):
        return _by_title(traces, facts, within, now=now)
    found = _search(traces, facts, within)
    spawners = [h.turn for h in found if _may_spawn(h.turn, facts, now=now) and h.is_handed(facts)]
    if spawners:
        best = min(spawners, key=lambda turn: (turn.spawned, -turn.last_s))
        return Quote(best, Edge.SPAWNED, _are_several(spawners))
    if (turn := _by_ids(traces, facts, within)) is not None:
        return Quote(turn, _edge_of_answer(turn, facts))
    # What an answer and its own question say alike, whoever asks the same says, too.
    answers = [h for h in found if h.turn.body != facts.transcript.body]
    most = max((h.said for h in answers), default=0.0)
    saying = [h.turn for h in answers if most and h.said == most]
    if (turn := _latest(saying, now=now)) is not None:
        return Quote(turn, _edge_of_answer(turn, facts), _are_several(saying))
    telling = _likeliest([h for h in found if h.is_history()])
    if (turn := _latest(telling, now=now)) is not None:
        return Quote(turn, Edge.CONTINUES, _are_several(telling))
    by_prompt = _by_prompt([h.turn for h in found if h.is_asked()], facts, now=now)
    return (
        by_prompt or _by_title(traces, facts, within, now=now) or _by_opening(traces, facts, within, now=now)
    )


def _by_ids(traces: Traces, facts: RequestFacts, within: Within) -> Turn | None:
    """A history that is told as a text names calls that we saw being made."""
    for known in facts.transcript.words.ids:
        turns = [turn for turn in holders(traces.minted, known) if within(turn)]
        if turns and not _are_several(turns):
            return turns[-1]
    return None


def _are_several(turns: list[Turn]) -> bool:
    return any(turn.session is not turns[0].session for turn in turns)


def _has_all(hits: Set[int], marks: tuple[int, ...]) -> bool:
    return bool(marks) and all(mark in hits for mark in marks)


def _may_spawn(turn: Turn, facts: RequestFacts, *, now: float) -> bool:
    """Its calls run, or ran a moment ago: some tools start an agent and return at once."""
    is_running = turn.has_open_calls or (turn.calls > 0 and now - turn.ended_s <= SPAWN_S)
    return is_running and turn.spawned < turn.calls and not _is_same_kind(turn.session, facts)


def _is_same_kind(session: Session, facts: RequestFacts) -> bool:
    """It opens as that session did: what it quotes is the boilerplate of both."""
    is_same_agent = facts.transcript.agent == session.main.agent
    return is_same_agent and is_most(facts.transcript.new_probes, session.opened)


def _likeliest(found: list[_Hits]) -> list[Turn]:
    """The turns of the sessions of whose history most was found; side requests only repeat it."""
    marks: dict[int, set[int]] = {}
    for hits in found:
        if not hits.turn.is_side:
            marks.setdefault(id(hits.turn.session), set()).update(hits.old)
    most = max(map(len, marks.values()), default=0)
    return [hits.turn for hits in found if len(marks.get(id(hits.turn.session), ())) == most]


def _search(traces: Traces, facts: RequestFacts, within: Within) -> list[_Hits]:
    """The turns that share words with the request."""
    script = facts.transcript
    traces.read_words()
    found: dict[int, _Hits] = {}

    def look(index: Holders, probes: frozenset[int], *, is_new: bool) -> None:
        for mark in probes & index.keys():
            turns = [turn for turn in holders(index, mark) if turn.client == facts.client and within(turn)]
            is_common = _are_several(turns)
            for turn in turns:
                hits = found.setdefault(id(turn), _Hits(turn))
                (hits.new if is_new else hits.old).add(mark)
                if is_common:
                    hits.common.add(mark)

    look(traces.marks, script.new_probes, is_new=True)
    if facts.tool_count == 0:  # only a side request is made of another's prompt
        look(traces.asked, script.new_probes, is_new=True)
    if script.old_probes:
        look(traces.marks, script.old_probes, is_new=False)
        look(traces.asked, script.old_probes, is_new=False)
    # Sets have no order of their own.
    return sorted(found.values(), key=lambda hits: hits.turn.arrived_s)


def _edge_of_answer(turn: Turn, facts: RequestFacts) -> Edge:
    if facts.tool_count == 0 and turn.session.main.tip is not None and turn.session.main.tip.offers_tools:
        return Edge.SERVES
    thread = turn.thread
    is_same_agent = facts.transcript.agent == thread.session.main.agent
    is_summary = facts.tool_count > 0 and (turn.is_side or not turn.is_opening)
    return Edge.COMPACTS if (is_same_agent and not turn.is_opening) or is_summary else Edge.QUOTES


def _by_prompt(asked: list[Turn], facts: RequestFacts, *, now: float) -> Quote | None:
    """A side request about a prompt comes while the prompt is answered, or sums up what came of it."""
    together = [
        turn
        for turn in asked
        if facts.tool_count == 0 and turn.offers_tools
        if _is_at_work(turn, now=now) and not _has_asked_before(turn.session, facts)
    ]
    if not together:
        return None
    return Quote(min(together, key=lambda turn: turn.arrived_s), Edge.SERVES, _are_several(together))


def _is_at_work(turn: Turn, *, now: float) -> bool:
    tip = turn.thread.tip
    if tip is turn or tip is None:
        return now - turn.arrived_s <= SIDE_S
    return tip.outcome is Outcome.ANSWERED and now - tip.ended_s <= SIDE_S


def _by_title(traces: Traces, facts: RequestFacts, within: Within, *, now: float) -> Quote | None:
    """Or it comes before: then the session is there already, when its first turn arrives."""
    traces.drop_titles(before_s=now - TITLE_S)
    if facts.tool_count == 0 or facts.transcript.blocks:
        return None
    fits = [
        turn
        for turn, probes in traces.titles
        if turn.session.turns == 1 and turn.client == facts.client and within(turn)
        if _has_all(probes, facts.transcript.asked)
    ]
    return Quote(fits[0], Edge.OPENS, len(fits) > 1) if fits else None


def _by_opening(traces: Traces, facts: RequestFacts, within: Within, *, now: float) -> Quote | None:
    """A conversation that we know, and a question about it instead of its answer: a side request."""
    if facts.tool_count:
        return None
    for tail in facts.transcript.recent[:_MAX_QUESTIONS]:
        known = [t for t in holders(traces.tails, tail) if t.offers_tools and within(t)]
        if (turn := _latest(known, now=now)) is not None:
            return Quote(turn, Edge.SERVES)
    return None


def _has_asked_before(session: Session, facts: RequestFacts) -> bool:
    """A run does not begin the same conversation twice; another one with the same prompt does."""
    return any(turn.body == facts.transcript.body and not turn.has_failed for turn in session.log)


def _latest(turns: list[Turn], *, now: float) -> Turn | None:
    """The turn of the only session, or of the one that spoke clearly last.

    Twins, which were asked the very same, cannot be told apart by any rule: the last one must do.
    """
    turns = [turn for turn in turns if not turn.is_served] or turns
    newest: dict[int, Turn] = {}
    for turn in turns:
        known = newest.get(id(turn.session))
        if known is None or turn.last_s >= known.last_s:
            newest[id(turn.session)] = turn
    if not newest:
        return None
    first, *others = sorted(newest.values(), key=lambda turn: -turn.last_s)
    rivals = [turn for turn in others if turn.body != first.body]
    age = now - first.last_s
    if rivals and (age > FRESH_S or now - rivals[0].last_s < CLEARLY * max(age, 0.1)):
        return None
    return first


def find_neighbour(sessions: list[Session], facts: RequestFacts, *, now: float) -> Turn | None:
    """The turn of the only program at work, if this request comes at once after its answer.

    Steps of one program follow each other within milliseconds, and no second program starts so fast. Only
    for conversations without tools on one side: two agents with tools are two runs until something says
    otherwise. A second conversation of the same kind is a second run.
    """
    if len(sessions) != 1 or _has_asked_before(sessions[0], facts):
        return None
    if len({turn.thread.id for turn in sessions[0].log}) == 1 and len(sessions[0].log) > MAX_STEPS:
        return None
    for turn in reversed(sessions[0].log):
        is_step = turn.outcome is Outcome.ANSWERED and 0 <= now - turn.ended_s <= ADJACENT_S
        is_other_kind = turn.agent != facts.transcript.agent and turn.client == facts.client
        have_tools = turn.offers_tools and facts.tool_count > 0
        if is_step and is_other_kind and not have_tools:
            return turn
    return None


ADJACENT_S: Final = 0.1
MAX_STEPS: Final = 4
"""A longer conversation is an agent's. When it is over, another one may start, but no next step."""
QUIET_S: Final = 2.0
"""A program is the only one at work if no other was seen for so long."""


def thread_for(quote: Quote, session: Session) -> Thread | None:
    """The thread that a quoting request joins; None for a new one."""
    if quote.edge in (Edge.SERVES, Edge.CONTINUES, Edge.OPENS):
        return quote.turn.thread
    if quote.edge is Edge.COMPACTS:
        return session.main if quote.turn.is_side else quote.turn.thread
    return None
