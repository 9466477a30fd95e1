"""What a simulation tells while it runs, and to whom.

A `Sink` gets every outcome as it happens and keeps what it wants; the simulation keeps nothing of what is
over.
"""

from collections.abc import Sequence
from typing import Protocol

import msgspec

from gateway.domain.ids import ReplicaId
from gateway.domain.records import Record
from lab.workload.trace.format import ServiceClass


class TurnOutcome(msgspec.Struct, frozen=True, kw_only=True):
    """One LLM call, from the first time its client asked to the end of the answer."""

    session: str
    thread: int
    turn: int
    tenant: str
    replica: ReplicaId
    arrival_s: float
    waited_s: float
    """Until a replica got it: in the gateway, and between refusals."""
    began_s: float
    """When the engine first ran it."""
    first_token_s: float
    end_s: float
    prompt_tokens: int
    cached_tokens: int
    """Of the prompt, when it first ran: found in the replica's cache, or loaded from its host's memory."""
    output_tokens: int
    preemptions: int
    refusals: int
    """How often the gateway said no before."""


class SessionOutcome(msgspec.Struct, frozen=True, kw_only=True):
    """One agent run. Where it failed, its times are those of the failure."""

    id: str
    tenant: str
    service_class: ServiceClass
    agent_type: str
    arrival_s: float
    final_first_token_s: float
    """When the final answer of the main conversation began."""
    end_s: float
    """When the main conversation had its final answer."""
    isolated_s: float
    """What it would have taken alone on the fleet's first replica, without noise."""
    deadline_s: float | None
    """After arrival, if somebody set one."""
    turns: int
    """That were answered."""
    failed: bool
    """A turn was refused more often than its client asks again."""


class ReplicaSample(msgspec.Struct, frozen=True, kw_only=True):
    """One replica at one time."""

    replica: ReplicaId
    running: int
    waiting: int
    kv_used: float
    """Share of the KV blocks that requests, or a policy that retains blocks, hold."""
    prompt_tokens: int
    """Of the turns that began to run since the last sample."""
    cached_tokens: int
    """Of those, found in the cache: hit rate = cached / prompt tokens."""
    busy_s: float
    """Since the last sample, in engine steps."""


class Sink(Protocol):
    """Who wants to know what happened."""

    def turn_done(self, outcome: TurnOutcome) -> None: ...

    def session_done(self, outcome: SessionOutcome) -> None: ...

    def sample(self, at_s: float, replicas: Sequence[ReplicaSample]) -> None: ...

    def record(self, record: Record) -> None:
        """The information stream, as the live gateway writes it."""
        ...


class Ignore:
    """A sink for whoever wants the totals alone; a beginning for others."""

    def turn_done(self, outcome: TurnOutcome) -> None:
        """Nobody wants to know."""

    def session_done(self, outcome: SessionOutcome) -> None:
        """Nobody wants to know."""

    def sample(self, at_s: float, replicas: Sequence[ReplicaSample]) -> None:
        """Nobody wants to know."""

    def record(self, record: Record) -> None:
        """Nobody wants to know."""


class Totals(msgspec.Struct, kw_only=True):
    """What a whole run came to."""

    sessions: int = 0
    """That ended, failed ones included."""
    failed_sessions: int = 0
    turns: int = 0
    """That were answered."""
    refusals: int = 0
    prompt_tokens: int = 0
    cached_tokens: int = 0
    output_tokens: int = 0
    preemptions: int = 0
    steps: int = 0
    """Of all engines, as a device would have made them."""
    scheduled_steps: int = 0
    """Those of them that took a pass of the scheduler; the others were parts of a stretch of decoding."""
    computed_tokens: int = 0
    """By all engines."""
    again_tokens: int = 0
    """Of these, because of preemptions, beyond prompts − cached + outputs; negative where whoever was
    preempted found more when it ran again than it had had."""
    moved_tokens: int = 0
    """Of these: next prompts, as far as known, while tools ran."""
    prefill_legs: int = 0
    """Prompts that were computed to be decoded elsewhere, or were to be."""
    carried_bytes: float = 0.0
    """Of KV caches, from one replica to another."""
    busy_s: float = 0.0
    """All engines' steps together."""
    end_s: float = 0.0
    """When the last session was over."""
