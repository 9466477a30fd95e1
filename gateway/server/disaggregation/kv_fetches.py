"""What a request tells its engine to fetch from the one that computed its prompt.

Invariants: what a fetch says is sent once, and no client's own word on it is replaced.
"""

from collections.abc import Callable, Mapping
from http import HTTPStatus

import msgspec
from msgspec import Raw

from gateway.config import Config
from gateway.domain.ids import PoolId
from gateway.domain.request import Answer
from gateway.upstream.connection import UpstreamConnection
from gateway.wire.kv_transfer import CONNECTORS, Connector


class Fetch:
    """Of one attempt."""

    def __init__(self, fields: Mapping[str, Raw], *, counts_fetched: bool) -> None:
        """`fields`: for the request's body."""
        self.fields = fields
        self._counts_fetched = counts_fetched

    def has_failed(self, upstream: UpstreamConnection) -> bool:
        return upstream.head is not None and upstream.head.status >= HTTPStatus.INTERNAL_SERVER_ERROR

    def answered(self, answer: Answer) -> Answer:
        if self._counts_fetched:
            return answer
        return msgspec.structs.replace(
            answer, usage=msgspec.structs.replace(answer.usage, cached_tokens=None)
        )


class HandedOver:
    """What the decode leg is to be told."""

    def __init__(self, fetch: Fetch, *, until_s: float, clock: Callable[[], float]) -> None:
        self._fetch: Fetch | None = fetch
        self._until_s = until_s
        self._clock = clock

    def take(self) -> Fetch | None:
        """Once; nothing when it is too late, or where nothing has to be told."""
        fetch, self._fetch = self._fetch, None
        return fetch if fetch and fetch.fields and self._clock() < self._until_s else None


def connectors_of(config: Config) -> dict[PoolId, Connector]:
    return {
        PoolId(pool.name): CONNECTORS[pool.transfer] for pool in config.pools if pool.transfer is not None
    }
