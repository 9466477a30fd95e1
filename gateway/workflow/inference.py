"""What content says of a turn: the evidence of `ancestry.py`, weighed.

Source: ours (docs/design/sessions.md).

Invariants: nothing is changed here. Confidence grows with the evidence: ids that we minted, the whole
conversation, its answer.
"""

from typing import Final

import msgspec

from gateway.domain.decision import Edge, SessionSource
from gateway.domain.request import RequestFacts
from gateway.workflow.ancestry import Link, Within, find_parent, find_retried
from gateway.workflow.traces import Traces
from gateway.workflow.turns import ExplicitKey, Outcome, Session, Thread, Turn

CONFIDENCE: Final[dict[SessionSource, float]] = {
    SessionSource.TURNPIKE_HEADER: 1.0,
    SessionSource.CLIENT_ID: 0.98,
    SessionSource.STATE_ID: 0.99,
    SessionSource.CALL_ID: 0.99,
    # The conversation and the answer to it: only a copy of both, elsewhere, would mislead us.
    SessionSource.ECHO: 0.95,
    # The very same bytes after a failure; only twins that failed together could be mistaken.
    SessionSource.RETRY: 0.95,
    SessionSource.PREFIX: 0.8,
    # Not that all of it is one conversation, but that limits hold it together.
    SessionSource.CONNECTION: 0.95,
    # Nothing linked it to an earlier turn; it may still continue one that we could not recognise.
    SessionSource.NEW: 0.5,
}
GUESS: Final = 0.8
"""At most so sure without proof: whoever uses the same template, or was shown it all, could have sent it."""
CHOICE: Final = 0.6
"""At most so sure where another session would have fitted as well."""


class Identity(msgspec.Struct, kw_only=True):
    """What a turn was found to be."""

    source: SessionSource = SessionSource.NEW
    confidence: float = CONFIDENCE[SessionSource.NEW]
    session: Session | None = None
    """None: a new one."""
    thread: Thread | None = None
    """None: a new one."""
    edge: Edge = Edge.OPENS
    parent: Turn | None = None
    key: ExplicitKey | None = None
    """The stated id that shall lead here from now on."""
    name: str | None = None
    group: ExplicitKey | None = None
    begins_anew: bool = False
    """Beside what its session did before, which rests."""
    is_unexplained: bool = False
    has_secrets: bool = False
    told_secrets: bool = False
    """Of the turn that this identifies (`turns.py` explains them)."""


def anybody(turn: Turn) -> bool:
    return True


def infer(traces: Traces, facts: RequestFacts, within: Within, *, now: float) -> Identity:
    retried = find_retried(traces, facts, within, now=now)
    if retried is not None:
        thread = retried.turn.thread
        return Identity(
            source=SessionSource.RETRY,
            confidence=_confidence(retried),
            session=thread.session,
            thread=thread,
            edge=Edge.RETRIES,
            parent=retried.turn,
            has_secrets=retried.turn.has_secrets,
            told_secrets=retried.turn.told_secrets,
        )
    link = find_parent(traces, facts, within, now=now)
    if link is not None:
        edge = _edge_after(link, facts)
        return Identity(
            source=link.source,
            confidence=_confidence(link),
            session=link.turn.session,
            thread=None if edge is Edge.FORKS else link.turn.thread,
            edge=edge,
            parent=link.turn,
            has_secrets=link.is_proof,
            told_secrets=link.is_told,
        )
    return Identity()


def _confidence(link: Link) -> float:
    most = 1.0 if link.is_proof else CHOICE if link.is_choice else GUESS
    return min(CONFIDENCE[link.source], most)


def _edge_after(link: Link, facts: RequestFacts) -> Edge:
    parent = link.turn
    if parent.offers_tools and facts.tool_count == 0:
        return Edge.SERVES
    after = parent.successor
    if after is None or after.has_failed or (link.is_proof and after.is_guessed):
        return Edge.CONTINUES
    tip = parent.thread.tip
    is_running = tip is not None and (tip.outcome is Outcome.LIVE or tip.has_open_calls)
    return Edge.FORKS if is_running else Edge.REWINDS
