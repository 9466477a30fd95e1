"""Prompts that are computed on one replica to be decoded on another: the driver's side of the first leg (X5).

A leg runs within its request's handler and ends with it. It is the client's request for one token, whose
answer no client gets; the connector keeps its fields for the second leg.

Invariants: a leg whose client stays is reported to the brain once, however it ends, and raises nothing; what
it handed over is used at most once, and not when it may be gone.
"""

import logging
from collections.abc import Coroutine, Mapping
from http import HTTPStatus
from typing import Any, Final

import msgspec
from msgspec import Raw

from gateway.config import Config
from gateway.core import events as ev
from gateway.core.commands import RemotePrefill
from gateway.domain.ids import PoolId, ReplicaId
from gateway.domain.request import Usage
from gateway.requests.kv_transfer import CONNECTORS, prefill_leg_body
from gateway.server.disaggregation.kv_fetches import Fetch
from gateway.server.http.request_parser import HttpRequest
from gateway.server.proxy.driver import Driver
from gateway.server.proxy.internal_responses import ask_unseen, usage_of
from gateway.server.proxy.ticket import Ticket
from gateway.server.proxy.upstream_request import Outbound
from gateway.upstream.errors import ConnectFailed, ConnectTimedOut, LocalFault, UpstreamError
from gateway.upstream.health_probes import HealthChecks
from gateway.upstream.one_shot import OneShot, Run
from gateway.upstream.replica import Replica
from gateway.wire.splice import Chunk

_log: Final = logging.getLogger(__name__)


class _Leg(msgspec.Struct):
    """What became of one."""

    usage: Usage | None = None
    fields: dict[str, Raw] | None = None
    is_fault: bool | None = None


class RemotePrefills:
    def __init__(
        self,
        config: Config,
        driver: Driver,
        replicas: Mapping[ReplicaId, Replica],
        health: HealthChecks,
        outbound: Outbound,
    ) -> None:
        """`replicas` may change."""
        self._driver = driver
        self._replicas = replicas
        self._health = health
        self._outbound = outbound
        # Of the pools whose replicas hand over what they computed.
        self._connectors = {
            PoolId(pool.name): CONNECTORS[pool.transfer] for pool in config.pools if pool.transfer is not None
        }

    async def run(
        self, ticket: Ticket, command: RemotePrefill, request: HttpRequest, trace: bytes | None
    ) -> Fetch | None:
        """Until it has ended, and the brain knows. None if nothing has to be fetched. `trace`: a header."""
        leg = _Leg()
        replica = self._replicas.get(command.replica)
        if replica is not None:  # else it left after the brain had decided
            await self._run(self._compute(command, replica, request, trace, leg), leg, command.limit_s)
        connector = self._connectors[replica.pool] if replica is not None else None
        usage = leg.usage if leg.fields is not None else None
        self._driver.send(ev.PrefillLegEnded(ticket.request, usage, leg.is_fault))
        if connector is None or not leg.fields:
            return None
        return Fetch(leg.fields, connector.counts_fetched, self._driver.clock() + connector.lease_s)

    async def _run(self, compute: Coroutine[Any, Any, None], leg: _Leg, limit_s: float) -> None:
        """To its end, for a bounded time. Who is cancelled here has cancelled it."""
        ended = OneShot()
        run = Run(compute, ended.set)

        def give_up() -> None:
            leg.is_fault = True
            run.cancel()

        timer = self._driver.call_later(limit_s, give_up)
        try:
            run.advance()
            await ended
        finally:
            timer.cancel()
            if not ended.has_come:
                run.cancel()

    async def _compute(
        self, command: RemotePrefill, replica: Replica, request: HttpRequest, trace: bytes | None, leg: _Leg
    ) -> None:
        try:
            chunks = self._chunks(command, replica, request, trace)
            if chunks is None:
                return
            upstream, answer = await ask_unseen(replica, chunks)
            head = upstream.head
            assert head is not None
            if head.status != HTTPStatus.OK:
                leg.is_fault = True if head.status >= HTTPStatus.INTERNAL_SERVER_ERROR else None
                return
            leg.is_fault = False
            leg.usage = usage_of(upstream, request.head.caller.endpoint, answer)
            if leg.usage is not None:
                leg.fields = self._connectors[replica.pool].decode_fields(answer)
        except LocalFault:
            pass
        except UpstreamError as error:
            leg.is_fault = True
            if isinstance(error, ConnectFailed) and not isinstance(error, ConnectTimedOut):
                self._health.suspect(replica.id, str(error))
            else:
                self._health.check_now(replica.id)
        except Exception:  # noqa: BLE001 - a bug of ours costs the leg, and its turn goes on
            _log.exception("a prefill leg failed inside the gateway")

    def _chunks(
        self, command: RemotePrefill, replica: Replica, request: HttpRequest, trace: bytes | None
    ) -> list[Chunk] | None:
        """None if a prefill of the request alone is impossible."""
        endpoint = request.head.caller.endpoint
        if request.head.facts.coding or endpoint.name == _COMPACT:
            return None
        body = prefill_leg_body(self._connectors[replica.pool], request.body, endpoint.protocol)
        if body is None:
            return None
        leg = HttpRequest(request.head, body)
        return self._outbound.chunks(leg, replica, trace=trace, model=command.model)


# It makes a prompt of its own.
_COMPACT: Final = "/v1/responses/compact"
