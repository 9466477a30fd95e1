"""One WebSocket: a client's messages to its replica, and what the replica sends back to the client.

Each `response.create` is a turn like any other: the brain says when it may go on, and where is settled, for
the replica keeps what the connection said. What its stream sends behind it waits until it was sent. From the
replica every read is written on as it came, and looked at afterwards; while the client does not read, the
replica is not read either, and the other way round. Pings, pongs and closes are passed on, past what waits.

When it ends by our doing, the client is told what runs no further, if that can be told between two messages,
and then that it ends; a client whose message was cut in the middle is cut, too.

Invariant: of a client no more is held than one message of each of `_MOST_AT_ONCE` streams and what one read
brought; all of it is counted against the budget.
"""

import asyncio
import logging
import secrets
from collections import deque
from typing import Final

from gateway.domain.decision import Refusal, RefusalReason
from gateway.server.connection import ClientConnection
from gateway.server.request_head import RequestHead, no_room
from gateway.server.websocket_asking import AskedTurns, Means, read_message
from gateway.server.websocket_lanes import Item, Lanes
from gateway.server.websocket_turns import Turns
from gateway.upstream.moments import Moment
from gateway.upstream.replica import Replica
from gateway.upstream.websocket import UpstreamWebSocket
from gateway.wire.body import Oversized
from gateway.wire.headers import get_header
from gateway.wire.response_frames import KEEP_ALIVE, error_event
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

_log: Final = logging.getLogger(__name__)
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
        self._means = means
        self._tenant = head.visitor.tenant.id
        self._is_codex = "codex" in (get_header(head.headers, b"user-agent") or "").lower()
        most = means.limits.max_body_bytes
        self._from_client = FrameReader(is_masked=True, keeps=most, max_bytes=most)
        self._from_replica = FrameReader(is_masked=False, keeps=MAX_EVENT_BYTES)
        self._waiting: deque[Message] = deque()
        self._waiting_bytes = 0
        self._current: Message | None = None
        """The message that is being read."""
        self._counted = 0
        """What is held of the budget."""
        self._turns = Turns()
        """Those that were sent."""
        self._asked = AskedTurns(self, self._turns, replica, head, means, most=_MOST_AT_ONCE)
        self._lanes = Lanes(self._asked.pass_on, self._passed, most=_MOST_AT_ONCE)
        self._untold: list[bytes] = []
        """Refusals, as frames, for want of a place between two messages."""
        self._news: Moment | None = None
        """Of which the coroutine waits: a message, or room for it."""
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
                await self._hand_on(message)
                self._current = None
                self._passed()
        finally:
            self._client.follow(None)
            self._lanes.close()
            self._turns.leave()
            self._waiting.clear()
            self._client.budget.give_back(self._tenant, self._counted)

    def _passed(self) -> None:
        """A message was passed on, or refused."""
        self._account()
        self._read_on()
        self._end_if_drained()
        self._tell()

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
                self.send(message.opcode, message.data or b"")
            elif not self._is_revoked:
                self._waiting.append(message)
                self._waiting_bytes += len(message.data or b"")
        if self._ending_s is not None:
            return
        if not self._account():
            refusal = no_room()
            self._end(CloseCode.TRY_AGAIN_LATER, refusal.message, refusal)
            return
        if not self._may_read_on:
            self._client.hold_off()
        if self._waiting:
            self._tell()

    def _account(self) -> bool:
        """Counts what is held of the client's; False, and nothing taken, if there is no room."""
        current = self._current.data if self._current is not None else None
        held = self._from_client.held_bytes + self._waiting_bytes + self._lanes.held_bytes
        held += len(current or b"")
        if held > self._counted and not self._client.budget.take(self._tenant, held - self._counted):
            return False
        if held < self._counted:
            self._client.budget.give_back(self._tenant, self._counted - held)
        self._counted = held
        return True

    @property
    def _may_read_on(self) -> bool:
        return self._waiting_bytes + self._lanes.behind_bytes <= _MAX_WAITING_BYTES

    def _read_on(self) -> None:
        if self._takes_more and self._may_read_on:
            self._client.read_on()

    async def _hand_on(self, message: Message) -> None:
        """To its stream."""
        self._used_s = self._now()
        item = Item(message.opcode, message.data or b"", None)
        try:
            item.asked = await read_message(item.data, self._means)
        except Oversized:
            # Whether a turn begins is not known, so it cannot be passed on unread, as by HTTP.
            too_much = "The message has more values than can be read."
            self.refuse(Refusal(reason=RefusalReason.BODY_TOO_LARGE, message=too_much), None)
            return
        while not self._lanes.have_room(item.stream):
            await self._more()
        if self._ending_s is None:
            self._lanes.put(item)

    def keep_alive(self) -> None:
        """A turn waits."""
        if self.is_ending or self._client.is_paused:
            return
        if not self._is_codex and self._from_replica.is_between_frames:
            self._client.send(frame(Opcode.PING, b""))
        elif self._is_codex and self._from_replica.is_between_messages:
            self._client.send(frame(Opcode.TEXT, KEEP_ALIVE))

    @property
    def is_ending(self) -> bool:
        return self._ending_s is not None

    def abort(self) -> None:
        self._client.abort()

    def send_turn(self, opcode: Opcode, data: bytes) -> None:
        """To the replica, like what follows."""
        if self._turns.running == 1:
            self._upstream.last_read = self._now()  # it was silent because nobody asked
        self.send(opcode, data)

    def send(self, opcode: Opcode, data: bytes) -> None:
        self._upstream.send(frame(opcode, data, secrets.token_bytes(4)))

    def refuse(self, refusal: Refusal, stream: str | None, told: bytes = b"") -> None:
        """One response is not to be had; the connection goes on. `told`: header lines."""
        self._untold.append(frame(Opcode.TEXT, error_event(refusal, stream, told)))
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
            self._asked.tell_of_room()

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
        return self._asked.head

    def revoke(self) -> None:
        """Its client's credentials count no more: what runs may end, and nothing else begins."""
        self._is_revoked = True
        self._forget_what_waits()
        self._account()
        self.drain()

    def _forget_what_waits(self) -> None:
        self._waiting.clear()
        self._waiting_bytes = 0
        self._lanes.forget_those_behind()

    def drain(self) -> None:
        """To be ended as soon as no response runs."""
        self._is_draining = True
        self._end_if_drained()

    @property
    def _is_passing_on(self) -> bool:
        return self._current is not None or bool(self._lanes)

    def _end_if_drained(self) -> None:
        if self._is_draining and not (self._turns.running or self._waiting or self._is_passing_on):
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
        elif now - self._used_s > self._means.idle_s and not self._is_passing_on:
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
        self.send(Opcode.CLOSE, message.data or b"")
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
        self._forget_what_waits()
        self.send(Opcode.CLOSE, close_payload(CloseCode.GOING_AWAY, ""))
        if not self._has_closed_client and self._from_replica.is_between_frames:
            if refusal is not None and self._from_replica.is_between_messages:
                self._client.send(frame(Opcode.TEXT, error_event(refusal, None)))
            self._client.send(frame(Opcode.CLOSE, close_payload(code, why)))
            self._client.read_on()
        else:
            self._client.abort()
        self._has_closed_client = True
