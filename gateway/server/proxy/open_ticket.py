"""Decided: a request gets a ticket of the brain, its tenant's usage reserved, its trace known."""

import msgspec

from gateway.core import events as ev
from gateway.domain.ids import RequestId, SessionId
from gateway.server.proxy.driver import Driver
from gateway.server.proxy.prepare import Prepared
from gateway.server.proxy.ticket import Ticket
from gateway.server.storage.tenant_usage import UsageReservations
from gateway.telemetry.otel.trace_context import TraceContexts


class Tickets(msgspec.Struct, frozen=True):
    driver: Driver
    traces: TraceContexts | None
    """None without tracing."""
    usage: UsageReservations | None
    """None if the brain alone counts what tenants use."""

    async def open(self, prepared: Prepared) -> Ticket:
        """The brain knows of the request then. The ticket must be closed; it is a context manager."""
        head, facts, driver = prepared.request.head, prepared.facts, self.driver
        tenant = head.caller.tenant
        reserved = await self.usage.reserve(tenant.id, facts) if self.usage is not None else None
        request = RequestId(next(driver.new_ids))
        ticket = driver.tickets[request] = Ticket(driver, request, facts)
        try:
            arrived = ev.RequestArrived(request, tenant.id, facts, prepared.without, reserved, tenant.key)
            driver.send(arrived)
        except BaseException:
            del driver.tickets[request]
            raise
        ticket.live = driver.coordinator.live.get(request)
        ticket.began_s = prepared.began_s
        if self.traces is not None and (traceparent := head.facts.traceparent):
            self.traces.arrived(ticket.request, traceparent)
        return ticket

    def trace(self, ticket: Ticket, session: SessionId | None) -> bytes | None:
        """The `traceparent` line for the replica."""
        return self.traces.header(ticket.request, session) if self.traces is not None else None
