"""What one message of a WebSocket asks for: it is read, decided, and made what the replica gets."""

import asyncio
from collections.abc import Callable

import msgspec

from gateway.config.holding import HoldingConfig
from gateway.config.http_limits import HttpLimits
from gateway.core import events as ev
from gateway.core.commands import Dispatch, PrefillLeg, Refuse
from gateway.domain.ids import ReplicaId
from gateway.domain.request import RequestFacts
from gateway.server.driver import Driver, Ticket
from gateway.server.outbound import Outbound
from gateway.server.peers import Peers
from gateway.server.reading import READ_AT_ONCE, Reading
from gateway.server.request_head import RequestHead
from gateway.server.request_parser import HttpRequest
from gateway.upstream.replica import Replica
from gateway.wire.response_frames import Asked, read_asked, reading_asked


class Means(msgspec.Struct, frozen=True):
    """What every WebSocket of this process shares."""

    driver: Driver
    outbound: Outbound
    reading: Reading
    limits: HttpLimits
    holding: HoldingConfig
    idle_s: float
    are_keys_required: bool
    peers: Peers | None
    is_leaving: Callable[[Replica], bool]
    suspect: Callable[[ReplicaId], None]
    """Has a replica asked how it is."""


async def read_message(data: bytes, means: Means) -> Asked | None:
    """Raises Oversized."""
    if len(data) < READ_AT_ONCE:
        return read_asked(data)
    return await means.driver.in_slices(reading_asked(data))


async def read_facts(request: HttpRequest, means: Means) -> RequestFacts:
    """What a `response.create` says, as of a request by HTTP. What is known elsewhere of its session is known
    here from then on."""
    visitor, is_small = request.head.visitor, len(request.body) < READ_AT_ONCE
    read = means.reading
    facts = (
        read.at_once(visitor.endpoint, request)
        if is_small
        else await read.in_slices(visitor.endpoint, request)
    )
    facts = msgspec.structs.replace(facts, stream=True)
    if means.peers is not None and not means.peers.has(visitor, facts):
        for trace in await means.peers.left_for_us(visitor, facts):
            means.driver.send(ev.SessionAdopted(trace))
    return facts


async def decision_of(
    ticket: Ticket, means: Means, keep_alive: Callable[[], None]
) -> Dispatch | Refuse | PrefillLeg:
    """`keep_alive`: tells the client that it waits; called now and then while it does."""
    decision = ticket.decided()
    if decision is not None:
        return decision
    holding, call_later = means.holding, means.driver.call_later
    timer: asyncio.TimerHandle

    def speak() -> None:
        nonlocal timer
        timer = call_later(holding.period_s, speak)
        keep_alive()

    timer = call_later(holding.quiet_s, speak)
    try:
        return await ticket.decision()
    finally:
        timer.cancel()


def message_for(
    replica: Replica, decision: Dispatch, request: HttpRequest, facts: RequestFacts, means: Means
) -> bytes:
    return means.outbound.message(
        request,
        means.driver.coordinator.fleet.abilities(replica.id),
        replica,
        is_readable=facts.is_readable,
        hint=decision.hint,
        model=decision.model if decision.model != facts.model else None,
    )


def without_news(head: RequestHead) -> RequestHead:
    """The same for the messages that follow: what it says of its tools is news once, and so is a retry."""
    if not head.facts.tool_times and head.facts.attempt is None:
        return head
    return msgspec.structs.replace(
        head, facts=msgspec.structs.replace(head.facts, tool_times=(), attempt=None), passed_on={}
    )
