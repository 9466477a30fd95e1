"""What is remembered of a session: its threads, and the newest of their turns; what a turn was found to be.

Invariants: hashes only, never content; everything here is bounded per session by `Sessions`.
"""

import enum
from typing import Final

import msgspec

from gateway.domain.decision import Edge, SessionSource
from gateway.domain.ids import RequestId, SessionId, TenantId, ThreadId
from gateway.domain.model_choice import Choice
from gateway.domain.request import PromptHead

ExplicitKey = tuple[TenantId, str, str]
"""Tenant, schema, the session as the client names it."""
_MAX_PARTS: Final = 16
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


class Outcome(enum.Enum):
    LIVE = "live"
    ANSWERED = "answered"
    CUT = "cut"
    """An answer began and broke off, or its reader left: what came of it may have been used."""
    FAILED = "failed"


class Turn(msgspec.Struct, kw_only=True, eq=False):
    """One request and its answer."""

    request: RequestId
    thread: "Thread"
    arrived_s: float
    tail: int
    """Hash of the conversation that was sent; of the agent where nothing was."""
    body: int
    agent: int
    client: int
    offers_tools: bool
    is_opening: bool = True
    """It built on no turn that we know."""
    is_side: bool = False
    outcome: Outcome = Outcome.LIVE
    ended_s: float = 0.0
    text: int = 0
    chars: int = 0
    minted: tuple[int, ...] = ()
    """Hashes of the ids that its answer minted, oldest first."""
    calls: int = 0
    is_answered: bool = False
    """The results of its calls came, or its session moved on without them."""
    next: "Turn | None" = None
    """The newest turn of its thread that continues it."""
    retried_by: "Turn | None" = None
    attempt: int | None = None
    first_s: float = 0.0
    due_s: float | None = None
    """When its client was told to ask again."""
    is_guessed: bool = False
    """What it follows is a guess, so it is a turn of another session."""
    has_secrets: bool = False
    """Its request holds ids or an answer that its own run alone was given."""
    has_private_answer: bool = False
    """Such an answer stands in its conversation, so the hash of that is a secret, too."""
    is_twin: bool = False
    """It was another gateway's, where another session was given the same: it proves nothing."""
    changed: tuple[str, int] | None = None
    """Where its prompt began to differ from the one before (`gateway/core/sessions/client_habits.py`)."""

    @property
    def session(self) -> "Session":
        return self.thread.session

    @property
    def successor(self) -> "Turn | None":
        turn = self.next
        while turn is not None and turn.retried_by is not None:
            turn = turn.retried_by
        return turn if turn is not None and not turn.session.is_forgotten else None

    @property
    def is_continued(self) -> bool:
        after = self.successor
        return after is not None and not after.is_guessed and not after.has_failed

    @property
    def has_open_calls(self) -> bool:
        return self.calls > 0 and not self.is_answered

    @property
    def is_silent(self) -> bool:
        return self.outcome is Outcome.ANSWERED and not self.text and not self.calls

    @property
    def has_failed(self) -> bool:
        return self.outcome in (Outcome.FAILED, Outcome.CUT)

    @property
    def last_s(self) -> float:
        return max(self.arrived_s, self.ended_s)


class Thread(msgspec.Struct, kw_only=True, eq=False):
    """One conversation: turns that follow one another."""

    id: ThreadId
    session: "Session"
    name: str | None = None
    """As the client names it, if it does."""
    tip: Turn | None = None
    """The newest turn of the conversation itself, side requests left out."""
    agent: int = 0
    agent_type: int = 0
    """Of its first turn."""
    head: PromptHead | None = None
    head_tokens: int = 0
    is_root: bool = False
    """Its session began with it, or it is unexplained."""
    is_unexplained: bool = False
    """It began under its session's stated id, and nothing that the session did explains it."""


class Session(msgspec.Struct, kw_only=True, eq=False):
    """One agent run. Changed only by `Sessions` and the session book."""

    id: SessionId
    tenant: TenantId
    source: SessionSource
    confidence: float
    started_s: float
    last_seen_s: float
    schema: str | None = None
    group: ExplicitKey | None = None
    """The id that its client shares with other runs, where it does not tell them apart."""
    parent: SessionId | None = None
    guess: SessionId | None = None
    """The session that it may be a part of."""
    whole: "Session | None" = None
    """The first of the sessions that may be parts of one run with it; None if that is itself."""
    parts: dict[SessionId, "Session"] = {}
    """The newest of those that may be parts of one run with it, if it is the first."""
    turns: int = 0
    live_turns: int = 0
    runs_on: dict[str, Choice] = {}
    """What the operator's names of models mean for it, of those that it asked for."""
    prompt_tokens: int = 0
    cached_tokens: int | None = None
    """None before an engine tells."""
    output_tokens: int = 0
    troubles: int = 0
    """Turns that failed, were refused or cut, or that their client left."""
    is_final: bool = False
    """Somebody said that the session is over; it ends with the last of its live turns."""
    stopped_until_s: float = 0.0
    """By an operator. It does not end before: its client cannot begin it anew."""
    explicit_keys: list[ExplicitKey] = []
    main: Thread = msgspec.UNSET  # type: ignore[assignment]
    thread_count: int = 0
    named: dict[str, Thread] = {}
    log: list[Turn] = []
    """The turns that are remembered, oldest first."""
    is_forgotten: bool = False
    """A turn of another session, which it may have followed, may still know one of its turns."""

    def is_stopped(self, *, now: float) -> bool:
        return now < self.stopped_until_s

    @property
    def run(self) -> "Session":
        return self.whole or self

    def may_be_part_of(self, other: "Session") -> None:
        self.guess, self.whole, self.group = other.id, other.run, other.group
        parts = other.run.parts
        parts[self.id] = self
        if len(parts) > _MAX_PARTS:
            parts.pop(next(iter(parts))).whole = None

    def dissolve(self) -> None:
        """Lets go of everything, so that it dies at once.

        A session's parts know one another; left to the garbage collector, the dead ones would have it walk
        over all the living, for longer the more there are.
        """
        for thread in {turn.thread for turn in self.log} | {self.main, *self.named.values()}:
            thread.tip = None
        self.is_forgotten = True
        for turn in self.log:
            turn.next = turn.retried_by = None
        self.main = msgspec.UNSET  # type: ignore[assignment]
        self.named = {}
        self.log = []
        if self.whole is not None:
            self.whole.parts.pop(self.id, None)
        for part in self.parts.values():
            part.whole = None
        self.whole, self.parts = None, {}


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
    has_private_answer: bool = False
