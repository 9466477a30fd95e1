"""What the messages of a WebSocket ask for: each turn is asked for as by HTTP, and sent when it may run."""

import asyncio
import logging
from collections.abc import Callable
from http import HTTPStatus
from typing import Final, Protocol

import msgspec

from gateway.config.holding import HoldingConfig
from gateway.config.http_limits import HttpLimits
from gateway.core import refusals
from gateway.core.commands import Dispatch, PrefillLeg, Refuse
from gateway.domain.decision import Refusal, RefusalReason
from gateway.domain.ids import ReplicaId
from gateway.domain.request import RequestFacts
from gateway.server.asking import Asking
from gateway.server.driver import Ticket
from gateway.server.reading import READ_AT_ONCE
from gateway.server.receipts import receipts
from gateway.server.request_head import RequestHead
from gateway.server.request_parser import HttpRequest
from gateway.server.websocket_lanes import Item
from gateway.server.websocket_turns import Turns
from gateway.upstream.moments import Moment
from gateway.upstream.replica import Replica
from gateway.wire.kv_fields import may_have_kv_fields
from gateway.wire.response_frames import Asked, read_asked, reading_asked
from gateway.wire.websocket_frames import Opcode

_log: Final = logging.getLogger(__name__)


class Means(msgspec.Struct, frozen=True):
    """What every WebSocket of this process shares."""

    asking: Asking
    limits: HttpLimits
    holding: HoldingConfig
    idle_s: float
    with_receipts: bool
    is_leaving: Callable[[Replica], bool]
    suspect: Callable[[ReplicaId], None]
    """Has a replica asked how it is."""


async def read_message(data: bytes, means: Means) -> Asked | None:
    """Raises Oversized."""
    if len(data) < READ_AT_ONCE:
        return read_asked(data)
    return await means.asking.driver.in_slices(reading_asked(data))


async def _decision_of(
    ticket: Ticket, means: Means, keep_alive: Callable[[], None]
) -> Dispatch | Refuse | PrefillLeg:
    """`keep_alive`: tells the client that it waits; called now and then while it does."""
    decision = ticket.decided()
    if decision is not None:
        return decision
    holding, call_later = means.holding, means.asking.driver.call_later
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


class Line(Protocol):
    """The connection, for who passes its messages on."""

    @property
    def is_ending(self) -> bool: ...
    def send(self, opcode: Opcode, data: bytes) -> None: ...
    def send_turn(self, opcode: Opcode, data: bytes) -> None: ...
    def refuse(self, refusal: Refusal, stream: str | None, told: bytes = b"") -> None: ...
    def keep_alive(self) -> None: ...
    def abort(self) -> None: ...


class AskedTurns:
    def __init__(
        self, line: Line, turns: Turns, replica: Replica, head: RequestHead, means: Means, *, most: int
    ) -> None:
        """`turns`: those that were sent; `head`: of the requests that messages are taken for; `most`: turns
        at once."""
        self.head = head
        self._line = line
        self._turns = turns
        self._replica = replica
        self._means = means
        self._asking = means.asking
        self._may_move_kv = head.visitor.tenant.may_move_kv
        self._most = most
        self._undecided = 0
        self._full: list[Moment] = []
        """Of turns that wait until there are fewer."""
        self._takes_priority = True

    async def pass_on(self, item: Item) -> None:
        try:
            await self._pass_on(item)
        except Exception:  # noqa: BLE001 - a bug of ours costs one connection, never the process
            _log.exception("a message of a WebSocket failed inside the gateway")
            self._line.abort()

    def tell_of_room(self) -> None:
        """There are fewer turns. To be called last: those that wait go on before this returns."""
        full, self._full = self._full, []
        for each in full:
            each.come()

    async def _pass_on(self, item: Item) -> None:
        asked, line = item.asked, self._line
        if asked is None and self._asking.are_keys_required:
            # Backends read more than we do: it may name another tenant's response.
            unread = "The message could not be read."
            line.refuse(Refusal(reason=RefusalReason.MALFORMED_HTTP, message=unread), None)
        elif asked is not None and asked.is_create:
            await self._ask(item)
        elif not self._may_move_kv and await self._asking.driver.in_slices(may_have_kv_fields(item.data)):
            line.refuse(refusals.moves_kv(), None)
        else:
            line.send(item.opcode, item.data)

    async def _ask(self, item: Item) -> None:
        asking, request = self._asking, HttpRequest(self.head, item.data)
        self.head = _without_news(self.head)
        facts = msgspec.structs.replace(await asking.read(request), stream=True)
        refusal = asking.refusal_of(request, facts)
        if refusal is not None:
            self._line.refuse(refusal, item.stream)
            return
        await asking.is_ours(request, facts, None)
        while self._turns.running + self._undecided >= self._most:
            self._full.append(fewer := Moment())
            await fewer
        self._undecided += 1
        try:
            ticket = await asking.open(request, facts, only=self._replica.id)
            try:
                await self._send_or_refuse(ticket, request, facts, item)
            except BaseException:
                ticket.__exit__(None, None, None)
                raise
        finally:
            self._undecided -= 1
        self.tell_of_room()

    async def _send_or_refuse(
        self, ticket: Ticket, request: HttpRequest, facts: RequestFacts, item: Item
    ) -> None:
        """As the brain decides. The ticket of what was sent is closed when its answer is over."""
        asking, replica, line = self._asking, self._replica, self._line
        ticket.on_cancel = lambda *_: line.abort()
        decision = await _decision_of(ticket, self._means, line.keep_alive)
        if type(decision) is Dispatch and not line.is_ending:
            priority = asking.priority(request, replica, decision) if self._takes_priority else None
            message = asking.message(decision, request, facts, replica, priority)
            kept = asking.keep(ticket, decision, request, facts)
            said = asking.listener(ticket, decision, request, facts, kept)
            model = decision.model or facts.model
            self._turns.begin(ticket, item.stream, lambda status: self._failed(status, model), said)
            line.send_turn(item.opcode, message)
            return
        if type(decision) is Refuse:
            told = receipts(decision) if self._means.with_receipts else b""
            line.refuse(decision.refusal, item.stream, told)
        ticket.__exit__(None, None, None)

    def _failed(self, status: int, model: str | None) -> None:
        """The replica answered a turn so."""
        if status == HTTPStatus.NOT_FOUND:
            self._asking.not_found(self._replica, model)
        elif status == HTTPStatus.BAD_REQUEST:
            self._takes_priority = False  # that may be why, and the client has been told


def _without_news(head: RequestHead) -> RequestHead:
    """The same for the messages that follow: what it says of its tools is news once, and so is a retry."""
    if not head.facts.tool_times and head.facts.attempt is None:
        return head
    return msgspec.structs.replace(
        head, facts=msgspec.structs.replace(head.facts, tool_times=(), attempt=None), passed_on={}
    )
