"""What admission is told of a turn: who applies, what room there is, and how the turn ended."""

from collections.abc import Sequence

import msgspec

from gateway.cost.estimator import IsolatedCost
from gateway.domain.agent_key import UNKNOWN_AGENT, AgentKey
from gateway.domain.decision import Edge
from gateway.domain.fleet import ReplicaLoad
from gateway.domain.ids import PoolId, ReplicaId, RequestId, SessionId, TenantId
from gateway.domain.request import Claims, Usage
from gateway.workflow.aeg.graph import Held, Silence


class TurnRequest(msgspec.Struct, frozen=True, kw_only=True):
    """A turn of a session, or a request of none, and what it wants."""

    request: RequestId
    pool: PoolId
    tenant: TenantId
    body_bytes: int = 0
    prompt_tokens: float = 0.0
    """That its prompt is expected to have."""
    session: SessionId | None = None
    """None for a request that belongs to no session: it is never counted as one."""
    edge: Edge = Edge.OPENS
    agent: AgentKey = UNKNOWN_AGENT
    task_arrived_s: float = 0.0
    """When the session's first turn came."""
    claims: Claims | None = None
    """What the client says of how urgent it is (`classes.py`)."""
    is_background: bool = False
    """The protocol says that nobody waits for the answer."""
    is_deprioritized: bool = False
    """It is beyond a bound, and others go first."""


class ReplicaCapacity(msgspec.Struct, frozen=True, kw_only=True):
    """What there is for an applicant."""

    candidates: Sequence[ReplicaLoad]
    """Healthy replicas that may run it; empty if there is none."""
    must_queue: bool
    """Others wait for the same replicas, so this one may not overtake them."""
    waiting: int
    """Turns in the waiting room now."""
    waiting_bytes: int


class TurnOutcome(msgspec.Struct, frozen=True, kw_only=True):
    """How a turn ended that had been let in."""

    was_answered: bool
    """The client got an answer, to its end."""
    has_calls: bool = False
    """Tools that it asks for run next."""
    silence: Silence | None = None
    """How its session is silent; None if nothing is known of that, or it is not."""
    replica: ReplicaId | None = None
    usage: Usage = Usage()
    """What the backend did not count is what it is expected to have been."""
    held: Held | None = None
    """What its session holds now; None if that is not known."""
    grown: float | None = None
    """Tokens by which its conversation is longer than after its turn before; None if that was its first."""
    left: float | None = None
    """Tokens of its prompt that the turn before it left there; None if that ran elsewhere, or its engine was
    lost since."""
    prefill_s: float | None = None
    """What computing its prompt takes, as far as that was not cached, on that replica alone."""
    alone: IsolatedCost | None = None
    """What all of it takes on that replica alone, where nothing is lost that turns before it left; None if
    that is not known."""
