"""A session's threads and newest turns, and the identity of a turn.

Invariants: hashes only, never content; everything here is bounded per session by `Sessions`.
"""

import enum
from typing import Final

import msgspec

from gateway.domain.decision import Edge, SessionSource
from gateway.domain.ids import RequestId, SessionId, TenantId, ThreadId
from gateway.domain.model_choice import Choice
from gateway.domain.request import PromptHead

# Tenant, schema, the session as the client names it.
ExplicitKey = tuple[TenantId, str, str]
_MAX_PARTS: Final = 16
CONFIDENCE: Final[dict[SessionSource, float]] = {
    SessionSource.TURNPIKE_HEADER: 1.0,
    SessionSource.CLIENT_ID: 0.98,
    SessionSource.STATE_ID: 0.99,
    SessionSource.CALL_ID: 0.99,
    # Wrong only for a copy of both the conversation and its answer.
    SessionSource.ECHO: 0.95,
    # The same bytes after a failure; wrong only for twins that failed together.
    SessionSource.RETRY: 0.95,
    SessionSource.PREFIX: 0.8,
    # Not necessarily one conversation, but one unit for limits.
    SessionSource.CONNECTION: 0.95,
    # It may continue a turn that was not recognised.
    SessionSource.NEW: 0.5,
}


class Outcome(enum.Enum):
    LIVE = "live"
    ANSWERED = "answered"
    CUT = "cut"
    """Its answer broke off, or its client left; part of it may have been used."""
    FAILED = "failed"


class Turn(msgspec.Struct, kw_only=True, eq=False):
    """One request and its answer."""

    request: RequestId
    thread: "Thread"
    arrived_s: float
    tail: int
    """Hash of the conversation in the request; of the agent if that is empty."""
    body: int
    agent: int
    client: int
    offers_tools: bool
    is_opening: bool = True
    """Without a known parent."""
    is_side: bool = False
    outcome: Outcome = Outcome.LIVE
    ended_s: float = 0.0
    text: int = 0
    chars: int = 0
    minted: tuple[int, ...] = ()
    """Hashes of its answer's ids, oldest first."""
    calls: int = 0
    is_answered: bool = False
    """Its calls have results, or its session went on without them."""
    next: "Turn | None" = None
    """The newest continuation in its thread."""
    retried_by: "Turn | None" = None
    attempt: int | None = None
    first_s: float = 0.0
    due_s: float | None = None
    """By `retry-after`."""
    is_guessed: bool = False
    """Its parent is a guess, in another session."""
    has_secrets: bool = False
    """Its request has ids or an answer that only its own run received."""
    has_private_answer: bool = False
    """Its conversation has such an answer, so its hash is a secret, too."""
    is_twin: bool = False
    """Another gateway's, where another session received the same: no proof."""
    changed: tuple[str, int] | None = None
    """The first change of its prompt since the turn before (`gateway/core/sessions/client_habits.py`)."""

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
    """One conversation."""

    id: ThreadId
    session: "Session"
    name: str | None = None
    """The client's name for it."""
    tip: Turn | None = None
    """The newest turn without side requests."""
    agent: int = 0
    agent_type: int = 0
    """Of its first turn."""
    head: PromptHead | None = None
    head_tokens: int = 0
    is_root: bool = False
    """Its session began with it, or it is unexplained."""
    is_unexplained: bool = False
    """It began under a stated id, without a link to that session's turns."""


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
    """The stated id of several runs."""
    parent: SessionId | None = None
    guess: SessionId | None = None
    """The session that it may be a part of."""
    whole: "Session | None" = None
    """The first session of its possible run; None if that is itself."""
    parts: dict[SessionId, "Session"] = {}
    """The newest other sessions of its possible run, if it is the first."""
    turns: int = 0
    live_turns: int = 0
    runs_on: dict[str, Choice] = {}
    """Models chosen for the operator's names."""
    prompt_tokens: int = 0
    cached_tokens: int | None = None
    """None without an engine's report."""
    output_tokens: int = 0
    troubles: int = 0
    """Turns that failed, were refused, cut or cancelled."""
    is_final: bool = False
    """Declared over; it ends with the last of its live turns."""
    stopped_until_s: float = 0.0
    """By an operator. It is kept until then, so that its client cannot begin it anew."""
    explicit_keys: list[ExplicitKey] = []
    main: Thread = msgspec.UNSET  # type: ignore[assignment]
    thread_count: int = 0
    named: dict[str, Thread] = {}
    log: list[Turn] = []
    """Turns kept, oldest first."""
    is_forgotten: bool = False
    """Turns of other sessions may still refer to it."""

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
        """Breaks reference cycles: the garbage collector's walk over all live sessions takes long."""
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
    """Of a turn. Without a session or thread it starts one."""

    source: SessionSource = SessionSource.NEW
    confidence: float = CONFIDENCE[SessionSource.NEW]
    session: Session | None = None
    thread: Thread | None = None
    edge: Edge = Edge.OPENS
    parent: Turn | None = None
    key: ExplicitKey | None = None
    """A stated id, to bind to the session."""
    name: str | None = None
    group: ExplicitKey | None = None
    begins_anew: bool = False
    is_unexplained: bool = False
    has_secrets: bool = False
    has_private_answer: bool = False
