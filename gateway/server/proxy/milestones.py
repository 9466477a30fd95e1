"""Milestones of a response, each sent to the brain once."""

import asyncio
from typing import Final

from gateway.core import events as ev
from gateway.responses.observer import ResponseObserver
from gateway.server.proxy.driver import Ticket

# No time at all would need a task (`upstream/one_shot.py`).
_PAUSE_S: Final = 1e-3


async def catch_up(observer: ResponseObserver) -> None:
    while observer.has_backlog:
        await asyncio.sleep(_PAUSE_S)
        observer.feed(b"")


class Milestones:
    def __init__(self, ticket: Ticket, observer: ResponseObserver) -> None:
        self._ticket = ticket
        self._observer = observer
        self._saw_first_token = False
        self._calls = 0
        self._closed = 0
        self._states = 0

    def emit(self) -> None:
        seen, ticket = self._observer.seen, self._ticket
        if not self._saw_first_token and seen.has_first_token:
            self._saw_first_token = True
            ticket.send(ev.FirstTokenSeen(ticket.request))
        while self._calls < len(seen.tool_calls):
            ticket.send(ev.ToolCallSeen(ticket.request, seen.tool_calls[self._calls]))
            self._calls += 1
        while self._closed < len(seen.closed_calls):
            call = seen.closed_calls[self._closed]
            if self._observer.is_stream:
                ticket.send(ev.ToolCallClosed(ticket.request, call))
            if ticket.hands_over_calls:
                ticket.hand_over(call, seen.arguments_of(self._closed))
            self._closed += 1
        while self._states < len(seen.state_ids):
            ticket.send(ev.StateMinted(ticket.request, seen.state_ids[self._states]))
            self._states += 1
