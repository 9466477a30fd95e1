"""How many bytes of request bodies the gateway holds, in all and for each tenant."""

from collections import Counter

from gateway.domain.ids import TenantId


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
