"""The migration limiter: sessions of a lost replica move to the others a few at a time.

Source: ours; SGLang's router, where all sessions of one lost backend at once took the next one down.

Invariants: at most `moving_at_once` turns for each replica recompute a lost prompt at a time, first in, first
out; a turn moves from its permission to its first token, or its end.
"""

from collections import OrderedDict, defaultdict
from typing import Annotated

import msgspec
from msgspec import Meta

from gateway.domain.ids import PoolId, RequestId


class TrickleConfig(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    moving_at_once: Annotated[int, Meta(ge=1, le=10_000)] = 2
    """Turns of a lost replica that may recompute their prompts at a time, for each remaining replica."""
    unpaced_below_bytes: Annotated[int, Meta(ge=0)] = 16_384
    """Requests up to this size move at once."""


class MigrationLimiter:
    def __init__(self, config: TrickleConfig) -> None:
        self._config = config
        self._moving: defaultdict[PoolId, set[RequestId]] = defaultdict(set)
        self._waiting: defaultdict[PoolId, OrderedDict[RequestId, None]] = defaultdict(OrderedDict)
        # Moving and waiting turns. Read only.
        self.known: dict[RequestId, PoolId] = {}

    def may_move(self, request: RequestId, pool: PoolId, body_bytes: int, replicas: int) -> bool:
        moving, waiting = self._moving[pool], self._waiting[pool]
        if body_bytes <= self._config.unpaced_below_bytes or request in moving:
            return True
        self.known[request] = pool
        if waiting or len(moving) >= replicas * self._config.moving_at_once:
            waiting[request] = None
            return False
        moving.add(request)
        return True

    def next_to_move(self, pool: PoolId, replicas: int) -> RequestId | None:
        moving, waiting = self._moving[pool], self._waiting[pool]
        if not waiting or len(moving) >= replicas * self._config.moving_at_once:
            return None
        request, _ = waiting.popitem(last=False)
        moving.add(request)
        return request

    def pools(self) -> list[PoolId]:
        """With waiting turns."""
        return [pool for pool, waiting in self._waiting.items() if waiting]

    def over(self, request: RequestId) -> None:
        pool = self.known.pop(request, None)
        if pool is not None:
            self._moving[pool].discard(request)
            self._waiting[pool].pop(request, None)
