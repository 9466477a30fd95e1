"""Admission by bounded concurrency: at most so many turns at once on a replica.

Source: none; this is the floor that later policies (M2–M4, S8) replace behind `AdmissionPolicy`.

Symbols: —

Deviations: —

Invariants: a turn is admitted only if some candidate is below its bound; turns that wait for the same
pool are admitted in order of arrival; the waiting room never holds more than `max_waiting` turns.
"""

from collections.abc import Sequence
from typing import Annotated, Protocol

import msgspec
from msgspec import Meta

from gateway.domain.decision import Admission, Admit, Refusal, RefusalReason, Wait, WaitReason
from gateway.domain.fleet import ReplicaLoad
from gateway.domain.ids import RequestId


class AdmissionConfig(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    max_running_per_replica: Annotated[int, Meta(ge=1, le=100_000)] = 256
    """Turns sent to one replica at a time; vLLM's own default for `max_num_seqs` is 256."""
    max_waiting: Annotated[int, Meta(ge=0, le=1_000_000)] = 4096
    """Turns in the waiting room, all pools together."""
    max_waiting_bytes: Annotated[int, Meta(ge=0)] = 1 << 30
    """Bodies held for waiting turns, all pools together."""


class Offer(msgspec.Struct, frozen=True, kw_only=True):
    """A turn that asks to start."""

    request: RequestId
    body_bytes: int
    candidates: Sequence[ReplicaLoad]
    """Healthy replicas that may run it; empty if there is none."""
    must_queue: bool
    """Others wait for the same pool, so this one may not overtake them."""
    waiting: int
    """Turns in the waiting room now."""
    waiting_bytes: int


class AdmissionPolicy(Protocol):
    """May this turn start now, must it wait, or is it turned away?"""

    def decide(self, offer: Offer, *, now: float) -> Admission: ...

    def has_room(self, load: ReplicaLoad) -> bool:
        """Whether one more turn may run on this replica. Never changes anything."""
        ...


_ADMIT = Admit()


class BoundedConcurrency:
    def __init__(self, config: AdmissionConfig) -> None:
        self._config = config

    def has_room(self, load: ReplicaLoad) -> bool:
        return load.running < self._config.max_running_per_replica

    def decide(self, offer: Offer, *, now: float) -> Admission:
        if not offer.candidates:
            return Refusal(
                reason=RefusalReason.NO_REPLICA,
                message="No healthy backend can serve this request at the moment.",
                retry_after_s=2,
            )
        if not offer.must_queue and any(map(self.has_room, offer.candidates)):
            return _ADMIT
        if (
            offer.waiting >= self._config.max_waiting
            or offer.waiting_bytes + offer.body_bytes > self._config.max_waiting_bytes
        ):
            return Refusal(
                reason=RefusalReason.QUEUE_FULL,
                message="All backends are busy and the waiting room is full.",
                retry_after_s=10,
            )
        return Wait(reason=WaitReason.CONCURRENCY_FULL)
