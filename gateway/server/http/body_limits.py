"""How many bytes a request's body may have, and how many the gateway holds, in all and for each tenant."""

from collections import Counter

from gateway.config.http_limits import HttpLimits
from gateway.domain.decision import Refusal, RefusalReason
from gateway.domain.ids import TenantId
from gateway.server.http.refused_request import RefusedRequest, refused


class BufferBudget:
    """The bytes that the bodies of all requests together may hold.

    The first half is first come, first served. In the second half a tenant gets no more than an equal share,
    with one tenant more than the present holders in the count: the next tenant finds room.
    """

    def __init__(self, max_bytes: int) -> None:
        self.max_bytes = max_bytes
        self.used = 0
        self._held: Counter[TenantId] = Counter()

    def take(self, tenant: TenantId, size: int) -> bool:
        used, held = self.used + size, self._held[tenant] + size
        if 2 * used > self.max_bytes and (
            used > self.max_bytes or held * (len(self._held) + 1) > self.max_bytes
        ):
            return False
        if size:
            self.used, self._held[tenant] = used, held
        return True

    def give_back(self, tenant: TenantId, size: int) -> None:
        self.used -= size
        self._held[tenant] -= size
        if not self._held[tenant]:
            del self._held[tenant]


def no_room() -> RefusedRequest:
    message = "The gateway holds as many request bodies as it can."
    return RefusedRequest(Refusal(reason=RefusalReason.MEMORY_FULL, message=message, retry_after_s=5))


def take_room(budget: BufferBudget, limits: HttpLimits, tenant: TenantId, more: int, *, whole: int) -> None:
    """Raises RefusedRequest. `whole`: the size of the body with these bytes."""
    if whole > limits.max_body_bytes:
        raise too_large(limits)
    if not budget.take(tenant, more):
        raise no_room()


def too_large(limits: HttpLimits) -> RefusedRequest:
    return refused(RefusalReason.BODY_TOO_LARGE, f"The request's body exceeds {limits.max_body_bytes} bytes.")
