"""The byte pump: what a replica sends goes straight to the client, and is looked at afterwards.

Every read is written on before the next read; no event is held back, nothing is re-encoded. While the
client does not read, the replica's socket is not read either, also if the client stopped reading before
this response began. If the replica dies in the middle, the client's connection is cut, because several
clients take a clean end for success. So is it if the end of the replica's connection is all that says that a
stream is over.
"""

import asyncio
from collections.abc import Callable
from typing import Final

import msgspec

from gateway.core import events as ev
from gateway.domain.request import Answer
from gateway.responses.observer import ResponseObserver
from gateway.server.http.client_connection import ClientConnection
from gateway.server.http.connection_states import State
from gateway.server.http.request_head import RequestHead
from gateway.server.http.response_writer import Framing
from gateway.server.proxy.ticket import Ticket
from gateway.upstream.connection import UpstreamConnection
from gateway.upstream.errors import AnswerCut
from gateway.upstream.response_head import ResponseHead

_ANSWERING: Final = State.ANSWERING  # looked up once: each event needs it
# Takes body bytes, in order, and whether they are the last.
Write = Callable[[list[bytes], bool], None]
# No time at all would need a task (`upstream/one_shot.py`).
_PAUSE_S: Final = 1e-3


async def catch_up(observer: ResponseObserver) -> None:
    while observer.has_backlog:
        await asyncio.sleep(_PAUSE_S)
        observer.feed(b"")


class Milestones(msgspec.Struct):
    """Of a response, each sent to the brain once."""

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


class BytePump:
    """The body of one response on its way."""

    def __init__(
        self,
        client: ClientConnection,
        upstream: UpstreamConnection,
        head: ResponseHead,
        ticket: Ticket,
        observer: ResponseObserver,
        write: Write,
    ) -> None:
        """`write`: where the body goes, by which it gets to the client in one form or another."""
        self._client = client
        self._upstream = upstream
        self._head = head
        self._ticket = ticket
        self._observer = observer
        self._write = write
        self._emit = Milestones(ticket, observer, head.status).emit
        self._is_short = False

    async def run(self) -> bool:
        client, upstream = self._client, self._upstream
        self._ticket.send(ev.ResponseStarted(self._ticket.request, self._head.status))
        self._ticket.seen = self._answer
        client.bind_source(upstream)
        try:
            may_pass = self._write == client.write and client.framing is Framing.CHUNKED
            upstream.set_sink(self._pump, self._pass_on if may_pass else None)
            if client.held_head:
                client.flush_head()
            await upstream.done
            if self._is_short:
                raise AnswerCut("the stream ended before its last event")
            if self._observer.has_backlog:
                await catch_up(self._observer)
        except AnswerCut as cut:
            self._ticket.cut(self._answer(), str(cut))
            client.abort()
            return False
        except asyncio.CancelledError:
            if self._observer.seen.has_terminal or upstream.done.has_come:  # it left with the whole answer
                self._ticket.finished(self._answer())
            raise
        finally:
            client.bind_source(None)  # the replica's connection may be used again, and must not stay paused
        self._ticket.finished(self._answer(is_over=True))
        return True

    def _pump(self, parts: list[bytes], is_last: bool) -> None:
        if is_last and not self._head.has_framing:
            self._observer.feed(b"".join(parts))
            answer = answer_of(self._observer, self._head, is_over=True)
            self._is_short = self._observer.is_stream and answer.failure == "truncated"
            self._write(parts, not self._is_short)
            return
        self._write(parts, is_last)
        # One chunk a read: the observer's work is per call more than per byte.
        if self._observer.feed(parts[0] if len(parts) == 1 else b"".join(parts)):
            self._emit()

    def _pass_on(self, chunk: bytes, part: bytes) -> None:
        client = self._client
        if client.state is _ANSWERING and not client.held_head:
            client.transport.write(chunk)
        else:
            self._write([part], False)
        if self._observer.feed(part):
            self._emit()

    def _answer(self, *, is_over: bool = False) -> Answer:
        answer = answer_of(self._observer, self._head, is_over=is_over)
        self._emit()
        return answer


def framing_of(head: ResponseHead, request: RequestHead) -> Framing:
    if head.is_empty:
        return Framing.NONE
    if head.has_length:
        return Framing.LENGTH
    return Framing.CLOSE if request.is_http_1_0 else Framing.CHUNKED


async def pass_whole(
    write: Write,
    parts: list[bytes],
    head: ResponseHead,
    ticket: Ticket,
    observer: ResponseObserver,
) -> None:
    write(parts, True)
    observer.feed(parts[0] if len(parts) == 1 else b"".join(parts))
    try:
        if observer.has_backlog:
            await catch_up(observer)
    finally:  # also if its client leaves meanwhile, with the whole answer in hand
        answer = answer_of(observer, head, is_over=True)
        if head.status < 400:
            for number in range(len(observer.seen.closed_calls)):
                ticket.hand_over(observer.seen, number)
        ticket.answered_at_once(answer, has_first_token=observer.seen.has_first_token and answer.is_good)


def answer_of(observer: ResponseObserver, head: ResponseHead, *, is_over: bool) -> Answer:
    answer = observer.answer(head.status, is_over=is_over and not head.is_empty)
    # When the client is to come again; it will, to the millisecond. Dates are left unread.
    wait_s = head.retry_after or ""
    if head.status >= 400 and wait_s.isdecimal() and len(wait_s) < 7:
        answer = msgspec.structs.replace(answer, retry_after_s=float(wait_s))
    return answer
