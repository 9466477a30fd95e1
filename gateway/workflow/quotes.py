"""Conversations that begin by quoting another one: sub-agents, next tasks, summaries, side requests.

Source: ours (docs/design/sessions.md). A request that follows no turn that we know may still belong to a
run that we know, because it says what that run's model or user said.

Invariants: nothing is changed here. A quote that turns of several sessions could have left names the one
that spoke last, if it did so clearly later than the others; otherwise it names nobody.
"""

from typing import Final, NamedTuple

from gateway.domain.decision import Edge
from gateway.domain.request import RequestFacts
from gateway.wire.marks import is_most
from gateway.workflow.ancestry import Within
from gateway.workflow.hits import Hits, are_several, has_all, search
from gateway.workflow.neighbours import has_asked_before
from gateway.workflow.traces import Traces, holders
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


class Quote(NamedTuple):
    turn: Turn
    edge: Edge
    is_choice: bool = False
    """Another session would have fitted as well."""


def find_quote(traces: Traces, facts: RequestFacts, within: Within, *, now: float) -> Quote | None:
    """The turn that a new conversation quotes, and what that makes of it."""
    if traces.is_worn(facts.transcript.body):
        return _by_title(traces, facts, within, now=now)
    found = search(traces, facts, within)
    spawners = [h.turn for h in found if _may_spawn(h.turn, facts, now=now) and h.is_handed(facts)]
    if spawners:
        best = min(spawners, key=lambda turn: (turn.spawned, -turn.last_s))
        return Quote(best, Edge.SPAWNED, are_several(spawners))
    if traces.minted and (turn := _by_ids(traces, facts, within)) is not None:
        return Quote(turn, _edge_of_answer(turn, facts))
    # What an answer and its own question say alike, whoever asks the same says, too.
    answers = [h for h in found if h.turn.body != facts.transcript.body]
    most = max((h.said for h in answers), default=0.0)
    saying = [h.turn for h in answers if most and h.said == most]
    if (turn := _latest(saying, now=now)) is not None:
        return Quote(turn, _edge_of_answer(turn, facts), are_several(saying))
    # A prompt alone would not do: others have it, too.
    telling = _likeliest([h for h in found if is_most(h.old, h.turn.said)])
    if (turn := _latest(telling, now=now)) is not None:
        return Quote(turn, Edge.CONTINUES, are_several(telling))
    by_prompt = _by_prompt([h.turn for h in found if has_all(h.new, h.turn.asked)], facts, now=now)
    return (
        by_prompt or _by_title(traces, facts, within, now=now) or _by_opening(traces, facts, within, now=now)
    )


def _by_ids(traces: Traces, facts: RequestFacts, within: Within) -> Turn | None:
    for known in facts.transcript.words.ids:
        turns = [turn for turn in holders(traces.minted, known) if within(turn)]
        if turns and not are_several(turns):
            return turns[-1]
    return None


def _may_spawn(turn: Turn, facts: RequestFacts, *, now: float) -> bool:
    """Its calls run, or ran a moment ago: some tools start an agent and return at once."""
    is_running = turn.has_open_calls or (turn.calls > 0 and now - turn.ended_s <= SPAWN_S)
    opened, script = turn.session.run, facts.transcript
    is_same = script.agent == opened.main.agent and is_most(script.new_probes, opened.opened)
    return is_running and turn.spawned < turn.calls and not is_same


def _likeliest(found: list[Hits]) -> list[Turn]:
    marks: dict[int, set[int]] = {}
    for hits in found:
        if not hits.turn.is_side:
            marks.setdefault(id(hits.turn.session.run), set()).update(hits.old)
    most = max(map(len, marks.values()), default=0)
    return [hits.turn for hits in found if len(marks.get(id(hits.turn.session.run), ())) == most]


def _edge_of_answer(turn: Turn, facts: RequestFacts) -> Edge:
    main = turn.session.run.main
    if facts.tool_count == 0 and main.tip is not None and main.tip.offers_tools:
        return Edge.SERVES
    is_same_agent = facts.transcript.agent == main.agent
    is_summary = facts.tool_count > 0 and (turn.is_side or not turn.is_opening)
    return Edge.COMPACTS if (is_same_agent and not turn.is_opening) or is_summary else Edge.QUOTES


def _by_prompt(asked: list[Turn], facts: RequestFacts, *, now: float) -> Quote | None:
    """A side request about a prompt comes while the prompt is answered, or sums up what came of it."""
    together = [
        turn
        for turn in asked
        if facts.tool_count == 0 and turn.offers_tools
        if _is_at_work(turn, now=now) and not has_asked_before(turn.session, facts)
    ]
    if not together:
        return None
    return Quote(min(together, key=lambda turn: turn.arrived_s), Edge.SERVES, are_several(together))


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
        if turn.session.run_count == 1 and turn.client == facts.client and within(turn)
        if has_all(probes, facts.transcript.asked)
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


def _latest(turns: list[Turn], *, now: float) -> Turn | None:
    """The turn of the only session, or of the one that spoke clearly last.

    Twins, which were asked the very same, cannot be told apart by any rule: the last one must do.
    """
    turns = [turn for turn in turns if not turn.is_served] or turns
    newest: dict[int, Turn] = {}
    for turn in turns:
        known = newest.get(id(turn.session.run))
        if known is None or turn.last_s >= known.last_s:
            newest[id(turn.session.run)] = turn
    if not newest:
        return None
    first, *others = sorted(newest.values(), key=lambda turn: -turn.last_s)
    rivals = [turn for turn in others if turn.body != first.body]
    age = now - first.last_s
    if rivals and (age > FRESH_S or now - rivals[0].last_s < CLEARLY * max(age, 0.1)):
        return None
    return first


def thread_for(quote: Quote, session: Session) -> Thread | None:
    if quote.edge in (Edge.SERVES, Edge.CONTINUES, Edge.OPENS):
        return quote.turn.thread
    if quote.edge is Edge.COMPACTS:
        return session.main if quote.turn.is_side else quote.turn.thread
    return None
