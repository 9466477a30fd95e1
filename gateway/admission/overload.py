"""Overload: who is turned away where the waiting room is full, and the words in which admission refuses.

Invariants: the waiting room never holds more than its bounds; for a newcomer somebody leaves only of the
tenant of whom more wait than of the newcomer's own, by weight: its newest session.
"""

from typing import Final

from gateway.admission.applicant import Applicant, Room
from gateway.admission.pool import PoolAdmission
from gateway.admission.quotas import retry_after_s
from gateway.admission.settings import AdmissionConfig
from gateway.domain.decision import Refusal, RefusalReason
from gateway.domain.ids import RequestId

NO_REPLICA: Final = Refusal(
    reason=RefusalReason.NO_REPLICA,
    message="No healthy backend can serve this request at the moment.",
    retry_after_s=2,
)
_BUSY_S: Final = 5.0
"""When those who met full queues may come again at the soonest."""


class Overload:
    def __init__(self, config: AdmissionConfig) -> None:
        self._config = config
        self._displaced: list[tuple[RequestId, Refusal]] = []
        self._refusals = 0

    def is_full(self, room: Room, applicant: Applicant) -> bool:
        return (
            room.waiting >= self._config.max_waiting
            or room.waiting_bytes + applicant.body_bytes > self._config.max_waiting_bytes
        )

    def displace_for(self, pool: PoolAdmission, applicant: Applicant, room: Room) -> Refusal | None:
        """Makes room in the waiting room, or says why the applicant itself is refused: the newest of the
        least entitled leaves."""
        queue, tenant = pool.queue, applicant.tenant
        least = queue.least_entitled(apart_from=tenant)
        if least is None:
            return self.refuse_for_the_fleet()
        if queue.crowd(least) <= queue.crowd(tenant):
            return self._refuse_for_its_share()
        waiting = pool.held[queue.newest_of(least).session]
        left = room.waiting_bytes - sum(each.body_bytes for each in waiting.values())
        if left + applicant.body_bytes > self._config.max_waiting_bytes or not self._config.max_waiting:
            return self.refuse_for_the_fleet()
        self._displaced += [(request, self._refuse_for_its_share()) for request in waiting]
        return None

    def displaced(self) -> list[tuple[RequestId, Refusal]]:
        out, self._displaced = self._displaced, []
        return out

    def refuse_for_its_quota(self, per_minute: int | None, wait_s: float) -> Refusal:
        what = f"The {per_minute:,} tokens per minute of this key's tenant are used up for {wait_s:.0f} s."
        return self._refuse(RefusalReason.TENANT_QUOTA, what, wait_s)

    def refuse_for_the_fleet(self) -> Refusal:
        return self._refuse(
            RefusalReason.QUEUE_FULL, "All backends are busy and the waiting room is full.", _BUSY_S
        )

    def _refuse_for_its_share(self) -> Refusal:
        message = "All backends are busy, and of those that wait this key has the largest part."
        return self._refuse(RefusalReason.TENANT_SHARE, message, _BUSY_S)

    def _refuse(self, reason: RefusalReason, message: str, wait_s: float) -> Refusal:
        """Each time another `retry_after_s`: clients that come again do not come together."""
        self._refusals += 1
        return Refusal(reason=reason, message=message, retry_after_s=retry_after_s(wait_s, self._refusals))
