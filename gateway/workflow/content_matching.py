"""Which turn does this request follow? By returned ids, echoed answers, and the conversation itself.

Source: ours (docs/design/sessions.md). From strong to weak: a retry of a failed attempt; an id that an answer
minted; the longest known conversation *with our own answer behind it*; that answer alone; the conversation
alone, where it continues without its answer. A link is proved if only the session itself can have sent the
request.

Deviations: prefixes that several conversations share (a fleet's boilerplate, two clients with one prompt)
need no list: a prefix alone links only to a linked turn; otherwise our answer has to follow it.

Invariants: nothing is changed here; where two sessions fit equally well, one without a continuation is taken,
and the link is marked as a choice.
"""

from collections.abc import Callable, Sequence
from itertools import filterfalse
from typing import Final

import msgspec

from gateway.domain.decision import Edge, SessionSource
from gateway.domain.request import AssistantBlock, RequestFacts
from gateway.identity.counter_ids import is_counter_like
from gateway.wire.hashing import hash_text
from gateway.workflow.traces import Holders, Traces, holders
from gateway.workflow.turns import CONFIDENCE, Identity, Outcome, Turn

# Clients obey `retry-after`: none returns earlier, most within 50 ms.
PUNCTUAL_S: Final = 0.1
UNSCHEDULED_S: Final = 0.5
# Some clients ignore longer waits.
OBEYED_S: Final = 30.0
# Latest retry without a `retry-after`; later, it is another client with the same request.
PATIENCE_S: Final = 10.0
# Retries are later in proportion to the attempt's duration.
BACKING_OFF: Final = 2.0
# Messages of a client behind an omitted answer.
MAX_UNANSWERED: Final = 2
# A shorter answer is no evidence without its conversation.
_MIN_ECHO_CHARS: Final = 16
# A program that rejects an answer follows up within this time; its tools may run before.
REJECTED_S: Final = 30.0
# Most confidence without proof: another user of the template could have sent the request.
GUESS: Final = 0.8
# Most confidence where another session fits as well.
CHOICE: Final = 0.6

_Found = Sequence[Turn]


class Link(msgspec.Struct, frozen=True):
    turn: Turn
    source: SessionSource
    is_choice: bool = False
    """Another session fits as well."""
    is_proof: bool = False
    """By its content, only the session itself can have sent the request."""
    has_private_answer: bool = False
    """The request has an answer that only its session received."""


class ContentSearch:
    def __init__(self, traces: Traces, facts: RequestFacts, *, now: float) -> None:
        self.facts = facts
        self.now = now
        self._traces = traces
        self._script = facts.transcript
        self._within: Callable[[Turn], bool] | None = None
        self._known: Callable[[Holders, int], _Found] = holders
        ids = [*facts.state_ids, *filterfalse(is_counter_like, facts.echoed_ids)]
        self._has_counters = not ids
        # Returned ids, newest first; random ones alone, if there are any.
        self._ids = list(map(hash_text, ids or facts.echoed_ids))

    def identity(self, within: Callable[[Turn], bool] | None = None) -> Identity:
        """`within`: restricts the parents; None: any turn of the tenant."""
        if within is not None:
            self._within = within
            self._known = lambda index, key: [turn for turn in holders(index, key) if within(turn)]
        link = (self._script.body in self._traces.bodies and self.retried()) or self._parent()
        if link is None:
            return Identity()
        turn = link.turn
        after, tip = turn.successor if turn.next is not None else None, turn.thread.tip
        if link.source is SessionSource.RETRY:
            edge = Edge.RETRIES
        elif turn.offers_tools and self.facts.tool_count == 0:
            edge = Edge.SERVES
        elif after is None or after.has_failed or (link.is_proof and after.is_guessed):
            edge = Edge.CONTINUES
        elif tip is not None and (tip.outcome is Outcome.LIVE or tip.has_open_calls):
            edge = Edge.FORKS
        else:
            edge = Edge.REWINDS
        most = 1.0 if link.is_proof else CHOICE if link.is_choice else GUESS
        return Identity(
            source=link.source,
            confidence=min(CONFIDENCE[link.source], most),
            session=turn.thread.session,
            thread=None if edge is Edge.FORKS else turn.thread,
            edge=edge,
            parent=turn,
            has_secrets=turn.has_secrets if edge is Edge.RETRIES else link.is_proof,
            has_private_answer=link.has_private_answer,
        )

    # --- retries ---------------------------------------------------------------------------------

    def retried(self) -> Link | None:
        """Identical requests without a failure are no retries."""
        same = holders(self._traces.bodies, self._script.body)
        failed = [turn for turn in same if self._may_repeat(turn)]
        if not failed:
            return None
        best = min(failed, key=lambda turn: (self._late_s(turn), -turn.ended_s))
        guessed = [turn for turn in same if turn.retried_by is not None and turn.retried_by.is_guessed]
        rivals = failed + guessed
        is_proof = _is_alone(best, rivals) and self._knows_secrets(best)
        return Link(best, SessionSource.RETRY, len(_runs(rivals)) > 1, is_proof, best.has_private_answer)

    def _late_s(self, turn: Turn) -> float:
        """Distance from the time of `retry-after`."""
        return UNSCHEDULED_S if turn.due_s is None else abs(self.now - turn.due_s)

    def _knows_secrets(self, turn: Turn) -> bool:
        """A repeated opening may be another client's with the same question."""
        return turn.has_secrets and turn.client == self.facts.client

    def _may_repeat(self, turn: Turn) -> bool:
        facts, now, again = self.facts, self.now, turn.retried_by
        if not turn.has_failed or turn.next is not None:
            return False
        if self._within is not None and not self._within(turn):
            return False
        if again is not None and not (again.is_guessed and self._knows_secrets(turn)):
            return False
        if turn.due_s is not None and now < turn.due_s - PUNCTUAL_S and turn.due_s - turn.ended_s <= OBEYED_S:
            return False
        if now > turn.ended_s + retried_within_s(turn):
            return False
        is_counting = bool(facts.attempt) or facts.client in self._traces.counting
        if facts.attempt is None or turn.attempt is None or not is_counting:
            return True
        if facts.attempt == 0 and turn.outcome is Outcome.FAILED:
            # A counting transport would have counted, unless it gave up and the application sent it anew.
            return not turn.is_opening or turn.attempt > 0
        return facts.attempt in (0, turn.attempt + 1)

    # --- continuations ---------------------------------------------------------------------------

    def _parent(self) -> Link | None:
        guess: Link | None = None
        ids, blocks = self._ids, self._script.blocks
        for find, evidence in ((self._by_minted_id, ids), (self._by_conversation, blocks)):
            found = find() if evidence else None
            if found is not None:
                link = self._prove(found)
                if link.is_proof:
                    return link
                guess = guess or link
        if guess is None and blocks:
            guess = self._by_echo()
        if guess is None or guess.turn.next is not None:
            guess = self._without_answer() or guess
        return guess or (self._among_twins() if ids else None)

    def _prove(self, link: Link) -> Link:
        """Random ids, and long answers to a single session, cannot be guessed but can be copied: they are
        proof for the same client software, and for the first continuation."""
        turn = link.turn
        if link.is_choice or link.source is SessionSource.PREFIX:
            return link
        is_continued = turn.next is not None and turn.is_continued
        if turn.client != self.facts.client or is_continued or turn.is_twin:
            return link
        has_private_answer = self._has_private_answer(turn)
        is_by_id = link.source is not SessionSource.ECHO and not self._has_counters
        is_by_id = is_by_id and not self._traces.is_twin_by_id(turn)
        for key in self._ids if is_by_id else ():
            minted = self._traces.minted
            is_by_id = is_by_id and (minted.get(key) is turn or _is_alone(turn, holders(minted, key)))
        return Link(turn, link.source, False, is_by_id or has_private_answer, has_private_answer)

    def _has_private_answer(self, turn: Turn) -> bool:
        traces, agent, blocks = self._traces, self._script.agent, iter(self._script.blocks)
        for block in blocks:
            if (block.tail or agent) == turn.tail and (turn.has_private_answer or block.text == turn.text):
                break
        else:
            return False
        # A different answer earlier on means a different conversation.
        answer = block if block.text else next((each for each in blocks if each.text), None)
        if answer is not None and traces.is_twin_by_answer(
            turn.session.tenant, answer.tail or agent, answer.text
        ):
            return False
        for other in holders(traces.tails, turn.tail):
            if other is not turn and other.text == turn.text and other.session is not turn.session:
                return False
        return turn.has_private_answer or traces.is_secret(turn)

    def _answered(self) -> set[int]:
        """Hashes of the conversations before each answer."""
        return {block.tail or self._script.agent for block in self._script.blocks}

    def _by_minted_id(self) -> Link | None:
        best: _Found = ()
        for key in self._ids:
            if key in self._traces.minted and (best := self._known(self._traces.minted, key)):
                break
        else:
            return None
        source = SessionSource.STATE_ID if self.facts.state_ids else SessionSource.CALL_ID
        if len(best) == 1 and best[0].next is None and not self._has_counters:
            return Link(best[0], source)
        answered = self._answered()
        if answered and (self._has_counters or len(_runs(best)) > 1):
            best = [turn for turn in best if turn.tail in answered]
        if len(_runs(best)) != 1:
            return None  # the same counters in the same conversations: the answers may decide
        turn = max(best, key=lambda turn: turn.arrived_s)
        # Answers without calls may have followed.
        while (after := turn.successor) is not None and after.tail in answered and not after.has_failed:
            turn = after
        return Link(turn, source)

    def _by_conversation(self) -> Link | None:
        for at, block in enumerate(self._script.blocks):
            is_newest = at < self._script.newest_run
            known = self._known(self._traces.tails, block.tail or self._script.agent)
            if not known:
                continue
            exact = [turn for turn in known if self._agrees(turn, block, is_newest=is_newest)]
            link = _oldest(exact, SessionSource.ECHO)
            if link is not None and (is_newest or not link.is_choice):
                return link
            # The client edited our answer.
            loose = [
                turn
                for turn in known
                if turn.next is None
                and turn.outcome is not Outcome.LIVE
                and (not turn.is_opening or turn.outcome is Outcome.CUT)
                and not turn.calls
            ]
            if len(loose) == 1:
                return Link(loose[0], SessionSource.PREFIX)
        return None

    def _agrees(self, turn: Turn, block: AssistantBlock, *, is_newest: bool) -> bool:
        if turn.text != block.text or (turn.calls > 0) != block.has_calls:
            return False
        if block.has_calls and is_newest:
            # Unknown random ids are another session's.
            return not turn.minted or self._has_counters
        # An empty answer returns as one.
        return turn.outcome is not Outcome.LIVE and (block.text != 0 or block.has_calls or turn.is_silent)

    def _by_echo(self) -> Link | None:
        blocks = self._script.blocks
        if blocks[0].text not in self._traces.texts:
            return None
        known = self._known(self._traces.texts, blocks[0].text)
        known = [turn for turn in known if turn.chars >= _MIN_ECHO_CHARS]
        if len(_runs(known)) != 1:
            return None
        return Link(max(known, key=lambda turn: turn.arrived_s), SessionSource.ECHO)

    def _without_answer(self) -> Link | None:
        """A known conversation continues without its answer: that was empty, or the agent dropped it."""
        for tail in filter(None, self._script.recent[:MAX_UNANSWERED]):
            if tail not in self._traces.tails:
                continue
            known = self._known(self._traces.tails, tail)
            if len(_runs(known)) == 1 and known[-1].next is None:
                turn = known[-1]
                may_reject = (
                    tail not in self._answered()
                    and turn.outcome is Outcome.ANSWERED
                    and self.facts.tool_count == 0
                    and not turn.calls
                    and turn.agent == self._script.agent
                    and self.now - turn.ended_s <= REJECTED_S
                )
                if turn.is_silent or may_reject:
                    return Link(turn, SessionSource.PREFIX)
        return None

    def _among_twins(self) -> Link | None:
        """Several sessions had the same answer to the same conversation, with the same ids."""
        if self._has_counters or self.facts.state_ids or self._traces.minted.keys().isdisjoint(self._ids):
            return None
        answered = self._answered()
        for key in self._ids:
            twins = [turn for turn in self._known(self._traces.minted, key) if turn.tail in answered]
            if twins:
                return _oldest(twins, SessionSource.CALL_ID)
        return None


def retried_within_s(turn: Turn) -> float:
    """After its end; a later request is another client's."""
    backoff_s = max(0.0, (turn.due_s or 0.0) - turn.ended_s)
    return backoff_s + max(PATIENCE_S, BACKING_OFF * (turn.ended_s - turn.first_s))


def _is_alone(turn: Turn, others: _Found) -> bool:
    if len(others) == 1 and others[0] is turn:  # nearly always
        return True
    return all(other.session is turn.session for other in others)


def _oldest(turns: _Found, source: SessionSource) -> Link | None:
    if not turns:
        return None
    free = [turn for turn in turns if turn.next is None]
    if not free:
        return Link(max(turns, key=lambda turn: turn.last_s), source, len(_runs(turns)) > 1)
    # A twin with a guessed continuation may be this one.
    rivals = [turn for turn in turns if turn.next is None or turn.next.is_guessed]
    return Link(min(free, key=lambda turn: turn.last_s), source, len(_runs(rivals)) > 1)


def _runs(turns: _Found) -> set[int]:
    return {id(turn.session.run) for turn in turns}
