"""What was seen of an answer, told to the brain: each milestone once."""

import asyncio
from typing import Final

from gateway.server.driver import Ticket
from gateway.wire.observer import ResponseObserver

_PAUSE_S: Final = 1e-3
"""No time at all would need a task (`upstream/moments.py`)."""


async def catch_up(observer: ResponseObserver) -> None:
    """All that has come is read, in slices."""
    while observer.is_behind:
        await asyncio.sleep(_PAUSE_S)
        observer.feed(b"")


class Milestones:
    def __init__(self, ticket: Ticket, observer: ResponseObserver) -> None:
        self._ticket = ticket
        self._observer = observer
        self._saw_first_token = False
        self._told_calls = 0
        self._told_closed = 0
        self._told_states = 0

    def tell(self) -> None:
        observer = self._observer
        if not self._saw_first_token and observer.has_first_token:
            self._saw_first_token = True
            self._ticket.first_token_seen()
        while self._told_calls < len(observer.tool_calls):
            self._ticket.tool_call_seen(observer.tool_calls[self._told_calls])
            self._told_calls += 1
        while self._told_closed < len(observer.closed_calls):
            call = observer.closed_calls[self._told_closed]
            if observer.is_stream:
                self._ticket.tool_call_closed(call)
            if self._ticket.is_asked_for_calls:
                self._ticket.hand_over(call, observer.arguments_of(self._told_closed))
            self._told_closed += 1
        while self._told_states < len(observer.state_ids):
            self._ticket.state_minted(observer.state_ids[self._told_states])
            self._told_states += 1
