"""What policies answer. Every decision carries its reason, for receipts, records and people."""

from typing import Final

import msgspec

from gateway.domain.ids import ReplicaId, RequestId, SessionId, ThreadId
from gateway.domain.string_enums import Word


class RefusalReason(Word):
    """Why the gateway itself answered instead of a backend. `errors.py` gives each its status."""

    MALFORMED_HTTP = "malformed_http"
    HEADERS_TOO_LARGE = "headers_too_large"
    BODY_TOO_LARGE = "body_too_large"
    UNSUPPORTED_UPGRADE = "unsupported_upgrade"
    UNSUPPORTED_CODING = "unsupported_coding"
    """The body is compressed in a way that is not known here."""
    REQUEST_TIMEOUT = "request_timeout"
    UNAUTHENTICATED = "unauthenticated"
    FORBIDDEN = "forbidden"
    KV_FIELD = "kv_field"
    """The body tells an engine where KV caches are."""
    UNKNOWN_MODEL = "unknown_model"
    UNKNOWN_PATH = "unknown_path"
    STATE_NOT_FOUND = "state_not_found"
    MEMORY_FULL = "memory_full"
    QUEUE_FULL = "queue_full"
    QUEUE_TIMEOUT = "queue_timeout"
    TENANT_SHARE = "tenant_share"
    """The waiting room is full, and this tenant has the largest part of it."""
    TENANT_QUOTA = "tenant_quota"
    """The tenant used up what it may have."""
    BOUND_REACHED = "bound_reached"
    """An operator's bound on a session, an agent type or a tenant (`gateway/admission/tenants/bounds.py`)."""
    SESSION_STOPPED = "session_stopped"
    """An operator stopped the session."""
    NO_REPLICA = "no_replica"
    DRAINING = "draining"
    UPSTREAM_UNREACHABLE = "upstream_unreachable"
    UPSTREAM_TIMEOUT = "upstream_timeout"
    UPSTREAM_BROKEN = "upstream_broken"
    UPSTREAM_BROKEN_TWICE = "upstream_broken_twice"
    """Two attempts got no whole answer: the request may be what the replicas fail of."""
    LOCAL_FAULT = "local_fault"
    """The gateway's machine lacks what a connection needs: descriptors, ports, memory, DNS."""
    INTERNAL = "internal"


class Refusal(msgspec.Struct, frozen=True, kw_only=True):
    """A refusal is a value: the reason, a sentence for a person, and when to come back."""

    reason: RefusalReason
    message: str
    retry_after_s: int | None = None


class WaitReason(Word):
    CONCURRENCY_FULL = "concurrency_full"
    """Every replica that could run this turn has as many as it may."""
    WINDOW_FULL = "window_full"
    """As many sessions are in as may be."""
    TOOLS_FULL = "tools_full"
    """As many sessions are in as their tools' hosts can bear."""
    KV_FULL = "kv_full"
    """The sessions that are in are expected to need all of the KV cache."""
    BEHIND_OTHERS = "behind_others"
    """Other sessions wait already."""
    TENANT_SESSIONS = "tenant_sessions"
    """As many of the tenant's sessions are in as it may have."""
    OTHERS_LATE = "others_late"
    """The tenant holds more than its share, and the others' turns are late."""
    NO_REPLICA = "no_replica"
    """No replica that could run it answers at the moment."""
    HOME_LOST = "home_lost"
    """Its replica was lost, and its session moves when those before it have."""


class Admit(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """The turn may start on one of the replicas offered."""

    would_wait: WaitReason | None = None
    """Why it would wait, if admission enforced what it decides."""


class Wait(msgspec.Struct, frozen=True, kw_only=True):
    """The turn has a place in the waiting room."""

    reason: WaitReason


Admission = Admit | Wait | Refusal


class PlacementReason(Word):
    LEAST_LOADED = "least_loaded"
    STATE_LIVES_THERE = "state_lives_there"
    RETRIED_ELSEWHERE = "retried_elsewhere"
    SESSION_LIVES_THERE = "session_lives_there"
    """The session's earlier turns ran there, so its KV cache may still be there."""
    GUESS_LIVES_THERE = "guess_lives_there"
    """What it probably goes on from ran there: to be wrong costs a prefill, as without a guess."""
    HOME_IS_BUSY = "home_is_busy"
    """It lives on a replica that runs far more than the others."""
    HOME_IS_FULL = "home_is_full"
    """More live there than fit."""
    AFFINITY_REPLICA_DOWN = "affinity_replica_down"
    """It lives on a replica that cannot run this turn."""
    CHEAPER = "cheaper"
    """Without prices it would have run elsewhere."""


class Placement(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """Where a turn runs, and why there."""

    replica: ReplicaId
    reason: PlacementReason


class SessionSource(Word):
    """How we know which session a turn belongs to, strongest first (docs/design/sessions.md)."""

    TURNPIKE_HEADER = "turnpike-header"
    CLIENT_ID = "client-id"
    """A header or body field of a harness or another gateway."""
    STATE_ID = "state-id"
    """`previous_response_id`, `conversation` or an item reference that we saw being minted."""
    CALL_ID = "call-id"
    """A tool call id that we saw being minted came back."""
    ECHO = "echo"
    """A conversation that we know, with our own answer behind it, came back."""
    PREFIX = "prefix"
    """A conversation that we know came back; what stands behind it is not what we answered."""
    RETRY = "retry"
    """The same request again, after an attempt that failed."""
    CONNECTION = "connection"
    """Its body could not be read, and no header states an id: a session of its connection's."""
    NEW = "new"
    NONE = "none"
    """Not a turn: the request belongs to no session."""


PROMPT_CHANGES: Final = {
    "system": "the system prompt changes at about character {at}",
    "tools": "tool {at}, from 0, changes",
    "tool_order": "the tools come in another order",
    "message": "the first message changes",
}
"""Where a prompt differs from the one before, for a person."""


class Edge(Word):
    """How a turn follows from the one it builds on (its lineage)."""

    OPENS = "opens"
    """It builds on none that we know."""
    CONTINUES = "continues"
    RETRIES = "retries"
    FORKS = "forks"
    """Its parent was continued before, and that continuation still runs: a second branch, a new thread."""
    REWINDS = "rewinds"
    """Its parent was continued before, and that continuation rests: it is taken back."""
    COMPACTS = "compacts"
    """A new window of the same conversation: a summary stands for what was said."""
    SERVES = "serves"
    """A side request (title, summary, commit message) on behalf of the thread."""
    SPAWNED = "spawned"
    """A sub-agent, started by a tool call of its parent."""


class Guess(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """A session that a turn may belong to. Placement follows it; nobody else acts on it."""

    session: SessionId
    thread: ThreadId | None
    """None for a conversation of its own there."""
    source: SessionSource
    confidence: float
    edge: Edge
    parent: RequestId | None


class SessionRef(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """The session that a turn acts as: the one that it was found to belong to, or a new one if that is a
    guess.

    So whoever acts on it acts on no guess. Placement alone reads `guess`: a wrong one costs a prefill."""

    session: SessionId
    source: SessionSource
    confidence: float
    """Probability that the session is the right one, 0 to 1."""
    thread: ThreadId = ThreadId("")
    edge: Edge = Edge.OPENS
    parent: RequestId | None = None
    """The turn that this one follows."""
    guess: Guess | None = None
    """Where else the turn may belong, if the session is new for want of proof."""

    @property
    def followed(self) -> Guess | None:
        """The guess that placement follows. A request that failed and comes again left nothing where it was,
        and another replica may do better."""
        guess = self.guess
        return guess if guess is not None and guess.edge is not Edge.RETRIES else None
