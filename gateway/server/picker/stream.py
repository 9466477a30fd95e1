"""ONE request that passes through Envoy: it says what it is, and where it goes; its answer is looked at.

Envoy asks over one gRPC stream for each HTTP request. The same door, reading, brain and outbound headers as
those of the proxy decide; the bytes stay with Envoy, but for fields that are spliced into a body. A request
that may not go on now waits here, as its headers wait in Envoy. Whatever ends the stream ends the request in
the books: after the protocol's own end of the answer it has finished, else its client has left.
"""

import asyncio
import contextlib
import logging
from collections.abc import Awaitable, Callable, Coroutine, Mapping
from http import HTTPStatus
from typing import Any, Final

import msgspec

from gateway.config.http_limits import HttpLimits
from gateway.config.picker import PickerConfig
from gateway.core import refusals
from gateway.core.commands import Dispatch, Refuse
from gateway.domain.decision import Refusal, RefusalReason
from gateway.domain.ids import ReplicaId
from gateway.domain.request import Answer, Protocol, RequestFacts
from gateway.server.buffer_budget import BufferBudget
from gateway.server.door import Door, Visitor
from gateway.server.driver import Driver, Ticket
from gateway.server.judged_bodies import refusal_of
from gateway.server.milestones import Milestones
from gateway.server.outbound import Outbound
from gateway.server.picker import messages
from gateway.server.reading import READ_AT_ONCE, Reading
from gateway.server.receipts import receipts
from gateway.server.request_head import RequestHead, no_room, too_large
from gateway.server.request_parser import HttpRequest
from gateway.server.response_writer import refusal_parts
from gateway.server.spending import Spending
from gateway.server.tasks import TaskGroup
from gateway.upstream.errors import ConnectFailed
from gateway.upstream.moments import in_task
from gateway.upstream.replica import Replica
from gateway.wire.facts import read_header_facts
from gateway.wire.headers import RawHeaders, get_header
from gateway.wire.observer import ResponseObserver, observe

_log = logging.getLogger(__name__)

_OF_ENVOY: Final = frozenset((b"host", b"content-length", b"expect", b"transfer-encoding", b"connection"))
"""Envoy frames what it sends on."""
_PIECE: Final = 48 << 10
"""Bytes of a body in one message, where bodies are passed back; gRPC takes 4 MiB, Envoy's buffers 64 KiB."""


class Picking(msgspec.Struct, frozen=True):
    """What all streams share."""

    config: PickerConfig
    driver: Driver
    door: Door
    reading: Reading
    outbound: Outbound
    replicas: Mapping[ReplicaId, Replica]
    budget: BufferBudget
    limits: HttpLimits
    are_keys_required: bool
    with_receipts: bool
    spending: Spending | None
    tasks: TaskGroup


class _RefusedError(Exception):
    def __init__(self, refusal: Refusal, told: bytes = b"") -> None:
        super().__init__(refusal.message)
        self.refusal = refusal
        self.told = told


class Stream:
    def __init__(
        self, picking: Picking, peer: str, write: Callable[[Any], Coroutine[Any, Any, None]]
    ) -> None:
        """`peer`: Envoy's address; `write`: sends it a message."""
        self._write = write
        self._writing = asyncio.Lock()
        """gRPC takes one message at a time, and a session may be stopped while another one goes out."""
        self._picking = picking
        self._peer = peer
        self._head: RequestHead | None = None
        self._protocol = Protocol.CHAT
        self._body = bytearray()
        self._held = 0
        self._is_duplex = self._has_trailers = False
        self._answers_duplex = False
        self._ticket: Ticket | None = None
        self._told = b""
        self._observer: ResponseObserver | None = None
        self._milestones: Milestones | None = None
        self._status = 0
        self._replica: Replica | None = None
        """That was told in which order to take it."""
        self._stopped: Refusal | None = None
        self._stop = asyncio.Event()
        self._open = contextlib.ExitStack()

    async def run(self, read: Callable[[], Awaitable[Any]], end: object) -> None:
        """Answers Envoy's messages, in order. `read`: the next one, or `end`."""
        with self._open:
            try:
                while (message := await read()) is not end and self._stopped is None:
                    for reply in await self._answer(message):
                        await self._say(reply)
            except _RefusedError as error:
                await self._say(self._refusal(error))
            except Exception:  # noqa: BLE001 - a bug of ours costs one request, never the process
                _log.exception("a request failed inside the picker")
                await self._say(self._refusal(_RefusedError(refusals.internal())))
            finally:
                self._let_go()

    async def _say(self, reply: Any) -> None:
        async with self._writing:
            await self._write(reply)

    async def _answer(self, message: Any) -> list[Any]:
        if message.HasField("protocol_config"):
            self._is_duplex = message.protocol_config.request_body_mode == messages.FULL_DUPLEX
            self._answers_duplex = message.protocol_config.response_body_mode == messages.FULL_DUPLEX
        if message.HasField("request_headers"):
            return await self._request_began(message.request_headers)
        if message.HasField("request_body"):
            told = message.request_body
            return await self._body_came(told.body, told.end_of_stream or told.without_message)
        reply = messages.ProcessingResponse()
        if message.HasField("response_headers"):
            self._response_began(message.response_headers, reply.response_headers)
        elif message.HasField("response_body"):
            self._part_came(message.response_body)
            if self._answers_duplex:
                return _pieces(
                    "response_body", message.response_body.body, message.response_body.end_of_stream
                )
            reply.response_body.SetInParent()
        elif message.HasField("request_trailers"):
            self._has_trailers = True
            ended = await self._body_came(b"", True) if self._is_duplex else []
            reply.request_trailers.SetInParent()
            return [*ended, reply]
        elif message.HasField("response_trailers"):
            self._ended()
            reply.response_trailers.SetInParent()
        else:
            return []
        return [reply]

    # --- the request -------------------------------------------------------------------------------

    async def _request_began(self, told: Any) -> list[Any]:
        method, target, headers = "GET", b"/", list[tuple[bytes, bytes]]()
        for name, value in messages.headers_of(told):
            if name == b":method":
                method = value.decode("latin-1")
            elif name == b":path":
                target = value
            elif name == b":authority":
                headers.append((b"Host", value))
            elif not name.startswith(b":"):
                headers.append((name, value))
        door = self._picking.door
        self._protocol = door.protocol_of(target.partition(b"?")[0].decode("latin-1"))
        visitor = door.judge(method, target, headers, self._peer)
        if not isinstance(visitor, Visitor):
            raise _RefusedError(visitor)
        self._head = RequestHead(
            method=method,
            target=target,
            headers=headers,
            is_http_1_0=False,
            keep_alive=True,
            visitor=visitor,
            facts=read_header_facts(headers),
        )
        if told.end_of_stream:
            return await self._decide("request_headers", HttpRequest(self._head, b""))
        if self._is_duplex:
            return []  # Envoy sends the body without waiting for an answer, and the headers on with one
        reply = messages.ProcessingResponse()
        reply.request_headers.SetInParent()
        return [reply]

    async def _body_came(self, part: bytes, is_last: bool) -> list[Any]:
        assert self._head is not None
        picking = self._picking
        if len(self._body) + len(part) > picking.limits.max_body_bytes:
            raise _RefusedError(too_large(picking.limits).refusal)
        if not picking.budget.take(self._head.visitor.tenant.id, len(part)):
            raise _RefusedError(no_room())
        self._held += len(part)
        self._body += part
        if not is_last:
            return []
        body = bytes(self._body)
        self._body.clear()
        try:
            return await self._decide("request_body", HttpRequest(self._head, body))
        finally:
            self._let_go()

    def _let_go(self) -> None:
        if self._held and self._head is not None:
            self._picking.budget.give_back(self._head.visitor.tenant.id, self._held)
            self._held = 0

    async def _decide(self, field: str, request: HttpRequest) -> list[Any]:
        picking, visitor = self._picking, request.head.visitor
        if len(request.body) < READ_AT_ONCE and not request.head.facts.coding:
            facts = picking.reading.at_once(visitor.endpoint, request)
        else:
            facts = await in_task(picking.reading.in_slices(visitor.endpoint, request))
        refusal = refusal_of(request, facts, are_keys_required=picking.are_keys_required)
        if refusal is not None:
            raise _RefusedError(refusal)
        reserved = None
        if picking.spending is not None:
            reserved = await in_task(picking.spending.reserve(visitor.tenant.id, facts))
        ticket = self._ticket = picking.driver.open_ticket(visitor.tenant.id, facts, reserved)
        self._open.enter_context(ticket)
        ticket.on_cancel = self._cancelled
        decision, replica = await self._placed(ticket)
        if picking.with_receipts:
            self._told = receipts(decision)
        return await self._sent_to(field, request, facts, decision, replica)

    async def _placed(self, ticket: Ticket) -> tuple[Dispatch, Replica]:
        within_s = self._picking.config.max_wait_s
        while True:
            decision = ticket.decided()
            if decision is None:
                decision = await self._within(within_s, ticket.decision)
            if type(decision) is Refuse:
                raise _RefusedError(
                    decision.refusal, receipts(decision) if self._picking.with_receipts else b""
                )
            assert type(decision) is Dispatch  # prompts are not computed on other replicas: `check_picker`
            replica = self._picking.replicas.get(decision.placement.replica)
            if replica is not None:
                return decision, replica
            ticket.attempt_failed(ConnectFailed("the replica left"), was_sent=False)

    async def _within(self, limit_s: float, work: Callable[[], Any]) -> Any:
        deciding = asyncio.ensure_future(in_task(work()))  # noqa: TID251 - awaited, or cancelled, below
        stopping = asyncio.ensure_future(self._stop.wait())  # noqa: TID251 - the same
        try:
            await asyncio.wait((deciding, stopping), timeout=limit_s, return_when=asyncio.FIRST_COMPLETED)
            if deciding.done():
                return deciding.result()
            if self._stopped is not None:
                raise _RefusedError(self._stopped)
            message = f"No replica had room within {limit_s:g} s."
            raise _RefusedError(Refusal(reason=RefusalReason.QUEUE_TIMEOUT, message=message, retry_after_s=5))
        finally:
            deciding.cancel()
            stopping.cancel()

    async def _sent_to(
        self, field: str, request: HttpRequest, facts: RequestFacts, decision: Dispatch, replica: Replica
    ) -> list[Any]:
        """What Envoy is to send is what the proxy would."""
        picking = self._picking
        abilities = picking.driver.coordinator.fleet.abilities(replica.id)
        priority = picking.outbound.priority(request, replica, abilities, decision.priority)
        self._replica = replica if priority is not None else None
        first, *rest = picking.outbound.chunks(
            request,
            replica,
            abilities,
            decision.session,
            hint=decision.hint,
            rank=decision.rank,
            is_readable=facts.is_readable,
            model=decision.model if decision.model != facts.model else None,
            priority=priority,
        )
        lines, _, begun = bytes(first).partition(b"\r\n\r\n")
        body = b"".join((begun, *rest))
        reply = messages.ProcessingResponse()
        common = getattr(reply, field).response
        common.clear_route_cache = True
        _follow(common.header_mutation, request.head, lines, replica)
        endpoint = await replica.endpoint()
        messages.mutate(common.header_mutation, [(messages.DESTINATION.encode(), endpoint.encode())])
        messages.tell_destination(reply, endpoint)
        if self._is_duplex and field == "request_body":
            if body != request.body:
                common.header_mutation.remove_headers.append("content-length")
            sent = messages.ProcessingResponse()
            sent.request_headers.CopyFrom(reply.request_body)
            sent.dynamic_metadata.CopyFrom(reply.dynamic_metadata)
            return [sent, *_pieces("request_body", body, not self._has_trailers)]
        if body != request.body:
            common.body_mutation.body = body
            messages.mutate(common.header_mutation, [(b"content-length", b"%d" % len(body))])
        return [reply]

    # --- the answer --------------------------------------------------------------------------------

    def _response_began(self, told: Any, reply: Any) -> None:
        headers = messages.headers_of(told)
        status = get_header(headers, b":status") or "502"
        self._status = int(status) if status.isdecimal() else 502
        if self._status == HTTPStatus.BAD_REQUEST and self._replica is not None:
            self._replica.refuses_priority = True  # perhaps: here it cannot be asked again without one
        messages.mutate(reply.response.header_mutation, _fields(self._told))
        ticket, head = self._ticket, self._head
        if ticket is None or head is None or ticket.is_over:
            return
        endpoint = head.visitor.endpoint
        self._observer = observe(
            endpoint.protocol,
            endpoint.work,
            get_header(headers, b"content-type") or "",
            get_header(headers, b"content-encoding"),
        )
        self._milestones = Milestones(ticket, self._observer)
        ticket.response_started(self._status)
        ticket.seen = self._seen
        if told.end_of_stream:
            self._ended()

    def _part_came(self, told: Any) -> None:
        if self._observer is not None and self._observer.feed(told.body):
            self._tell()
        if told.end_of_stream:
            self._ended()

    def _ended(self) -> None:
        if self._ticket is not None and self._observer is not None and not self._ticket.is_over:
            self._ticket.finished(self._seen())

    def _tell(self) -> None:
        if self._milestones is not None and self._status < 400:
            self._milestones.tell()

    def _seen(self) -> Answer:
        assert self._observer is not None
        answer = self._observer.answer(self._status)
        self._tell()
        return answer

    # --- refusals ----------------------------------------------------------------------------------

    def _cancelled(self, _: Protocol, refusal: Refusal) -> None:
        self._stopped = refusal
        self._stop.set()
        if self._observer is not None:  # it has begun: Envoy cuts it
            self._picking.tasks.spawn(self._say(self._refusal(_RefusedError(refusal))))

    def _refusal(self, error: _RefusedError) -> Any:
        status, lines, body = refusal_parts(self._protocol, error.refusal, error.told)
        headers = [*_fields(lines), (b"content-type", b"application/json")]
        return messages.immediate(status, headers, body, error.refusal.reason.value)


def _pieces(field: str, body: bytes, is_last: bool) -> list[Any]:
    """A body, or a part of one, passed back."""
    pieces = []
    for begin in range(0, max(1, len(body)), _PIECE):
        reply = messages.ProcessingResponse()
        piece = getattr(reply, field).response.body_mutation.streamed_response
        piece.body = body[begin : begin + _PIECE]
        piece.end_of_stream = is_last and begin + _PIECE >= len(body)
        pieces.append(reply)
    return pieces


def _follow(mutation: Any, head: RequestHead, lines: bytes, replica: Replica) -> None:
    """Makes Envoy's headers those of `lines`: a request line and fields."""
    start, _, rest = lines.partition(b"\r\n")
    if replica.address.prefix:
        messages.mutate(mutation, [(b":path", start.split(b" ")[1])])
    had = {(name.lower(), value) for name, value in head.headers}
    wanted = [(name.lower(), value) for name, value in _fields(rest)]
    names = {name for name, _ in wanted}
    messages.mutate(mutation, [each for each in wanted if each not in had and each[0] not in _OF_ENVOY])
    gone = dict.fromkeys(name for name, _ in had if name not in names and name not in _OF_ENVOY)
    mutation.remove_headers.extend(name.decode("latin-1") for name in gone)


def _fields(lines: bytes) -> RawHeaders:
    found = []
    for line in lines.split(b"\r\n"):
        name, colon, value = line.partition(b":")
        if colon:
            found.append((name, value.strip()))
    return found
