"""The inputs of admission: a turn that arrives, the capacity for it, and its outcome."""

from collections.abc import Callable, Sequence

import msgspec

from gateway.cost.estimator import IsolatedCost
from gateway.domain.agent_key import UNKNOWN_AGENT, AgentKey
from gateway.domain.decision import Edge, RefusalReason
from gateway.domain.fleet import ReplicaLoad
from gateway.domain.ids import PoolId, ReplicaId, RequestId, SessionId, TenantId
from gateway.domain.request import Claims, Usage
from gateway.workflow.aeg.graph import HeldContext, Silence


class TurnRequest(msgspec.Struct, frozen=True, kw_only=True):
    request: RequestId
    pool: PoolId
    tenant: TenantId
    body_bytes: int = 0
    prompt_tokens: float = 0.0
    """Expected."""
    session: SessionId | None = None
    """None for a request outside sessions; it never counts as one."""
    edge: Edge = Edge.OPENS
    agent: AgentKey = UNKNOWN_AGENT
    task_arrived_s: float = 0.0
    """The arrival of the session's first turn."""
    claims: Claims | None = None
    is_background: bool = False
    """By the protocol."""
    is_deprioritized: bool = False
    """Beyond a bound."""


class ReplicaCapacity(msgspec.Struct, frozen=True, kw_only=True):
    candidates: Sequence[ReplicaLoad]
    """Healthy replicas that may run the turn."""
    must_queue: bool
    """Others wait for the same replicas."""
    full: Callable[[], RefusalReason | None]
    """Why it cannot wait: the waiting room is full, and nobody leaves it. Called if it has to; it compares
    tenants."""


class TurnOutcome(msgspec.Struct, frozen=True, kw_only=True):
    """The end of an admitted turn."""

    was_answered: bool
    """The client has the answer, to its end."""
    has_calls: bool = False
    """Its tools run next."""
    silence: Silence | None = None
    """The pause that follows, if known."""
    replica: ReplicaId | None = None
    usage: Usage = Usage()
    """Expected where the backend reported nothing."""
    held: HeldContext | None = None
    """The session's context, if known."""
    grown: float | None = None
    """Growth of its conversation in tokens; None for a first turn."""
    left: float | None = None
    """Prompt tokens that the turn before left there; None if it ran elsewhere, or the engine was lost."""
    prefill_s: float | None = None
    """To compute what was not cached, on that replica alone."""
    alone: IsolatedCost | None = None
    """The turn on that replica alone, without losses; None if unknown."""
