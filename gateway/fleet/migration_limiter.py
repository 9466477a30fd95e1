"""The trickle: when a replica is lost, its sessions move to the others few at a time.

Source: ours; SGLang's router, where the sessions of one lost backend, all at once, took the next one down.

Invariants: at most `moving_at_once` turns for each replica that is there compute a lost prompt anew at a
time; they go in the order in which they came; a turn is moving from when it may go until it has its first
token, or ended.
"""

from collections import OrderedDict, defaultdict
from typing import Annotated

import msgspec
from msgspec import Meta

from gateway.domain.ids import PoolId, RequestId


class TrickleConfig(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    moving_at_once: Annotated[int, Meta(ge=1, le=10_000)] = 2
    """Turns of sessions whose replica was lost, for each of the others, that may compute their prompt anew
    at a time."""
    unpaced_below_bytes: Annotated[int, Meta(ge=0)] = 16_384
    """A request that is not larger than this just goes."""


class MigrationLimiter:
    def __init__(self, config: TrickleConfig) -> None:
        self._config = config
        self._moving: defaultdict[PoolId, set[RequestId]] = defaultdict(set)
        self._waiting: defaultdict[PoolId, OrderedDict[RequestId, None]] = defaultdict(OrderedDict)
        self.known: dict[RequestId, PoolId] = {}
        """Those that move, or wait for it; to be read only."""

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
        """Where some wait."""
        return [pool for pool, waiting in self._waiting.items() if waiting]

    def over(self, request: RequestId) -> None:
        pool = self.known.pop(request, None)
        if pool is not None:
            self._moving[pool].discard(request)
            self._waiting[pool].pop(request, None)
