"""The byte pump: what a replica sends goes straight to the client, and is looked at afterwards.

Every read is written on before the next read; no event is held back, nothing is re-encoded. If the
client reads more slowly than the replica writes, the replica's socket is not read for a while. If the
replica dies in the middle, the client's connection is cut, because several clients take a clean end for
success.
"""

import asyncio

import msgspec

from gateway.domain.request import Answer
from gateway.server.connection import ClientConnection, Framing
from gateway.server.driver import Ticket
from gateway.upstream.connection import ResponseHead, UpstreamConnection
from gateway.upstream.errors import AnswerCut
from gateway.wire.headers import RawHeaders, get_header
from gateway.wire.hop_by_hop import end_to_end
from gateway.wire.observer import ResponseObserver


class Relay:
    """One response on its way."""

    def __init__(
        self,
        client: ClientConnection,
        upstream: UpstreamConnection,
        head: ResponseHead,
        ticket: Ticket,
        observer: ResponseObserver,
    ) -> None:
        self._client = client
        self._upstream = upstream
        self._head = head
        self._ticket = ticket
        self._observer = observer
        self._is_paused = False
        self._saw_first_token = False
        self._told_calls = 0
        self._told_states = 0
        ticket.seen = self.answer

    def answer(self) -> Answer:
        """What has been seen so far, and told to the brain."""
        answer = self._observer.answer(self._head.status)
        self._tell()
        if self._head.status >= 400 and (wait_s := _retry_after_s(self._head.headers)) is not None:
            answer = msgspec.structs.replace(answer, retry_after_s=wait_s)
        return answer

    @property
    def is_waiting_for_replica(self) -> bool:
        return not self._is_paused and not self._upstream.done.done()

    async def run(self, receipts: RawHeaders, *, is_http_1_0: bool) -> bool:
        """Passes the response on to its end. Whether the replica's connection is fit for reuse."""
        client, upstream = self._client, self._upstream
        self._ticket.response_started(self._head.status)
        status_line = b"HTTP/1.1 %d %s" % (self._head.status, self._head.reason)
        headers = [*end_to_end(self._head.headers), *receipts]
        client.start_response(status_line, headers, self._framing(is_http_1_0))
        client.on_pause, client.on_resume = self._pause, self._resume
        try:
            upstream.set_sink(self._pump)
            client.flush_head()
            await upstream.done
        except AnswerCut as cut:
            self._ticket.cut(self.answer(), str(cut))
            client.abort()
            return False
        except asyncio.CancelledError:
            if self._observer.has_terminal:  # it left with the whole answer in hand
                self._ticket.finished(self.answer())
            raise
        finally:
            client.on_pause = client.on_resume = _nothing
        client.end_response()
        self._ticket.finished(self.answer())
        return True

    def give_up(self) -> None:
        """The replica has been silent for too long."""
        if not self._upstream.done.done():
            self._upstream.done.set_exception(AnswerCut("the replica stopped sending"))

    def _framing(self, is_http_1_0: bool) -> Framing:
        if self._head.is_empty:
            return Framing.NONE
        if self._head.has_length:
            return Framing.LENGTH
        return Framing.CLOSE if is_http_1_0 else Framing.CHUNKED

    def _pump(self, parts: list[bytes]) -> None:
        self._client.write(parts)
        # One chunk a read: the observer's work is per call more than per byte.
        self._observer.feed(parts[0] if len(parts) == 1 else b"".join(parts))
        self._tell()

    def _tell(self) -> None:
        """Milestones that are new since the last time."""
        observer = self._observer
        if self._head.status >= 400:
            return
        if observer.has_first_token and not self._saw_first_token:
            self._saw_first_token = True
            self._ticket.first_token_seen()
        while self._told_calls < len(observer.tool_calls):
            self._ticket.tool_call_seen(observer.tool_calls[self._told_calls])
            self._told_calls += 1
        while self._told_states < len(observer.state_ids):
            self._ticket.state_minted(observer.state_ids[self._told_states])
            self._told_states += 1

    def _pause(self) -> None:
        self._is_paused = True
        self._upstream.pause()

    def _resume(self) -> None:
        self._is_paused = False
        self._upstream.resume()


def _retry_after_s(headers: RawHeaders) -> float | None:
    """When the client was told to come again; it will, to the millisecond. Dates are left unread."""
    text = get_header(headers, b"retry-after")
    return float(text) if text is not None and text.isdecimal() and len(text) < 7 else None


def _nothing() -> None:
    pass
