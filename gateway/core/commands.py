"""What to do. Commands are imperatives; the driver carries them out in order."""

from typing import final

import msgspec

from gateway.domain.decision import Placement, Refusal, SessionRef
from gateway.domain.ids import ReplicaId, RequestId, SessionId, TenantId, ThreadId
from gateway.domain.model_choice import Fallback
from gateway.domain.records import Record
from gateway.domain.spending import Spent
from gateway.domain.turn_trace import TurnTrace


@final
class Dispatch(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """Send the request to this replica now."""

    request: RequestId
    placement: Placement
    session: SessionRef | None
    waited_s: float
    attempt: int
    """1 for the first replica tried."""
    hint: str | None = None
    """For engines that follow hints (`gateway/workflow/engine_hints.py`)."""
    rank: int | None = None
    """Of a server's engines (`gateway/routing/ranks.py`); None if which one is its own matter."""
    model: str | None = None
    """The model to request of the replica; None: the client's."""
    fallback: Fallback | None = None
    """Why that is not what its name leads to."""
    bound: str | None = None
    """The operator's bound that its turn is beyond, for its client."""


@final
class SendHint(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """Tell this replica's engine, while no request of that conversation runs there."""

    replica: ReplicaId
    hint: str


@final
class Prefill(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """Have what is known of the next turn's prompt computed on a replica, and throw the answer away: that of
    this turn, which is over, with its answer behind it, as its client will send that back. Answered by
    `PrefillEnded`, however it ends."""

    turn: RequestId
    session: SessionId
    thread: ThreadId
    replica: ReplicaId
    hint: str | None = None
    agent: int = 0
    """`Transcript.agent` that the next turn is expected to have; 0: that of this one."""


@final
class RemotePrefill(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """Have the prompt of this request computed on a replica from which another one will get its KV cache.
    Answered by `PrefillLegEnded`, however it ends, unless the client leaves."""

    request: RequestId
    session: SessionId
    replica: ReplicaId
    limit_s: float
    """It is given up after so long."""
    model: str | None = None
    """As in `Dispatch`."""


@final
class StopPrefill(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """Nobody needs it any more."""

    turn: RequestId


@final
class Refuse(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """Answer the request with this refusal; nothing more will come for it."""

    request: RequestId
    refusal: Refusal
    session: SessionRef | None
    waited_s: float
    bound: str | None = None
    """As in `Dispatch`."""


@final
class Cancel(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """End the request: it is answered with this refusal, or cut if its answer has begun. `ClientLeft`
    follows, unless it ends by itself before."""

    request: RequestId
    refusal: Refusal


@final
class Spend(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """Tell the other gateways that so much more, or less, was used of an account."""

    more: Spent


@final
class Publish(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """Tell the other gateways by what they recognise that a request belongs to a session of ours."""

    request: RequestId
    """The turn that left the evidence."""
    tenant: TenantId
    names: tuple[int, ...] = ()
    """Of the evidence (`gateway/identity/evidence.py`)."""
    given: tuple[int, ...] = ()
    """Of what its answer gave: if another gateway gave the same, it is no evidence at either."""
    lasts_s: float | None = None
    """For how long the names mean anything; None: as long as the session is remembered."""
    trace: TurnTrace | None = None
    """Once the turn is over: what somebody else needs who has to go on with its session."""


Action = Dispatch | Refuse | RemotePrefill | SendHint | Prefill | StopPrefill | Cancel | Spend | Publish
# A record is to be appended to the information stream.
Command = Action | Record
