"""What a gateway tells the others of a turn that is over: enough to go on with its session."""

import msgspec

from gateway.domain.ids import ReplicaId, RequestId, SessionId, TenantId, ThreadId
from gateway.domain.model_choice import Target


class TurnTrace(msgspec.Struct, kw_only=True, array_like=True, gc=False):
    """Hashes and ids only, never content; `gateway/workflow/turns.py` explains the fields."""

    tenant: TenantId
    session: SessionId
    source: str
    confidence: float
    keys: tuple[tuple[str, str], ...]
    """Schema and id of each name that clients state for the session."""
    parent: SessionId | None
    turns: int
    """That the session had so far."""
    thread: ThreadId
    thread_number: int
    """How many threads the session had so far."""
    name: str | None
    agent: int
    request: RequestId
    tail: int
    body: int
    client: int
    offers_tools: bool
    is_opening: bool
    is_side: bool
    outcome: str
    attempt: int | None
    text: int
    chars: int
    minted: tuple[int, ...]
    calls: int
    is_secret: bool
    """Nobody else was given its answer."""
    is_twin: bool
    """Another session was given the same."""
    has_secrets: bool
    has_private_answer: bool
    replica: ReplicaId | None = None
    """Where it ran, so where its state is."""
    prompt_tokens: int | None = None
    output_tokens: int | None = None
    states: tuple[tuple[bytes, ReplicaId], ...] = ()
    """Keys of what it stored at a replica, and which one that is."""
    runs_on: tuple[tuple[str, Target, bool], ...] = ()
    """What the operator's names of models mean for its session, and whether it fell back to that."""
    stopped_for_s: float = 0.0
    """For so long the session's turns are refused, as an operator said; set by who takes it over."""
