"""What an engine is to fetch from the one that computed a request's prompt.

Invariants: each fetch is sent once, and a client's own field for it is never replaced.
"""

from collections.abc import Mapping
from http import HTTPStatus

import msgspec
from msgspec import Raw

from gateway.domain.request import Answer
from gateway.upstream.connection import UpstreamConnection


class Fetch(msgspec.Struct, frozen=True):
    """Of one attempt."""

    fields: Mapping[str, Raw]
    """For the request's body."""
    counts_fetched: bool
    until_s: float
    """By the brain's clock: then it may be gone."""

    def has_failed(self, upstream: UpstreamConnection) -> bool:
        return upstream.head is not None and upstream.head.status >= HTTPStatus.INTERNAL_SERVER_ERROR

    def answered(self, answer: Answer) -> Answer:
        if self.counts_fetched:
            return answer
        return msgspec.structs.replace(
            answer, usage=msgspec.structs.replace(answer.usage, cached_tokens=None)
        )
