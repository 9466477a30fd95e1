"""The unified information stream: one typed record per state change (M1). What admission makes is defined in
`admission_records.py`, all others here.

Source: MARS (§4.1, Table 1). One producer, the coordinator; many readers.

Symbols: the records `gpu_submit`, `gpu_1st_token`, `gpu_end`, `tool_num`, `tool_start`, `tool_end` and
`window_update` are Table 1's, under its names. `session`, `turn` (the request id) and `replica` are stable
identifiers.

Deviations: routing, refusal, session and replica records are ours. Until an engine reports KV blocks,
`gpu_submit` carries the bytes of the prompt, with the tokens that they are taken for, and `gpu_end` the
tokens that the backend reported.

Invariants: times are seconds on the driver's clock; a turn has at most one record of each `gpu_*` type
per replica it was sent to; every `gpu_submit` is followed by exactly one `gpu_end`.
"""

import msgspec

from gateway.domain.admission_records import SessionAdmitted, SessionHeld, WindowUpdated
from gateway.domain.decision import Edge, Guess, PlacementReason, RefusalReason, SessionSource, WaitReason
from gateway.domain.ids import PoolId, ReplicaId, RequestId, SessionId, TenantId, ThreadId
from gateway.domain.model_choice import Fallback
from gateway.domain.request import Claims, Protocol, Usage
from gateway.domain.timed_record import TimedRecord


class SessionStarted(TimedRecord, frozen=True, kw_only=True, tag="session_start"):
    session: SessionId
    tenant: TenantId
    source: SessionSource
    confidence: float
    schema: str | None
    parent: SessionId | None


class SessionEnded(TimedRecord, frozen=True, kw_only=True, tag="session_end"):
    session: SessionId
    turns: int
    reason: str
    """`finished` (somebody said so), `idle` or `evicted`."""


class _OfTurn(TimedRecord, frozen=True, kw_only=True):
    turn: RequestId
    session: SessionId | None


class TurnArrived(_OfTurn, frozen=True, kw_only=True, tag="turn_arrive"):
    tenant: TenantId
    protocol: Protocol
    model: str | None
    source: SessionSource
    confidence: float
    body_bytes: int
    message_count: int
    tool_count: int
    thread: ThreadId | None = None
    """The conversation of the session that the turn belongs to."""
    edge: Edge = Edge.OPENS
    parent: RequestId | None = None
    """The turn that this one follows, in the way that `edge` says."""
    claims: Claims | None = None
    """What its client says of how urgent it is, trusted or not."""
    guess: Guess | None = None
    """Where else it may belong."""
    agent: str = ""
    """Its agent type, as settings name it; empty if unknown."""
    is_streamed: bool = False
    """Its client asked for the answer as it grows."""
    client: str = ""
    """The product that its user agent names."""
    changed: tuple[str, int] | None = None
    """Where its prompt begins to differ from the previous turn's: the part (`system`, `tools`, `tool_order`,
    `message`), and where in it."""


class TurnWaited(_OfTurn, frozen=True, kw_only=True, tag="turn_wait"):
    reason: WaitReason
    waiting: int
    """Turns in the waiting room, this one included."""
    first: WaitReason | None = None
    """What the first session in the queue waits for, where this one is behind it."""


class TurnLeft(_OfTurn, frozen=True, kw_only=True, tag="turn_left"):
    """Its client went away while it waited, or while its prompt was computed on another replica."""

    waited_ms: float
    tenant: TenantId | None = None
    key: str = ""
    model: str | None = None
    """As in `Refused`."""


class TurnWouldWait(_OfTurn, frozen=True, kw_only=True, tag="turn_would_wait"):
    """Shadow mode: the turn was let in, and would have had to wait."""

    reason: WaitReason


class Routed(_OfTurn, frozen=True, kw_only=True, tag="routing"):
    replica: ReplicaId
    reason: PlacementReason
    waited_ms: float


class ModelChosen(_OfTurn, frozen=True, kw_only=True, tag="model"):
    """A turn for a name of the operator's was sent; `routing` says where."""

    requested: str = msgspec.field(name="asked")
    model: str
    """What its replica is asked for instead."""
    fallback: Fallback | None
    """Why that is not what the name leads to."""


class Expected(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """What the replica is expected to make of a turn (docs/design/cost.md), before it is sent."""

    prompt_tokens: int
    cached_tokens: int
    """Of these, those that the replica has computed before."""
    output_tokens: int
    first_token_ms: float
    """Until `gpu_1st_token`."""
    first_token_p10_ms: float
    first_token_p90_ms: float
    completion_ms: float
    """Until `gpu_end`."""
    completion_p10_ms: float
    completion_p90_ms: float


class GpuSubmit(_OfTurn, frozen=True, kw_only=True, tag="gpu_submit"):
    replica: ReplicaId
    prompt_bytes: int
    attempt: int
    """1 for the first replica tried."""
    expected: Expected | None = None
    """None for work that is no turn."""
    engine_class: str | None = None
    """What an engine that follows hints was told that it is: `reactive` or `proactive`."""
    pool: PoolId | None = None
    service_class: str | None = None
    """What admission takes its session for: `reactive` or `proactive`; None if it knows none."""


class GpuFirstToken(_OfTurn, frozen=True, kw_only=True, tag="gpu_1st_token"):
    replica: ReplicaId
    launch_delay_ms: float
    """From submission to the first generated content (or, not streaming, to the answer)."""


class GpuEnd(_OfTurn, frozen=True, kw_only=True, tag="gpu_end"):
    replica: ReplicaId
    outcome: str
    """`finished`, `failed` (no answer began), `cut` (it broke off) or `client_left`."""
    status: int | None
    failure: str = ""
    """What is wrong with an answer whose status is good (`Answer.failure`)."""
    tenant: TenantId | None = None
    key: str = ""
    """The name of its client's key."""
    model: str | None = None
    """As its replica knows it."""
    usage: Usage
    estimated_tokens: int = 0
    """What is taken for those that the backend did not report, where it has worked."""
    finish_reason: str | None
    duration_ms: float
    response_id: str | None = None
    response_model: str | None = None
    """As its answer says."""
    alone_ms: float | None = None
    """What it would have taken there with the replica to itself, as learned; None if too little is known of
    the replica, or the backend did not count."""


class ToolNum(TimedRecord, frozen=True, kw_only=True, tag="tool_num"):
    active: int
    """Sessions whose tools are running now, over all tenants."""


class ToolStart(TimedRecord, frozen=True, kw_only=True, tag="tool_start"):
    session: SessionId
    turn: RequestId
    """The turn whose response asked for the tools."""
    names: tuple[str, ...]
    ready_ms: tuple[float, ...] = ()
    """Of each call whose arguments were seen to end before its response did: how long before."""
    late_s: float = 0.0
    """How long ago that was, where it was recognised as a call by what came back."""


class ToolEnd(TimedRecord, frozen=True, kw_only=True, tag="tool_end"):
    session: SessionId
    turn: RequestId
    """The turn that brought the results."""
    names: tuple[str, ...]
    duration_ms: float
    calls: tuple[str, ...] = ()
    """Their ids, in the order of their names; an empty one of a call that its answer's text asks for."""
    observation_bytes: int = 0
    """What the turn brings since the answer that asked for the tools."""
    has_failed: bool = False
    """One of the results says so."""
    late_s: float = 0.0
    """How long ago that was, as in `ToolStart`."""


class StepPredicted(TimedRecord, frozen=True, kw_only=True, tag="step_predict"):
    """A step is over: what is expected to follow, of a conversation whose type is known well enough."""

    session: SessionId
    thread: ThreadId
    turn: RequestId
    tools: tuple[str, ...]
    """What the answer asks for, each once; empty for none."""
    next: tuple[str, ...] | None
    """What the next one is expected to ask for; None if the conversation is expected to be over."""
    confidence: float
    ends: float
    """Probability that the conversation is over."""
    reuse: float | None
    """Probability that its KV is used again, times how much of it is; this and what follows where its engine
    is sent hints."""
    retain_s: float | None
    """For how long it is worth holding."""
    returns_in_s: float | None
    """When the next turn is expected; None if none is."""


class PrefilledAhead(TimedRecord, frozen=True, kw_only=True, tag="prefill_ahead"):
    """What was known of a next prompt was to be computed while tools ran; this became of it."""

    session: SessionId
    thread: ThreadId
    turn: RequestId
    """The one before."""
    replica: ReplicaId
    outcome: str
    """As `gateway/prefill_ahead/worth.py` names them."""
    usage: Usage
    """Of the prefill; empty if it did not come to its end."""
    used_tokens: int
    """Of what was computed, as the next turn found them."""
    duration_ms: float


class PrefillLegEnded(_OfTurn, frozen=True, kw_only=True, tag="prefill_leg"):
    """A turn's prompt was to be computed on another replica than the one that decodes; that has ended."""

    replica: ReplicaId
    outcome: str
    """`ready`, `failed` (the turn is computed where it is decoded) or `client_left`."""
    usage: Usage
    duration_ms: float


class BoundReached(_OfTurn, frozen=True, kw_only=True, tag="bound"):
    """A turn is beyond a bound of the operator's."""

    tenant: TenantId
    agent: str
    """Its agent type, as settings name it."""
    bound: str
    limit: str
    """Which of its limits: `turns`, `tokens`, `cost`, `max_duration_s`, `repeats` or `same_calls`."""
    used: float
    """With this turn, as it is expected to be."""
    most: float
    action: str
    """`warn`, `behind` or `refuse`; `shadow` if nothing is done."""


class SessionStopped(TimedRecord, frozen=True, kw_only=True, tag="session_stop"):
    """An operator stopped a session: its turns are refused for a while."""

    session: SessionId
    tenant: TenantId
    for_s: float
    cancelled: int
    """Turns that were waiting or running."""
    by: str
    """The beginning of the hash of the control key that asked for it; empty where none is needed."""


class Refused(_OfTurn, frozen=True, kw_only=True, tag="refusal"):
    tenant: TenantId
    reason: RefusalReason
    waited_ms: float
    message: str = ""
    """What its client was answered."""
    key: str = ""
    model: str | None = None
    """As its replica would know it, empty if it names none; None if no engine has to work for it."""


class ReplicaChanged(TimedRecord, frozen=True, kw_only=True, tag="replica"):
    replica: ReplicaId
    state: str
    """`up`, `down`; `ejected`, `failing`, `tried`, `warming`, by what became of turns; `draining`; `left`."""
    why: str


class ControlActed(TimedRecord, frozen=True, kw_only=True, tag="control"):
    """Somebody did something on the control plane, or tried to."""

    who: str
    """`key`, and the beginning of its hash; `no key`; or a signal."""
    what: str
    """Method and path."""
    outcome: int
    """The HTTP status that was answered."""


Record = (
    SessionStarted
    | SessionEnded
    | TurnArrived
    | SessionHeld
    | SessionAdmitted
    | TurnWaited
    | TurnLeft
    | TurnWouldWait
    | WindowUpdated
    | Routed
    | ModelChosen
    | GpuSubmit
    | GpuFirstToken
    | GpuEnd
    | ToolNum
    | ToolStart
    | ToolEnd
    | StepPredicted
    | PrefilledAhead
    | PrefillLegEnded
    | BoundReached
    | SessionStopped
    | Refused
    | ReplicaChanged
    | ControlActed
)
