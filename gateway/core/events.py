"""What happened. Events are past participles; a driver sends each to `Coordinator.handle`."""

import msgspec

from gateway.core.live_settings import LiveSettings
from gateway.domain.engine import EngineSignals, HostSignals
from gateway.domain.fleet import ReplicaFacts
from gateway.domain.ids import PoolId, ReplicaId, RequestId, SessionId, TenantId
from gateway.domain.request import Answer, RequestFacts, ToolCall, Usage
from gateway.domain.shares import Share
from gateway.domain.spending import Reserved, Spent
from gateway.domain.turn_trace import TurnTrace


class RequestArrived(msgspec.Struct, frozen=True, tag=True):
    """An authenticated request was read completely. Answered by `Dispatch` or `Refuse`, now or later."""

    request: RequestId
    tenant: TenantId
    facts: RequestFacts
    without: tuple[ReplicaId, ...] = ()
    """Replicas that may not run it."""
    reserved: Reserved | None = None
    """If what it is expected to take is reserved in the shared store."""
    key: str = ""
    """The name of its client's key, for the books."""


class ResponseStarted(msgspec.Struct, frozen=True, tag=True):
    """The replica's response head came; from here on the request cannot be retried."""

    request: RequestId
    status: int


class FirstTokenSeen(msgspec.Struct, frozen=True, tag=True):
    request: RequestId


class ToolCallSeen(msgspec.Struct, frozen=True, tag=True):
    """A tool call's id and name are known, possibly long before the response ends."""

    request: RequestId
    call: ToolCall


class ToolCallClosed(msgspec.Struct, frozen=True, tag=True):
    """A tool call's arguments are complete: its tool may start, while the response goes on. Of streamed
    responses alone, and not of every call."""

    request: RequestId
    call: ToolCall


class StateMinted(msgspec.Struct, frozen=True, tag=True):
    """The replica named something it stores, possibly long before the response ends."""

    request: RequestId
    state_id: str


class AnsweredAtOnce(msgspec.Struct, frozen=True, tag=True):
    """`ResponseStarted`, what was seen, and `ResponseFinished`, in one: the whole response came together."""

    request: RequestId
    answer: Answer
    has_first_token: bool


class ResponseFinished(msgspec.Struct, frozen=True, tag=True):
    """The whole response was passed on."""

    request: RequestId
    answer: Answer


class ResponseCut(msgspec.Struct, frozen=True, tag=True):
    """The replica failed after the response had started; the client's connection was cut too."""

    request: RequestId
    answer: Answer
    why: str


class AttemptFailed(msgspec.Struct, frozen=True, tag=True):
    """No response head came from the replica. Answered by `Dispatch` elsewhere, or `Refuse`."""

    request: RequestId
    why: str
    was_sent: bool
    """Some of the request may have reached the replica."""
    timed_out: bool
    resends: int = 0
    """Times that the replica got the request once more: on a fresh connection, for a kept one was closed."""
    is_local: bool = False
    """The gateway's machine could not open a connection; this says nothing of the replica."""


class ClientLeft(msgspec.Struct, frozen=True, tag=True):
    """The client closed its connection before the answer was complete."""

    request: RequestId
    answer: Answer | None = None


class PrefillEnded(msgspec.Struct, frozen=True, tag=True):
    """The end of a `Prefill`: computed, or not, or not to the end."""

    turn: RequestId
    usage: Usage | None


class PrefillLegEnded(msgspec.Struct, frozen=True, tag=True):
    """The end of a `RemotePrefill`: computed, or not. Answered by `Dispatch`, now or later, or
    `Refuse`."""

    request: RequestId
    usage: Usage | None
    """None if it was not computed, or nothing was handed over."""
    is_fault: bool | None = None
    """Of the replica's; None if this says nothing of it."""


class LoopStalled(msgspec.Struct, frozen=True, tag=True):
    """The gateway itself stood still: what came meanwhile was not read, and no replica is late for it."""

    lost_s: float


class ReplicaCameUp(msgspec.Struct, frozen=True, tag=True):
    """A replica is healthy; also sent again when its facts changed, or because a failure had it checked."""

    facts: ReplicaFacts


class ReplicaJoined(msgspec.Struct, frozen=True, tag=True):
    """A replica is a member; whether it is there is not known yet."""

    replica: ReplicaId
    pool: PoolId


class ReplicaWentDown(msgspec.Struct, frozen=True, tag=True):
    """A replica does not answer. Requests already sent to it end on their own."""

    replica: ReplicaId
    why: str


class ReplicaDrained(msgspec.Struct, frozen=True, tag=True):
    """A replica is to have no new turns; what runs there may end. Or it is wanted back."""

    replica: ReplicaId
    is_draining: bool
    why: str = "by an operator"


class ReplicaLeft(msgspec.Struct, frozen=True, tag=True):
    """A replica is no member of the fleet any more."""

    replica: ReplicaId
    why: str


class EngineReported(msgspec.Struct, frozen=True, tag=True):
    """An engine's signals, about once a second."""

    replica: ReplicaId
    signals: EngineSignals


class HostReported(msgspec.Struct, frozen=True, tag=True):
    """The load of a host of tools, by the probe there, about once a second."""

    host: str
    signals: HostSignals


class CacheResidencyReported(msgspec.Struct, frozen=True, tag=True):
    """An engine's KV events say how many tokens of each session it holds."""

    replica: ReplicaId
    tokens: dict[SessionId, float]


class SessionFinished(msgspec.Struct, frozen=True, tag=True):
    """A session is over, by its client or an operator."""

    session: SessionId


class SessionStopped(msgspec.Struct, frozen=True, tag=True):
    """An operator wants no further turn of a session to run."""

    session: SessionId
    for_s: float
    """For so long its turns are refused."""
    cancels: bool = True
    """What runs is cancelled; else it may end."""
    by: str = ""
    """Who, for the record."""


class SharesReceived(msgspec.Struct, frozen=True, tag=True):
    """The shares of the other live gateways, some ten times a second."""

    shares: tuple[Share, ...]


class SessionAdopted(msgspec.Struct, frozen=True, tag=True):
    """The gateway that had this session is gone; it goes on here, behind this turn."""

    trace: TurnTrace


class SpendRemembered(msgspec.Struct, frozen=True, tag=True):
    """What earlier processes knew of what tenants used."""

    spent: tuple[Spent, ...]


class AmbiguousEvidence(msgspec.Struct, frozen=True, tag=True):
    """Two gateways gave the same answer, or the same id, to sessions of their own."""

    names: tuple[int, ...]
    """Of what was given (`gateway/identity/evidence.py`)."""


class SettingsChanged(msgspec.Struct, frozen=True, tag=True):
    """An operator has changed what may be changed while it runs. Replicas come and go by their own events."""

    settings: LiveSettings


class DrainStarted(msgspec.Struct, frozen=True, tag=True):
    """No new request is taken from now on; what runs or waits is finished."""


class TimerFired(msgspec.Struct, frozen=True, tag=True):
    """`next_deadline_s()` has passed."""


RequestEvent = (
    RequestArrived
    | ResponseStarted
    | FirstTokenSeen
    | ToolCallSeen
    | ToolCallClosed
    | StateMinted
    | AnsweredAtOnce
    | ResponseFinished
    | ResponseCut
    | AttemptFailed
    | ClientLeft
    | PrefillLegEnded
)
FleetEvent = (
    ReplicaJoined
    | ReplicaCameUp
    | ReplicaWentDown
    | ReplicaDrained
    | ReplicaLeft
    | CacheResidencyReported
    | SharesReceived
)
Event = (
    RequestEvent
    | FleetEvent
    | PrefillEnded
    | EngineReported
    | HostReported
    | LoopStalled
    | SessionFinished
    | SessionStopped
    | SessionAdopted
    | AmbiguousEvidence
    | SpendRemembered
    | SettingsChanged
    | DrainStarted
    | TimerFired
)
