"""Which turn does this request follow? From what came back: ids, echoes, the conversation itself.

Source: ours (docs/design/sessions.md). From strong to weak: a retry of a failed attempt; an id
that we saw being minted; the longest conversation that we know *and our own answer behind it*; that answer
alone; the conversation alone, where it goes on without its answer. Each link says whether it is proved:
whether nobody but the session itself could have sent the request.

Deviations: a prefix that several conversations share (a fleet's boilerplate, two clients with one prompt)
needs no list of boilerplate: the prefix alone links only to a turn that itself was linked, and otherwise
the answer behind it must be the one that we gave.

Invariants: nothing is changed here; where two sessions fit equally well, one that nobody continued yet is
taken, and the answer says that it was a choice.
"""

from collections.abc import Callable, Sequence
from itertools import filterfalse
from typing import Final

import msgspec

from gateway.domain.decision import SessionSource
from gateway.domain.request import AssistantBlock, RequestFacts
from gateway.wire.hashing import hash_text
from gateway.workflow.counter_ids import is_counter_like
from gateway.workflow.traces import Traces, holders
from gateway.workflow.turns import Outcome, Turn

PUNCTUAL_S: Final = 0.1
"""Clients come back when they were told to: none earlier, most within 50 ms."""
UNTOLD_S: Final = 0.5
OBEYED_S: Final = 30.0
"""Longer waits than this are ignored by some."""

PATIENCE_S: Final = 10.0
"""So late a client comes back that was told nothing; later, it is somebody who asks the same."""
BACKING_OFF: Final = 2.0
"""Who failed for a while waits in proportion to that."""

MAX_UNANSWERED: Final = 2
"""Messages that a client writes behind a conversation whose answer it leaves out."""
_MIN_ECHO_CHARS: Final = 16
"""A shorter answer says nothing by itself, without the conversation before it."""
REJECTED_S: Final = 30.0
"""So soon a program asks on that cannot use an answer; its tools may run before that."""

Within = Callable[[Turn], bool]
"""Whether a turn may be the parent at all (its session's stated identity does not forbid it)."""


class Link(msgspec.Struct, frozen=True):
    turn: Turn
    source: SessionSource
    is_choice: bool = False
    """Another session would have fitted as well."""
    is_proof: bool = False
    """Nobody but the session itself could have sent the request, as far as what was said goes."""
    is_told: bool = False
    """The conversation in the request holds an answer that nobody else was given."""


def find_retried(traces: Traces, facts: RequestFacts, within: Within, *, now: float) -> Link | None:
    """The failed attempt that this request repeats. Identical requests that did not fail are no retries."""
    same = holders(traces.bodies, facts.transcript.body)
    if not same:
        return None
    failed = [
        turn
        for turn in same
        if turn.has_failed and turn.next is None and within(turn)
        if turn.retried_by is None or (turn.retried_by.is_guessed and _knows_secrets(turn, facts))
        if _may_repeat(turn, facts, bool(facts.attempt) or facts.client in traces.counting, now=now)
    ]
    if not failed:
        return None
    # How far from the moment at which its client was told to come; a moment that was not told is late.
    best = min(failed, key=lambda t: (UNTOLD_S if t.due_s is None else abs(now - t.due_s), -t.ended_s))
    rivals = failed + [turn for turn in same if turn.retried_by is not None and turn.retried_by.is_guessed]
    is_choice = len(_sessions(rivals)) > 1
    is_proof = _is_alone(best, rivals) and _knows_secrets(best, facts)
    return Link(best, SessionSource.RETRY, is_choice, is_proof)


def _knows_secrets(turn: Turn, facts: RequestFacts) -> bool:
    """Whoever repeats an opening may be somebody else with the same question."""
    return turn.has_secrets and turn.client == facts.client


def retried_within_s(turn: Turn) -> float:
    """How long after its end a failed attempt may be repeated; later, somebody else asks the same."""
    told_s = max(0.0, (turn.due_s or 0.0) - turn.ended_s)
    return told_s + max(PATIENCE_S, BACKING_OFF * (turn.ended_s - turn.first_s))


def _may_repeat(turn: Turn, facts: RequestFacts, is_counting: bool, *, now: float) -> bool:
    if turn.due_s is not None and now < turn.due_s - PUNCTUAL_S and turn.due_s - turn.ended_s <= OBEYED_S:
        return False
    if now > turn.ended_s + retried_within_s(turn):
        return False
    if facts.attempt is None or turn.attempt is None or not is_counting:
        return True
    if facts.attempt == 0 and turn.outcome is Outcome.FAILED:
        # A transport that counts would have counted; unless it gave up, and the application asks anew.
        return not turn.is_opening or turn.attempt > 0
    return facts.attempt in (0, turn.attempt + 1)


def find_parent(traces: Traces, facts: RequestFacts, within: Within, *, now: float) -> Link | None:
    ids = _Ids(facts)
    guess: Link | None = None
    for find in (_by_minted_id, _by_conversation):
        found = find(traces, facts, ids, within)
        if found is not None:
            link = _prove(found, traces, facts, ids)
            if link.is_proof:
                return link
            guess = guess or link
    guess = guess or _by_echo(traces, facts, within)
    if guess is None or guess.turn.next is not None:
        guess = _without_answer(traces, facts, within, now=now) or guess
    return guess or _among_twins(traces, facts, ids, within)


class _Ids:
    """The ids that a request brings back."""

    __slots__ = ("are_counters", "are_states", "keys")

    def __init__(self, facts: RequestFacts) -> None:
        ids = [*facts.state_ids, *filterfalse(is_counter_like, facts.echoed_ids)]
        self.are_counters = not ids
        self.are_states = bool(facts.state_ids)
        self.keys = list(map(hash_text, ids or facts.echoed_ids))
        """Newest first; where some are no counters, those alone."""


def _prove(link: Link, traces: Traces, facts: RequestFacts, ids: _Ids) -> Link:
    """Whether nobody but the session itself could have sent this.

    Nobody guesses an id that was drawn at random, or a long answer that was given to one session only. But
    whoever is shown them can send them. So they count for the same software, and for who goes on first.
    """
    turn = link.turn
    if link.is_choice or link.source is SessionSource.PREFIX:
        return link
    if turn.client != facts.client or turn.is_continued or turn.is_twin:
        return link
    is_told = _was_told(turn, traces, facts)
    is_by_id = link.source is not SessionSource.ECHO and not ids.are_counters
    is_by_id = is_by_id and not traces.is_twin_by_id(turn)
    for key in ids.keys if is_by_id else ():
        is_by_id = is_by_id and _is_alone(turn, holders(traces.minted, key))
    return Link(turn, link.source, False, is_by_id or is_told, is_told)


def _was_told(turn: Turn, traces: Traces, facts: RequestFacts) -> bool:
    agent, blocks = facts.transcript.agent, iter(facts.transcript.blocks)
    for block in blocks:
        if (block.tail or agent) == turn.tail and (turn.told_secrets or block.text == turn.text):
            break
    else:
        return False
    # Who was given another answer before has another conversation.
    said = block if block.text else next((each for each in blocks if each.text), None)
    if said is not None and traces.is_twin_by_answer(turn.session.tenant, said.tail or agent, said.text):
        return False
    for other in holders(traces.tails, turn.tail):
        if other is not turn and other.text == turn.text and other.session is not turn.session:
            return False
    return turn.told_secrets or traces.is_secret(turn)


def _is_alone(turn: Turn, others: Sequence[Turn]) -> bool:
    if len(others) == 1 and others[0] is turn:  # nearly always
        return True
    return all(other.session is turn.session for other in others)


def _by_minted_id(traces: Traces, facts: RequestFacts, ids: _Ids, within: Within) -> Link | None:
    best: list[Turn] = []
    for known in ids.keys:
        best = [turn for turn in holders(traces.minted, known) if within(turn)]
        if best:
            break
    else:
        return None
    source = SessionSource.STATE_ID if facts.state_ids else SessionSource.CALL_ID
    if len(best) == 1 and best[0].next is None and not ids.are_counters:
        return Link(best[0], source)
    answered = {block.tail or facts.transcript.agent for block in facts.transcript.blocks}
    if answered and (ids.are_counters or len(_sessions(best)) > 1):
        best = [turn for turn in best if turn.tail in answered]
    if len(_sessions(best)) != 1:
        return None  # the same counters in the same conversations: the answers may tell
    turn = max(best, key=lambda turn: turn.arrived_s)
    # Answers without calls may have followed the one that made these.
    while (after := turn.successor) is not None and after.tail in answered and not after.has_failed:
        turn = after
    return Link(turn, source)


def _by_conversation(traces: Traces, facts: RequestFacts, ids: _Ids, within: Within) -> Link | None:
    script = facts.transcript
    for at, block in enumerate(script.blocks):
        is_newest = at < script.newest_run
        known = [turn for turn in holders(traces.tails, block.tail or script.agent) if within(turn)]
        exact = [turn for turn in known if _agrees(turn, block, ids, is_newest=is_newest)]
        link = _oldest(exact, SessionSource.ECHO)
        if link is not None and (is_newest or not link.is_choice):
            return link
        loose = _loosely(known)
        if loose is not None:
            return loose
    return None


def _agrees(turn: Turn, block: AssistantBlock, ids: _Ids, *, is_newest: bool) -> bool:
    if turn.text != block.text or (turn.calls > 0) != block.has_calls:
        return False
    if block.has_calls and is_newest:
        # Unknown ids are somebody else's, unless they are no ids at all.
        return not turn.minted or ids.are_counters
    # Nothing was said, and nothing is what came back.
    return turn.outcome is not Outcome.LIVE and (block.text != 0 or block.has_calls or turn.is_silent)


def _loosely(known: Sequence[Turn]) -> Link | None:
    """What stands behind the conversation is not what we answered: the client edited it."""
    fits = [
        turn
        for turn in known
        if turn.next is None
        and turn.outcome is not Outcome.LIVE
        and (not turn.is_opening or turn.outcome is Outcome.CUT)
        and not turn.calls
    ]
    return Link(fits[0], SessionSource.PREFIX) if len(fits) == 1 else None


def _by_echo(traces: Traces, facts: RequestFacts, within: Within) -> Link | None:
    if not facts.transcript.blocks:
        return None
    known = holders(traces.texts, facts.transcript.blocks[0].text)
    known = [turn for turn in known if turn.chars >= _MIN_ECHO_CHARS and within(turn)]
    if len(_sessions(known)) != 1:
        return None
    return Link(max(known, key=lambda turn: turn.arrived_s), SessionSource.ECHO)


def _without_answer(traces: Traces, facts: RequestFacts, within: Within, *, now: float) -> Link | None:
    """A conversation that we know goes on as if nobody had answered: nothing was said, or nothing that the
    agent's program keeps."""
    answered = {block.tail for block in facts.transcript.blocks}
    for tail in facts.transcript.recent[:MAX_UNANSWERED]:
        known = [turn for turn in holders(traces.tails, tail) if within(turn)] if tail else []
        if known and len(_sessions(known)) == 1 and known[-1].next is None:
            turn = known[-1]
            if turn.is_silent or (tail not in answered and _may_reject(turn, facts, now=now)):
                return Link(turn, SessionSource.PREFIX)
    return None


def _may_reject(turn: Turn, facts: RequestFacts, *, now: float) -> bool:
    return (
        turn.outcome is Outcome.ANSWERED
        and facts.tool_count == 0
        and not turn.calls
        and turn.agent == facts.transcript.agent
        and now - turn.ended_s <= REJECTED_S
    )


def _among_twins(traces: Traces, facts: RequestFacts, ids: _Ids, within: Within) -> Link | None:
    """Several sessions had the very same answer to the very same, ids included: it is one of them."""
    if ids.are_counters or ids.are_states:
        return None
    tails = {block.tail or facts.transcript.agent for block in facts.transcript.blocks}
    for known in ids.keys:
        twins = [turn for turn in holders(traces.minted, known) if within(turn) and turn.tail in tails]
        if twins:
            return _oldest(twins, SessionSource.CALL_ID)
    return None


def _oldest(turns: Sequence[Turn], source: SessionSource) -> Link | None:
    if not turns:
        return None
    free = [turn for turn in turns if turn.next is None]
    if not free:
        return Link(max(turns, key=lambda turn: turn.last_s), source, len(_sessions(turns)) > 1)
    # A twin that was continued by guesswork may have been this one.
    rivals = [turn for turn in turns if turn.next is None or turn.next.is_guessed]
    return Link(min(free, key=lambda turn: turn.last_s), source, len(_sessions(rivals)) > 1)


def _sessions(turns: Sequence[Turn]) -> set[int]:
    return {id(turn.session.run) for turn in turns}
