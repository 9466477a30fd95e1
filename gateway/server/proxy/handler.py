"""One request, from top to bottom: prepared, decided, sent, relayed.

The listener has parsed and authenticated it (`request.head.caller`). Each step is a module, and hands one
value to the next: `prepare.py` a `Prepared`, `open_ticket.py` a `Ticket` of the brain, `send.py` a response
that has `Begun`, which `relay.py` passes to the client. Leaving the ticket's `with` block accounts for it,
however it is left.
"""

import logging
from typing import Final

import msgspec

from gateway.core import refusals
from gateway.domain.request import Work
from gateway.server.http.client_connection import ClientConnection
from gateway.server.http.request_parser import HttpRequest
from gateway.server.proxy.open_ticket import Tickets
from gateway.server.proxy.prepare import RequestPreparation
from gateway.server.proxy.relay import ResponseRelay
from gateway.server.proxy.send import UpstreamSender
from gateway.server.proxy.websockets import Tunnels

_log: Final = logging.getLogger(__name__)


class ProxyHandler(msgspec.Struct, frozen=True):
    """Called by every client connection with every request."""

    preparation: RequestPreparation
    tickets: Tickets
    sender: UpstreamSender
    relay: ResponseRelay
    tunnels: Tunnels

    async def __call__(self, client: ClientConnection, request: HttpRequest) -> None:
        try:
            prepares = self.tunnels if request.head.is_websocket else self.preparation
            prepared = await prepares.prepare(client, request)
            if prepared is None:
                return
            with await self.tickets.open(prepared) as ticket:
                client.ticket, ticket.on_cancel = ticket, client.refuse_instead
                begun = await self.sender.send(ticket, client, prepared)
                if begun is None:
                    return
                if request.head.is_websocket and begun.upstream.is_switched:
                    await self.tunnels.run(client, ticket, prepared, begun)
                    return
                await self.relay.run(client, ticket, prepared, begun)
                # What is stored of an answer that failed is itself answered well.
                client.has_failed = ticket.has_failed and prepared.facts.work is not Work.STATE
        except Exception:  # noqa: BLE001 - a bug of ours costs one request, never the process
            endpoint = request.head.caller.endpoint
            _log.exception("a request to %s failed inside the gateway", endpoint.name)
            client.refuse_or_abort(endpoint.protocol, refusals.internal())
