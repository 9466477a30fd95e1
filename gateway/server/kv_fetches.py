"""What a request tells its engine to fetch from another one: its prompt, or the beginning of it by a pull.

The brain decides that a prompt is to be pulled (`Dispatch.pull`); here is found out whether these two engines
can, and what became of it. Where they cannot, the turn computes its prompt.

Invariants: of each pull that was decided one outcome is counted; what a fetch says is sent once, and no
client's own word on it is replaced.
"""

from collections import Counter
from collections.abc import Callable, Mapping
from http import HTTPStatus
from typing import Final, Literal, get_args

import msgspec
from msgspec import Raw

from gateway.config import Config
from gateway.core.commands import Dispatch
from gateway.domain.ids import PoolId, ReplicaId
from gateway.domain.request import Answer, RequestFacts
from gateway.server.request_parser import HttpRequest
from gateway.upstream.connection import UpstreamConnection
from gateway.upstream.replica import Replica
from gateway.wire.kv_transfer import CONNECTORS, Connector

PullOutcome = Literal["found", "missing", "unknown", "failed", "cut", "impossible"]
"""`found`, `missing`: by the usage of the answer, its engine did or did not have at least half of what was to
be pulled, wherever it was from; `unknown`: usage does not say; `failed`: 5xx; `cut`: no whole answer;
`impossible`: it was not told, as the source is gone, or one of the two takes no part, or the body cannot be
added to."""
PULL_OUTCOMES: Final[tuple[PullOutcome, ...]] = get_args(PullOutcome)
_FOUND_SHARE: Final = 0.5
"""Anything from 0.2 to 0.9: engines find a prompt's beginning or nearly nothing of it."""


class Fetch:
    """Of one attempt."""

    def __init__(
        self,
        fields: Mapping[str, Raw],
        *,
        counts_fetched: bool,
        pulled_tokens: int = 0,
        outcomes: Counter[str] | None = None,
    ) -> None:
        """`fields`: for the request's body; `outcomes`: of a pull."""
        self.fields = fields
        self._counts_fetched = counts_fetched
        self._pulled_tokens = pulled_tokens
        self._outcomes = outcomes

    def ended(self, outcome: PullOutcome) -> None:
        """Once."""
        outcomes, self._outcomes = self._outcomes, None
        if outcomes is not None:
            outcomes[outcome] += 1

    def has_failed(self, upstream: UpstreamConnection) -> bool:
        """Whether it may be for what was to be fetched that the engine failed."""
        if upstream.head is None or upstream.head.status < HTTPStatus.INTERNAL_SERVER_ERROR:
            return False
        self.ended("failed")
        return bool(self.fields)

    def answered(self, answer: Answer) -> Answer:
        """As the brain is to see it."""
        usage = answer.usage
        if not self._counts_fetched:
            return msgspec.structs.replace(answer, usage=msgspec.structs.replace(usage, cached_tokens=None))
        if not answer.has_terminal or answer.status >= 400:
            self.ended("cut")
        elif usage.cached_tokens is None:
            self.ended("unknown")
        else:
            is_there = usage.cached_tokens >= _FOUND_SHARE * self._pulled_tokens
            self.ended("found" if is_there else "missing")
        return answer


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


class PrefixPulls:
    def __init__(
        self,
        replicas: Mapping[ReplicaId, Replica],
        connectors: Mapping[PoolId, Connector],
        outcomes: Counter[str],
    ) -> None:
        """`replicas` may change; `connectors`: of the pools that hand anything over."""
        self._replicas = replicas
        self._connectors = connectors
        self._outcomes = outcomes

    @classmethod
    def of(
        cls, config: Config, replicas: Mapping[ReplicaId, Replica], outcomes: Counter[str]
    ) -> "PrefixPulls | None":
        """None if no pool's replicas hand anything over."""
        connectors = connectors_of(config)
        return cls(replicas, connectors, outcomes) if connectors else None

    def fetch(
        self, command: Dispatch, replica: Replica, request: HttpRequest, facts: RequestFacts
    ) -> Fetch | None:
        """What is to be told for the command's pull; None if there is none, or it is impossible."""
        pull = command.pull
        if pull is None:
            return None
        fields, connector = None, self._connectors.get(replica.pool)
        source = self._replicas.get(pull.source)
        can_tell = facts.is_readable and not facts.moves_kv and not request.head.facts.coding
        if connector is not None and source is not None and can_tell:
            is_pair = source is not replica and source.pool == replica.pool
            if is_pair and (not connector.needs_tiers or replica.kv_tier is not None):
                name = f"{command.request}.{command.attempt}"
                fields = connector.pull_fields(name, source.kv_tier)
        if fields is None:
            self._outcomes["impossible"] += 1
            return None
        return Fetch(
            fields,
            counts_fetched=connector is not None and connector.counts_fetched,
            pulled_tokens=pull.tokens,
            outcomes=self._outcomes,
        )


def fetch_for(
    command: Dispatch,
    replica: Replica,
    request: HttpRequest,
    facts: RequestFacts,
    *,
    handed_over: HandedOver | None,
    pulls: PrefixPulls | None,
) -> Fetch | None:
    """What an attempt is to tell: what a leg handed over, else the command's pull."""
    fetch = handed_over.take() if handed_over is not None else None
    if fetch is None and pulls is not None:
        fetch = pulls.fetch(command, replica, request, facts)
    return fetch


def connectors_of(config: Config) -> dict[PoolId, Connector]:
    """Of the pools whose replicas hand over KV caches."""
    return {
        PoolId(pool.name): CONNECTORS[pool.transfer] for pool in config.pools if pool.transfer is not None
    }
