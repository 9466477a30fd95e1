"""A gateway's report of a finished turn to the others: enough to continue its session."""

import msgspec

from gateway.domain.ids import ReplicaId, RequestId, SessionId, TenantId, ThreadId
from gateway.domain.model_choice import Target


class TurnTrace(msgspec.Struct, kw_only=True, array_like=True, gc=False):
    """Hashes and ids only, never content; see `gateway/workflow/turns.py`."""

    tenant: TenantId
    session: SessionId
    source: str
    confidence: float
    keys: tuple[tuple[str, str], ...]
    """Schema and id of each stated id."""
    parent: SessionId | None
    turns: int
    """Of the session, like `thread_number`."""
    thread: ThreadId
    thread_number: int
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
    """No other session received its answer."""
    is_twin: bool
    """Another session received the same."""
    has_secrets: bool
    has_private_answer: bool
    replica: ReplicaId | None = None
    prompt_tokens: int | None = None
    output_tokens: int | None = None
    states: tuple[tuple[bytes, ReplicaId], ...] = ()
    """Keys of stored state, with their replicas."""
    runs_on: tuple[tuple[str, Target, bool], ...] = ()
    """Models for the operator's names, and whether they are fallbacks."""
    stopped_for_s: float = 0.0
    """Rest of an operator's stop; set at a takeover."""
