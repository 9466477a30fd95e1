"""Decisions of policies, each with its reason, for receipts, records and people."""

from typing import Final

import msgspec

from gateway.domain.ids import ReplicaId, RequestId, SessionId, ThreadId
from gateway.domain.string_enums import Word


class RefusalReason(Word):
    """Why the gateway answered instead of a backend. `errors.py` has the status of each."""

    MALFORMED_HTTP = "malformed_http"
    HEADERS_TOO_LARGE = "headers_too_large"
    BODY_TOO_LARGE = "body_too_large"
    UNSUPPORTED_UPGRADE = "unsupported_upgrade"
    UNSUPPORTED_CODING = "unsupported_coding"
    """The body has an unknown compression."""
    REQUEST_TIMEOUT = "request_timeout"
    UNAUTHENTICATED = "unauthenticated"
    FORBIDDEN = "forbidden"
    KV_FIELD = "kv_field"
    """The body has fields that direct an engine to KV caches."""
    UNKNOWN_MODEL = "unknown_model"
    UNKNOWN_PATH = "unknown_path"
    STATE_NOT_FOUND = "state_not_found"
    MEMORY_FULL = "memory_full"
    QUEUE_FULL = "queue_full"
    QUEUE_TIMEOUT = "queue_timeout"
    TENANT_SHARE = "tenant_share"
    """The waiting room is full, and this tenant has the largest part of it."""
    TENANT_QUOTA = "tenant_quota"
    """The tenant used up its quota."""
    BOUND_REACHED = "bound_reached"
    """An operator's bound on a session, an agent type or a tenant (`gateway/budgets/budgets.py`)."""
    SESSION_STOPPED = "session_stopped"
    """An operator stopped the session."""
    NO_REPLICA = "no_replica"
    DRAINING = "draining"
    UPSTREAM_UNREACHABLE = "upstream_unreachable"
    UPSTREAM_TIMEOUT = "upstream_timeout"
    UPSTREAM_BROKEN = "upstream_broken"
    UPSTREAM_BROKEN_TWICE = "upstream_broken_twice"
    """Two attempts got no whole answer: the request may cause the failures."""
    LOCAL_FAULT = "local_fault"
    """The gateway's machine lacks descriptors, ports, memory or DNS for a connection."""
    INTERNAL = "internal"


class Refusal(msgspec.Struct, frozen=True, kw_only=True):
    """`message`: a sentence for a person."""

    reason: RefusalReason
    message: str
    retry_after_s: int | None = None


class WaitReason(Word):
    CONCURRENCY_FULL = "concurrency_full"
    """All replicas for this turn run as many turns as they may."""
    WINDOW_FULL = "window_full"
    """The window of sessions is full."""
    TOOLS_FULL = "tools_full"
    """The hosts of tools bear no more sessions."""
    KV_FULL = "kv_full"
    """The admitted sessions are expected to fill the KV cache."""
    BEHIND_OTHERS = "behind_others"
    """Other sessions wait already."""
    TENANT_SESSIONS = "tenant_sessions"
    """The tenant has as many admitted sessions as it may."""
    OTHERS_LATE = "others_late"
    """The tenant holds more than its share, and the others' turns are late."""
    NO_REPLICA = "no_replica"
    """No replica for it answers at the moment."""
    HOME_LOST = "home_lost"
    """Its replica was lost; its session moves after those before it."""


class Admit(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    would_wait: WaitReason | None = None
    """In shadow mode."""


class Wait(msgspec.Struct, frozen=True, kw_only=True):
    reason: WaitReason


Admission = Admit | Wait | Refusal


class PlacementReason(Word):
    LEAST_LOADED = "least_loaded"
    STATE_LIVES_THERE = "state_lives_there"
    RETRIED_ELSEWHERE = "retried_elsewhere"
    SESSION_LIVES_THERE = "session_lives_there"
    """The session's earlier turns ran there, so its KV cache may still be there."""
    GUESS_LIVES_THERE = "guess_lives_there"
    """Its guessed session ran there; a wrong guess costs a prefill, as without one."""
    HOME_IS_BUSY = "home_is_busy"
    """Its home runs far more turns than the others."""
    HOME_IS_FULL = "home_is_full"
    """Its home has more sessions than fit."""
    AFFINITY_REPLICA_DOWN = "affinity_replica_down"
    """Its home cannot run this turn."""
    CHEAPER = "cheaper"
    """Without prices it would run elsewhere."""


class Placement(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    replica: ReplicaId
    reason: PlacementReason


class SessionSource(Word):
    """Evidence for a turn's session, strongest first (docs/design/sessions.md)."""

    TURNPIKE_HEADER = "turnpike-header"
    CLIENT_ID = "client-id"
    """A header or body field of a harness or another gateway."""
    STATE_ID = "state-id"
    """A known `previous_response_id`, `conversation` or item reference."""
    CALL_ID = "call-id"
    """A known tool call id."""
    ECHO = "echo"
    """A known conversation with our own answer after it."""
    PREFIX = "prefix"
    """A known conversation, without our answer after it."""
    RETRY = "retry"
    """The same request after a failed attempt."""
    CONNECTION = "connection"
    """A session per connection, for an unreadable body without a stated id."""
    NEW = "new"
    NONE = "none"
    """No turn."""


# For a person.
PROMPT_CHANGES: Final = {
    "system": "the system prompt changes at about character {at}",
    "tools": "tool {at}, from 0, changes",
    "tool_order": "the tools come in another order",
    "message": "the first message changes",
}


class Edge(Word):
    """A turn's relation to its parent."""

    OPENS = "opens"
    """No known parent."""
    CONTINUES = "continues"
    RETRIES = "retries"
    FORKS = "forks"
    """Its parent has a live continuation: a second branch, a new thread."""
    REWINDS = "rewinds"
    """Its parent has an idle continuation, which is taken back."""
    COMPACTS = "compacts"
    """A new window of the same conversation, after a summary."""
    SERVES = "serves"
    """A side request (title, summary, commit message) of the thread."""
    SPAWNED = "spawned"
    """A sub-agent, started by a tool call of its parent."""


class Guess(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """A possible session of a turn. Only placement follows it."""

    session: SessionId
    thread: ThreadId | None
    """None for a new conversation there."""
    source: SessionSource
    confidence: float
    edge: Edge
    parent: RequestId | None


class SessionRef(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """A turn's session: a proved one, or a new one. Placement alone reads `guess`: a wrong one costs a
    prefill."""

    session: SessionId
    source: SessionSource
    confidence: float
    """Probability, 0 to 1."""
    thread: ThreadId = ThreadId("")
    edge: Edge = Edge.OPENS
    parent: RequestId | None = None
    guess: Guess | None = None
    """If the session is new for want of proof."""

    @property
    def followed(self) -> Guess | None:
        """For placement, without retries: a failed request left no state, and another replica may do
        better."""
        guess = self.guess
        return guess if guess is not None and guess.edge is not Edge.RETRIES else None
