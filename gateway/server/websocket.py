"""One WebSocket: a client's messages to its replica, and what the replica sends back to the client.

Each `response.create` is a turn like any other: the brain says when it may go on, and where is settled, for
the replica keeps what the connection said. What stands behind it waits until it was sent. From the replica
every read is written on as it came, and looked at afterwards; while the client does not read, the replica is
not read either, and the other way round. Pings, pongs and closes are passed on, past what waits.

When it ends by our doing, the client is told what runs no further, if that can be told between two messages,
and then that it ends; a client whose message was cut in the middle is cut, too.

Invariant: of a client no more is held than one message and what one read brought.
"""

import asyncio
import secrets
from collections import deque
from typing import Final

from gateway.core import refusals
from gateway.core.commands import Dispatch, Refuse
from gateway.domain.decision import Refusal, RefusalReason
from gateway.server.connection import ClientConnection
from gateway.server.request_head import RequestHead, no_room
from gateway.server.request_parser import HttpRequest
from gateway.server.websocket_asking import (
    Means,
    decision_of,
    message_for,
    read_facts,
    read_message,
    without_news,
)
from gateway.server.websocket_turns import Turns
from gateway.upstream.moments import Moment
from gateway.upstream.replica import Replica
from gateway.upstream.websocket import UpstreamWebSocket
from gateway.wire.body import Oversized
from gateway.wire.headers import get_header
from gateway.wire.kv_fields import may_have_kv_fields
from gateway.wire.response_frames import (
    KEEP_ALIVE,
    Asked,
    error_event,
)
from gateway.wire.sse import MAX_EVENT_BYTES
from gateway.wire.websocket_frames import (
    CloseCode,
    FrameError,
    FrameReader,
    Message,
    Opcode,
    close_payload,
    frame,
)

_MAX_WAITING_BYTES: Final = 64 << 10
"""Of messages that wait. Beyond it the client is not read until there are fewer."""
_MOST_AT_ONCE: Final = 16
"""Turns of one connection, as many as OpenAI's server runs of one; those behind them wait."""


class WebSocket:
    def __init__(
        self,
        client: ClientConnection,
        upstream: UpstreamWebSocket,
        replica: Replica,
        head: RequestHead,
        means: Means,
    ) -> None:
        """`head`: of the requests that messages are taken for."""
        self.replica = replica
        self._client = client
        self._upstream = upstream
        self._head = head
        self._means = means
        self._tenant = head.visitor.tenant.id
        self._may_move_kv = head.visitor.tenant.may_move_kv
        self._is_codex = "codex" in (get_header(head.headers, b"user-agent") or "").lower()
        most = means.limits.max_body_bytes
        self._from_client = FrameReader(is_masked=True, keeps=most, max_bytes=most)
        self._from_replica = FrameReader(is_masked=False, keeps=MAX_EVENT_BYTES)
        self._waiting: deque[Message] = deque()
        self._waiting_bytes = 0
        self._current: Message | None = None
        """The message that is being passed on."""
        self._counted = 0
        """What is held of the budget."""
        self._turns = Turns()
        """Those that were sent."""
        self._untold: list[bytes] = []
        """Refusals, as frames, for want of a place between two messages."""
        self._news: Moment | None = None
        """Of which the coroutine waits: a message, or a turn less."""
        self._now = asyncio.get_running_loop().time
        self._used_s = self._now()
        self._takes_more = True
        self._ending_s: float | None = None
        """Since when it ends."""
        self._has_closed_client = False
        """A close is the last that the client got."""
        self._has_client_closed = False
        self._is_draining = self._is_revoked = False

    # --- the client's messages -------------------------------------------------------------------

    async def run(self) -> None:
        """Passes messages on until the client is gone, which cancels this."""
        self._client.follow(self._upstream)
        try:
            self._upstream.listen(self)
            while True:
                while not self._waiting:
                    await self._more()
                self._current = message = self._waiting.popleft()
                self._waiting_bytes -= len(message.data or b"")
                await self._pass_on(message)
                self._current = None
                self._account()
                self._read_on()
                self._end_if_drained()
        finally:
            self._client.follow(None)
            self._turns.leave()
            self._waiting.clear()
            self._client.budget.give_back(self._tenant, self._counted)

    async def _more(self) -> None:
        self._news = Moment()
        await self._news

    def _tell(self) -> None:
        """To be called last: the coroutine goes on before this returns."""
        if self._news is not None:
            news, self._news = self._news, None
            news.come()

    def client_sent(self, data: bytes) -> None:
        if self._has_client_closed:
            return
        try:
            found = self._from_client.feed(data)
        except FrameError as error:
            refusal = None
            if error.code is CloseCode.TOO_BIG:
                refusal = Refusal(reason=RefusalReason.BODY_TOO_LARGE, message=f"{error}.")
            self._end(error.code, str(error), refusal)
            self._has_client_closed = True  # what follows cannot be read
            return
        for message in found:
            if message.opcode is Opcode.CLOSE:
                self._client_closed(message)
                return
            if self._ending_s is not None:
                continue
            if message.opcode in (Opcode.PING, Opcode.PONG):
                self._send(message.opcode, message.data or b"")
            elif not self._is_revoked:
                self._waiting.append(message)
                self._waiting_bytes += len(message.data or b"")
        if self._ending_s is not None:
            return
        if not self._account():
            refusal = no_room()
            self._end(CloseCode.TRY_AGAIN_LATER, refusal.message, refusal)
            return
        if self._waiting_bytes > _MAX_WAITING_BYTES:
            self._client.hold_off()
        if self._waiting:
            self._tell()

    def _account(self) -> bool:
        """Counts what is held of the client's; False, and nothing taken, if there is no room."""
        current = self._current.data if self._current is not None else None
        held = self._from_client.held_bytes + self._waiting_bytes + len(current or b"")
        if held > self._counted and not self._client.budget.take(self._tenant, held - self._counted):
            return False
        if held < self._counted:
            self._client.budget.give_back(self._tenant, self._counted - held)
        self._counted = held
        return True

    def _read_on(self) -> None:
        if self._takes_more and self._waiting_bytes <= _MAX_WAITING_BYTES:
            self._client.read_on()

    async def _pass_on(self, message: Message) -> None:
        data = message.data or b""
        self._used_s = self._now()
        try:
            asked = await read_message(data, self._means)
        except Oversized:
            # Whether a turn begins is not known, so it cannot be passed on unread, as by HTTP.
            too_much = "The message has more values than can be read."
            self._refuse(Refusal(reason=RefusalReason.BODY_TOO_LARGE, message=too_much), None)
            return
        if asked is None and self._means.are_keys_required:
            # Backends read more than we do: it may name another tenant's response.
            self._refuse(_unread(), None)
        elif asked is not None and asked.is_create:
            await self._ask(message.opcode, data, asked)
        elif not self._may_move_kv and await self._means.driver.in_slices(may_have_kv_fields(data)):
            self._refuse(refusals.moves_kv(), None)
        else:
            self._send(message.opcode, data)

    async def _ask(self, opcode: Opcode, data: bytes, asked: Asked) -> None:
        means, request = self._means, HttpRequest(self._head, data)
        self._head = without_news(self._head)
        facts = await read_facts(request, means)
        if not facts.is_readable and means.are_keys_required:
            self._refuse(_unread(), asked.stream)
            return
        if facts.moves_kv and not self._may_move_kv:
            self._refuse(refusals.moves_kv(), asked.stream)
            return
        while self._turns.running >= _MOST_AT_ONCE:
            await self._more()
        ticket = means.driver.open_ticket(self._tenant, facts, only=self.replica.id)
        ticket.on_cancel = lambda *_: self._client.abort()
        try:
            decision = await decision_of(ticket, means, self._keep_alive)
        except BaseException:
            ticket.__exit__(None, None, None)
            raise
        if type(decision) is Dispatch and self._ending_s is None:
            message = message_for(self.replica, decision, request, facts, means)
            if not self._turns.running:
                self._upstream.last_read = self._now()  # it was silent because nobody asked
            self._turns.begin(ticket, asked.stream)
            self._send(opcode, message)
            return
        if type(decision) is Refuse:
            self._refuse(decision.refusal, asked.stream)
        ticket.__exit__(None, None, None)

    def _keep_alive(self) -> None:
        """A turn waits."""
        if self._ending_s is not None or self._client.is_paused:
            return
        if not self._is_codex and self._from_replica.is_between_frames:
            self._client.send(frame(Opcode.PING, b""))
        elif self._is_codex and self._from_replica.is_between_messages:
            self._client.send(frame(Opcode.TEXT, KEEP_ALIVE))

    def _send(self, opcode: Opcode, data: bytes) -> None:
        self._upstream.send(frame(opcode, data, secrets.token_bytes(4)))

    def _refuse(self, refusal: Refusal, stream: str | None) -> None:
        """One response is not to be had; the connection goes on."""
        self._untold.append(frame(Opcode.TEXT, error_event(refusal, stream)))
        self._tell_refusals()
        if len(self._untold) > _MOST_AT_ONCE:
            self._end(CloseCode.TRY_AGAIN_LATER, refusal.message)

    def _tell_refusals(self) -> None:
        """As soon as the client stands between two messages."""
        if self._untold and self._from_replica.is_between_messages and self._ending_s is None:
            self._client.send(b"".join(self._untold))
            self._untold.clear()

    # --- what the replica sends ------------------------------------------------------------------

    def replica_sent(self, data: bytes) -> None:
        fault: FrameError | None = None
        try:
            found = self._from_replica.feed(data)
        except FrameError as error:
            fault, found, data = error, error.found, data[: error.good_bytes]
        if self._has_closed_client:
            return
        if data:
            self._client.send(data)
        self._tell_refusals()
        was_running = self._turns.running
        for message in found:
            if message.opcode is Opcode.CLOSE:
                self._replica_closed()
                return
            if message.data is not None and message.opcode in (Opcode.TEXT, Opcode.BINARY):
                self._used_s = self._upstream.last_read
                self._turns.see(message.data)
        if fault is not None:
            self._replica_failed(f"sent something that is no WebSocket: {fault}")
        elif self._turns.running < was_running:
            self._end_if_drained()
            self._tell()

    def replica_takes(self, *, more: bool) -> None:
        self._takes_more = more
        if more:
            self._read_on()
        else:
            self._client.hold_off()

    def replica_lost(self) -> None:
        if self._ending_s is not None:
            self._client.close()
        else:
            self._replica_failed("closed the connection")

    # --- how it ends -----------------------------------------------------------------------------

    @property
    def head(self) -> RequestHead:
        """Of the requests that messages are taken for: whose they are, and by what credentials."""
        return self._head

    def revoke(self) -> None:
        """Its client's credentials count no more: what runs may end, and nothing else begins."""
        self._is_revoked = True
        self._waiting.clear()
        self._waiting_bytes = 0
        self._account()
        self.drain()

    def drain(self) -> None:
        """To be ended as soon as no response runs."""
        self._is_draining = True
        self._end_if_drained()

    def _end_if_drained(self) -> None:
        if self._is_draining and not (self._turns.running or self._waiting or self._current):
            self._end(CloseCode.SERVICE_RESTART, "the connection has to be opened anew")

    def check(self, now: float) -> None:
        """Called about once a second."""
        if self._ending_s is not None:
            if now - self._ending_s > self._means.limits.linger_s:
                self._client.close()
        elif self._means.is_leaving(self.replica):
            self.drain()
        elif self._turns.running:
            if not self._client.is_paused and self.replica.is_stalled(self._upstream, now=now):
                self._replica_failed("stopped sending")
        elif now - self._used_s > self._means.idle_s and not self._current:
            self._end(CloseCode.GOING_AWAY, "nothing was asked for too long")

    def _replica_failed(self, what: str) -> None:
        why = f"the replica {what}"
        refusal = Refusal(reason=RefusalReason.UPSTREAM_BROKEN, message=f"The backend {what}.")
        streams = self._turns.cut(why)
        self._means.suspect(self.replica.id)
        if self._from_replica.is_between_messages and not self._has_closed_client:
            for stream in streams:
                self._client.send(frame(Opcode.TEXT, error_event(refusal, stream)))
        self._end(CloseCode.INTERNAL_ERROR if streams else CloseCode.SERVICE_RESTART, why)

    def _replica_closed(self) -> None:
        """The client has its close frame, and answers it."""
        self._turns.cut("the replica closed the WebSocket")
        self._has_closed_client = True
        self._ending_s = self._now()
        if self._has_client_closed:
            self._client.close()
        else:
            self._client.read_on()

    def _client_closed(self, message: Message) -> None:
        self._has_client_closed = True
        self._turns.leave()
        self._send(Opcode.CLOSE, message.data or b"")
        if self._has_closed_client:
            self._client.close()
        elif self._ending_s is None:
            self._ending_s = self._now()

    def _end(self, code: CloseCode, why: str, refusal: Refusal | None = None) -> None:
        """Tells both sides. The client may answer; then, or after a while, it is closed."""
        if self._ending_s is not None:
            return
        self._ending_s = self._now()
        self._turns.leave()
        self._waiting.clear()
        self._waiting_bytes = 0
        self._send(Opcode.CLOSE, close_payload(CloseCode.GOING_AWAY, ""))
        if not self._has_closed_client and self._from_replica.is_between_frames:
            if refusal is not None and self._from_replica.is_between_messages:
                self._client.send(frame(Opcode.TEXT, error_event(refusal, None)))
            self._client.send(frame(Opcode.CLOSE, close_payload(code, why)))
            self._client.read_on()
        else:
            self._client.abort()
        self._has_closed_client = True


def _unread() -> Refusal:
    return Refusal(reason=RefusalReason.MALFORMED_HTTP, message="The message could not be read.")
