"""What a replica is asked, and what it tells."""

from collections.abc import Sequence
from typing import Any, Protocol

import msgspec

from lab.workload.trace.format import Session, Turn, TurnRef


class KvSource(msgspec.Struct, kw_only=True, eq=False):
    """Where a turn's prompt was computed, if not by its own engine."""

    exchange: Any
    """`KvExchange` of the replica that has it."""
    leg: int
    """The prefill leg that computed it, by its number: it is kept there."""
    is_over: bool = False
    """Nothing more comes from there; set by the engine."""


class EngineTurn(msgspec.Struct, kw_only=True, eq=False):
    """One turn, as an engine gets it. Policies may read all of it; only oracles should look ahead."""

    number: int
    """Of the attempt: unique in a simulation, rising."""
    session: Session
    ref: TurnRef
    keys: Sequence[bytes]
    """Of the full blocks of prompt and output."""
    submitted_s: float
    hint: str | None = None
    """For engines that follow hints."""
    priority: int = 0
    """For engines with `SchedulingPolicy.PRIORITY`; the lowest runs first."""
    is_prefill: bool = False
    """Only its prompt is to be computed."""
    hands_over: bool = False
    """What was computed is kept when it ends, for another engine that fetches it."""
    source: KvSource | None = None
    known_tokens: int | None = None
    """Of the prompt, if only so much of it is known."""
    marks: tuple[int, ...] = ()
    """Rising numbers of output tokens; whoever sent it is told when there are so many."""
    began_s: float | None = None
    """When it first ran; set by the engine."""
    cached_tokens: int = 0
    """Of its prompt, when it first ran; set by the engine."""

    @property
    def input_tokens(self) -> int:
        return self.turn.input_tokens if self.known_tokens is None else self.known_tokens

    @property
    def output_tokens(self) -> int:
        return 1 if self.is_prefill else self.turn.output_tokens

    @property
    def turn(self) -> Turn:
        return self.session.threads[self.ref.thread].turns[self.ref.turn]

    @property
    def is_last(self) -> bool:
        """Of its conversation."""
        return self.ref.turn == len(self.session.threads[self.ref.thread].turns) - 1


class TurnListener(Protocol):
    """Who sent a turn to an engine. Called at the time when it happens."""

    def first_token(self, turn: EngineTurn) -> None: ...

    def reached(self, turn: EngineTurn, tokens: int) -> None:
        """One of its marks."""

    def finished(self, turn: EngineTurn, *, cached_tokens: int, preemptions: int) -> None: ...
