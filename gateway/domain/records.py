"""The unified information stream: one typed record per state change (M1). Admission's are in
`admission_records.py`.

Source: MARS (§4.1, Table 1). One producer, the coordinator; many readers.

Symbols: the records `gpu_submit`, `gpu_1st_token`, `gpu_end`, `tool_num`, `tool_start`, `tool_end` and
`window_update` are Table 1's, under its names.

Deviations: routing, refusal, session and replica records are ours. Without KV blocks from an engine,
`gpu_submit` carries the bytes of the prompt, with an estimate of tokens, and `gpu_end` the reported tokens.

Invariants: times are seconds on the driver's clock; a turn has at most one record of each `gpu_*` type per
replica; every `gpu_submit` is followed by exactly one `gpu_end`.
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
    """`finished` (by a client or operator), `idle` or `evicted`."""


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
    """The conversation within the session."""
    edge: Edge = Edge.OPENS
    parent: RequestId | None = None
    """The turn before, in the relation `edge`."""
    claims: Claims | None = None
    """Trusted or not."""
    guess: Guess | None = None
    agent: str = ""
    """Its agent type, as settings name it; empty if unknown."""
    is_streamed: bool = False
    client: str = ""
    """The product in its user agent."""
    changed: tuple[str, int] | None = None
    """The first change of its prompt since the previous turn: the part (`system`, `tools`, `tool_order`,
    `message`), and the place in it."""


class TurnWaited(_OfTurn, frozen=True, kw_only=True, tag="turn_wait"):
    reason: WaitReason
    waiting: int
    """Turns in the waiting room, this one included."""
    first: WaitReason | None = None
    """Of the first session in the queue, for one behind it."""


class TurnLeft(_OfTurn, frozen=True, kw_only=True, tag="turn_left"):
    """Its client left while it waited, or during its remote prefill."""

    waited_ms: float
    tenant: TenantId | None = None
    key: str = ""
    model: str | None = None
    """As in `Refused`."""


class TurnWouldWait(_OfTurn, frozen=True, kw_only=True, tag="turn_would_wait"):
    """Shadow mode: an admitted turn that would have waited."""

    reason: WaitReason


class Routed(_OfTurn, frozen=True, kw_only=True, tag="routing"):
    replica: ReplicaId
    reason: PlacementReason
    waited_ms: float


class ModelChosen(_OfTurn, frozen=True, kw_only=True, tag="model"):
    """A turn for a name of the operator's was sent."""

    requested: str
    model: str
    """In the request to its replica."""
    fallback: Fallback | None


class Expected(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """The prediction for a turn (docs/design/cost.md), before it is sent."""

    prompt_tokens: int
    cached_tokens: int
    """Of the prompt."""
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
    """In the hint to its engine: `reactive` or `proactive`."""
    pool: PoolId | None = None
    service_class: str | None = None
    """At admission: `reactive` or `proactive`; None without a session."""


class GpuFirstToken(_OfTurn, frozen=True, kw_only=True, tag="gpu_1st_token"):
    replica: ReplicaId
    launch_delay_ms: float
    """From submission to the first generated content (without streaming, to the answer)."""


class GpuEnd(_OfTurn, frozen=True, kw_only=True, tag="gpu_end"):
    replica: ReplicaId
    outcome: str
    """`finished`, `failed` (no answer began), `cut` (it broke off) or `client_left`."""
    status: int | None
    failure: str = ""
    """Of an answer with a good status (`Answer.failure`)."""
    tenant: TenantId | None = None
    key: str = ""
    """The name of its client's key."""
    model: str | None = None
    """As its replica knows it."""
    usage: Usage
    estimated_tokens: int = 0
    """For work without a report."""
    finish_reason: str | None
    duration_ms: float
    response_id: str | None = None
    response_model: str | None = None
    """In its answer."""
    alone_ms: float | None = None
    """Estimated time on an idle replica; None without evidence, or a report."""


class ToolNum(TimedRecord, frozen=True, kw_only=True, tag="tool_num"):
    active: int
    """Sessions with running tools, of all tenants."""


class ToolStart(TimedRecord, frozen=True, kw_only=True, tag="tool_start"):
    session: SessionId
    turn: RequestId
    """The turn that called the tools."""
    names: tuple[str, ...]
    ready_ms: tuple[float, ...] = ()
    """For calls with complete arguments before the end of the response: how long before."""
    late_s: float = 0.0
    """Delay of a record for a call that was recognised by its results."""


class ToolEnd(TimedRecord, frozen=True, kw_only=True, tag="tool_end"):
    session: SessionId
    turn: RequestId
    """The turn with the results."""
    names: tuple[str, ...]
    duration_ms: float
    calls: tuple[str, ...] = ()
    """Ids in the order of names; an empty one for a call in text."""
    observation_bytes: int = 0
    """New content since the answer with the calls."""
    has_failed: bool = False
    """By one of the results."""
    late_s: float = 0.0
    """As in `ToolStart`."""


class StepPredicted(TimedRecord, frozen=True, kw_only=True, tag="step_predict"):
    """At the end of a step, for a conversation of a known type."""

    session: SessionId
    thread: ThreadId
    turn: RequestId
    tools: tuple[str, ...]
    """Of the step, distinct; empty for none."""
    next: tuple[str, ...] | None
    """Expected tools of the next step; None for an end."""
    confidence: float
    ends: float
    """Probability of an end."""
    reuse: float | None
    """Probability that its KV is used again, times the share; for engines with hints, like the next two."""
    retain_s: float | None
    """For how long it is worth holding."""
    returns_in_s: float | None
    """The expected pause; None without a next turn."""


class PrefilledAhead(TimedRecord, frozen=True, kw_only=True, tag="prefill_ahead"):
    """The outcome of a prefill during tool calls, of the known part of the next prompt."""

    session: SessionId
    thread: ThreadId
    turn: RequestId
    """The turn before."""
    replica: ReplicaId
    outcome: str
    """As `gateway/prefill_ahead/worth.py` names them."""
    usage: Usage
    """Of the prefill; empty if it did not finish."""
    used_tokens: int
    """Found by the next turn."""
    duration_ms: float


class PrefillLegEnded(_OfTurn, frozen=True, kw_only=True, tag="prefill_leg"):
    """The end of a turn's remote prefill."""

    replica: ReplicaId
    outcome: str
    """`ready`, `failed` (the decoding replica computes the prompt) or `client_left`."""
    usage: Usage
    duration_ms: float


class BoundReached(_OfTurn, frozen=True, kw_only=True, tag="bound"):
    """A turn is beyond a bound of the operator's."""

    tenant: TenantId
    agent: str
    """Its agent type, as settings name it."""
    bound: str
    limit: str
    """`turns`, `tokens`, `cost`, `max_duration_s`, `repeats` or `same_calls`."""
    used: float
    """With this turn's expected use."""
    most: float
    action: str
    """`warn`, `deprioritize` or `refuse`; `shadow` if nothing is done."""


class SessionStopped(TimedRecord, frozen=True, kw_only=True, tag="session_stop"):
    """By an operator: its turns are refused for a while."""

    session: SessionId
    tenant: TenantId
    for_s: float
    cancelled: int
    """Waiting and running turns."""
    by: str
    """The beginning of the control key's hash; empty without a key."""


class Refused(_OfTurn, frozen=True, kw_only=True, tag="refusal"):
    tenant: TenantId
    reason: RefusalReason
    waited_ms: float
    message: str = ""
    """To its client."""
    key: str = ""
    model: str | None = None
    """As its replica would know it, empty without a name; None for work without an engine."""


class ReplicaChanged(TimedRecord, frozen=True, kw_only=True, tag="replica"):
    replica: ReplicaId
    state: str
    """`up`, `down`; `ejected`, `failing`, `tried`, `warming`, by the outcomes of turns; `draining`;
    `left`."""
    why: str


class ControlActed(TimedRecord, frozen=True, kw_only=True, tag="control"):
    """A request to the control plane, or an attempt."""

    who: str
    """`key`, and the beginning of its hash; `no key`; or a signal."""
    what: str
    """Method and path."""
    outcome: int
    """The HTTP status."""


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
