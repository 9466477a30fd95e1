"""Admission by bounded concurrency: at most so many turns at once on a replica.

Source: none; the floor below every other policy, and a baseline.

Symbols: —

Deviations: —

Invariants: a turn is admitted only if some candidate is below its bound; turns that wait for the same pool
are admitted in order of arrival; the waiting room never holds more than its bounds.
"""

from collections.abc import Collection, Sequence
from typing import Final

from gateway.admission.policy import Applicant, Displaced, Room, TurnOutcome
from gateway.admission.quotas import retry_after_s
from gateway.admission.settings import AdmissionConfig
from gateway.domain.decision import Admission, Admit, Refusal, RefusalReason, Wait, WaitReason
from gateway.domain.engine import EngineSignals
from gateway.domain.fleet import ReplicaLoad
from gateway.domain.host import HostSignals
from gateway.domain.ids import PoolId, ReplicaId, RequestId, SessionId
from gateway.domain.records import Record

NO_REPLICA: Final = Refusal(
    reason=RefusalReason.NO_REPLICA,
    message="No healthy backend can serve this request at the moment.",
    retry_after_s=2,
)


def queue_full(number: int) -> Refusal:
    """`number`: how many were refused so far; each is told another time to come back."""
    return Refusal(
        reason=RefusalReason.QUEUE_FULL,
        message="All backends are busy and the waiting room is full.",
        retry_after_s=retry_after_s(5.0, number),
    )


_ADMIT: Final = Admit()


class BoundedConcurrency:
    def __init__(self, config: AdmissionConfig) -> None:
        self._config = config
        self._refusals = 0
        self.said: list[Record] = []

    def has_room(self, load: ReplicaLoad) -> bool:
        return load.running < self._config.max_running_per_replica

    def ask(self, applicant: Applicant, room: Room, *, now: float) -> Admission:
        if not room.candidates:
            return NO_REPLICA
        if not room.must_queue:
            for load in room.candidates:
                if load.running < self._config.max_running_per_replica:
                    return _ADMIT
        if (
            room.waiting >= self._config.max_waiting
            or room.waiting_bytes + applicant.body_bytes > self._config.max_waiting_bytes
        ):
            self._refusals += 1
            return queue_full(self._refusals)
        return Wait(reason=WaitReason.CONCURRENCY_FULL)

    def let_in(self, *, now: float) -> Sequence[RequestId]:
        return ()

    def displaced(self) -> Sequence[Displaced]:
        return ()

    def next_deadline_s(self) -> float | None:
        return None

    def may_learn(self, request: RequestId, *, now: float) -> bool:
        return False

    def turn_over(self, request: RequestId, outcome: TurnOutcome | None, *, now: float) -> None:
        pass

    def class_of(self, session: SessionId, pool: PoolId) -> None:
        """It knows requests alone."""

    def session_over(self, session: SessionId, *, now: float) -> None:
        pass

    def tools_run(self, sessions: int) -> None:
        pass

    def tools_ran(self, session: SessionId, names: tuple[str, ...], duration_s: float) -> None:
        pass

    def host_reported(self, host: str, signals: HostSignals, *, now: float) -> None:
        pass

    def engine_reported(
        self, pool: PoolId, replica: ReplicaId, signals: EngineSignals, *, now: float
    ) -> None:
        pass

    def fleet_changed(self, pool: PoolId, up: Collection[ReplicaId], *, now: float) -> None:
        pass
