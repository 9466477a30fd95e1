"""The waiting room's limit: is it full for a turn, and which turns leave for it?

Invariants: a newcomer displaces only the newest session of a tenant with more waiting sessions for its weight
than the newcomer's, in any pool.
"""

from collections.abc import Collection, Iterable
from operator import itemgetter

from gateway.admission.balance_and_admit import PoolAdmission
from gateway.admission.settings import AdmissionConfig
from gateway.admission.turn_request import ReplicaCapacity, TurnRequest
from gateway.domain.decision import RefusalReason
from gateway.domain.ids import RequestId


def is_full(config: AdmissionConfig, room: ReplicaCapacity, applicant: TurnRequest) -> bool:
    is_too_much = room.waiting_bytes + applicant.body_bytes > config.max_waiting_bytes
    return room.waiting >= config.max_waiting or is_too_much


def displaced_by(
    applicant: TurnRequest,
    pool: PoolAdmission,
    pools: Iterable[PoolAdmission],
    room: ReplicaCapacity,
    config: AdmissionConfig,
) -> Collection[RequestId] | RefusalReason:
    """The turns that leave a full room for the applicant, or why it is refused."""
    tenant = applicant.tenant
    found = [
        (each.queue.crowd(least), each, least)
        for each in pools
        if (least := each.queue.least_entitled(apart_from=tenant)) is not None
    ]
    if not found:
        return RefusalReason.QUEUE_FULL
    crowd, other, least = max(found, key=itemgetter(0))
    if crowd <= pool.queue.crowd(tenant):
        return RefusalReason.TENANT_SHARE
    waiting = other.held[other.queue.newest_of(least).session]
    left = room.waiting_bytes - sum(turn.applicant.body_bytes for turn in waiting.values())
    if left + applicant.body_bytes > config.max_waiting_bytes or not config.max_waiting:
        return RefusalReason.QUEUE_FULL
    return waiting
