"""Milestones of a response, each sent to the brain once."""

import asyncio
from typing import Final

import msgspec

from gateway.core import events as ev
from gateway.responses.observer import ResponseObserver
from gateway.server.proxy.ticket import Ticket

# No time at all would need a task (`upstream/one_shot.py`).
_PAUSE_S: Final = 1e-3


async def catch_up(observer: ResponseObserver) -> None:
    while observer.has_backlog:
        await asyncio.sleep(_PAUSE_S)
        observer.feed(b"")


class Milestones(msgspec.Struct):
    ticket: Ticket
    observer: ResponseObserver
    status: int
    saw_first_token: bool = False
    calls: int = 0
    closed: int = 0
    states: int = 0

    def emit(self) -> None:
        """What is new; an error has no milestones."""
        if self.status >= 400:
            return
        seen, ticket = self.observer.seen, self.ticket
        if not self.saw_first_token and seen.has_first_token:
            self.saw_first_token = True
            ticket.send(ev.FirstTokenSeen(ticket.request))
        while self.calls < len(seen.tool_calls):
            ticket.send(ev.ToolCallSeen(ticket.request, seen.tool_calls[self.calls]))
            self.calls += 1
        while self.closed < len(seen.closed_calls):
            if self.observer.is_stream:
                ticket.send(ev.ToolCallClosed(ticket.request, seen.closed_calls[self.closed]))
            ticket.hand_over(seen, self.closed)
            self.closed += 1
        while self.states < len(seen.state_ids):
            ticket.send(ev.StateMinted(ticket.request, seen.state_ids[self.states]))
            self.states += 1
