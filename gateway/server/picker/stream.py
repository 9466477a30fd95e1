"""ONE request that passes through Envoy: it says what it is, and where it goes; its answer is looked at.

Envoy asks over one gRPC stream for each HTTP request. The same door, reading, brain and outbound headers as
those of the proxy decide; the bytes stay with Envoy, but for fields that are spliced into a body. A request
that may not go on now waits here, as its headers wait in Envoy. Whatever ends the stream ends the request in
the books: after the protocol's own end of the answer it has finished, else its client has left.
"""

import contextlib
import logging
from collections.abc import Awaitable, Callable, Mapping
from http import HTTPStatus
from typing import Any, Final

import msgspec
from google.protobuf.message import DecodeError

from gateway.config.http_limits import HttpLimits
from gateway.config.picker import PickerConfig
from gateway.core import refusals
from gateway.core.commands import Dispatch, PrefillLeg, Refuse
from gateway.domain.decision import Refusal, RefusalReason
from gateway.domain.ids import ReplicaId
from gateway.domain.request import Answer, Protocol, RequestFacts
from gateway.server.buffer_budget import BufferBudget
from gateway.server.door import Door, Visitor
from gateway.server.driver import Driver, Ticket
from gateway.server.judged_bodies import refusal_of
from gateway.server.milestones import Milestones
from gateway.server.outbound import Outbound
from gateway.server.picker import answers, messages
from gateway.server.picker.calls import CallError
from gateway.server.reading import READ_AT_ONCE, Reading
from gateway.server.receipts import receipts
from gateway.server.request_head import RequestHead, no_room, too_large
from gateway.server.request_parser import HttpRequest
from gateway.server.response_writer import refusal_parts
from gateway.server.spending import Spending
from gateway.upstream.errors import ConnectFailed
from gateway.upstream.replica import Replica
from gateway.wire.facts import read_header_facts
from gateway.wire.headers import get_header
from gateway.wire.observer import ResponseObserver, observe

_log = logging.getLogger(__name__)

_HEADERS_GO_ON: Final = answers.go_on(answers.REQUEST_HEADERS)
_BODY_GOES_ON: Final = answers.go_on(answers.RESPONSE_BODY)
_MORE_BYTES: Final = 1 << 20
"""A message holds a body, and what is around it."""


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


class _RefusedError(Exception):
    def __init__(self, refusal: Refusal, told: bytes = b"") -> None:
        super().__init__(refusal.message)
        self.refusal = refusal
        self.told = told


class Stream:
    def __init__(self, picking: Picking, peer: str, write: Callable[[bytes], None]) -> None:
        """`peer`: Envoy's address; `write`: sends it a message, and does not wait."""
        self._write = write
        self._picking = picking
        self._peer = peer
        self._head: RequestHead | None = None
        self._protocol = Protocol.CHAT
        self._body = bytearray()
        self._held = self._to_come = 0
        """Bytes of room for bodies: of what came, and of a message that has only begun to."""
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
        self._open = contextlib.ExitStack()

    async def run(self, read: Callable[[], Awaitable[bytes | None]]) -> None:
        """Answers Envoy's messages, in order. `read`: the next one; None behind the last. It may run without
        a task, as `moments.Run` does it. Raises DecodeError, and what `read` raises."""
        with self._open:
            try:
                while (told := await read()) is not None and self._stopped is None:
                    if self._to_come:
                        self._has_come()
                    for reply in await self._answer(messages.ProcessingRequest.FromString(told)):
                        self._write(reply)
            except _RefusedError as error:
                self._write(self._refusal(error))
            except (CallError, DecodeError):
                raise
            except Exception:  # noqa: BLE001 - a bug of ours costs one request, never the process
                _log.exception("a request failed inside the picker")
                self._write(self._refusal(_RefusedError(refusals.internal())))
            finally:
                self._has_come()
                self._let_go()

    def is_to_come(self, size: int) -> None:
        """A message of this size has begun to come. Raises if there is no room for it."""
        head, limits = self._head, self._picking.limits
        most = limits.max_body_bytes + _MORE_BYTES if head is not None else 2 * limits.max_header_bytes
        if size > most:
            raise _RefusedError(too_large(limits).refusal)
        if head is not None and not self._picking.budget.take(head.visitor.tenant.id, size):
            raise _RefusedError(no_room())
        self._to_come = size if head is not None else 0

    def _has_come(self) -> None:
        if self._to_come and self._head is not None:
            self._picking.budget.give_back(self._head.visitor.tenant.id, self._to_come)
            self._to_come = 0

    async def _answer(self, message: Any) -> list[bytes]:
        if message.HasField("protocol_config"):
            self._is_duplex = message.protocol_config.request_body_mode == messages.FULL_DUPLEX
            self._answers_duplex = message.protocol_config.response_body_mode == messages.FULL_DUPLEX
        if message.HasField("request_headers"):
            return await self._request_began(message.request_headers)
        if message.HasField("request_body"):
            told = message.request_body
            return await self._body_came(told.body, told.end_of_stream or told.without_message)
        if message.HasField("response_headers"):
            return [self._response_began(message.response_headers)]
        if message.HasField("response_body"):
            told = message.response_body
            self._part_came(told.body, is_last=told.end_of_stream)
            if self._answers_duplex:
                return answers.pieces(answers.RESPONSE_BODY, told.body, is_last=told.end_of_stream)
            return [_BODY_GOES_ON]
        if message.HasField("request_trailers"):
            self._has_trailers = True
            ended = await self._body_came(b"", True) if self._is_duplex else []
            return [*ended, answers.go_on(answers.REQUEST_TRAILERS)]
        if message.HasField("response_trailers"):
            self._ended()
            return [answers.go_on(answers.RESPONSE_TRAILERS)]
        return []

    # --- the request -------------------------------------------------------------------------------

    async def _request_began(self, told: Any) -> list[bytes]:
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
            return await self._decide(answers.REQUEST_HEADERS, HttpRequest(self._head, b""))
        if self._is_duplex:
            return []  # Envoy sends the body without waiting for an answer, and the headers on with one
        return [_HEADERS_GO_ON]

    async def _body_came(self, part: bytes, is_last: bool) -> list[bytes]:
        assert self._head is not None
        picking = self._picking
        if len(self._body) + len(part) > picking.limits.max_body_bytes:
            raise _RefusedError(too_large(picking.limits).refusal)
        if not picking.budget.take(self._head.visitor.tenant.id, len(part)):
            raise _RefusedError(no_room())
        self._held += len(part)
        if not is_last:
            self._body += part
            return []
        body = bytes(self._body + part) if self._body else part
        self._body.clear()
        try:
            return await self._decide(answers.REQUEST_BODY, HttpRequest(self._head, body))
        finally:
            self._let_go()

    def _let_go(self) -> None:
        if self._held and self._head is not None:
            self._picking.budget.give_back(self._head.visitor.tenant.id, self._held)
            self._held = 0

    async def _decide(self, of: int, request: HttpRequest) -> list[bytes]:
        picking, visitor = self._picking, request.head.visitor
        if len(request.body) < READ_AT_ONCE and not request.head.facts.coding:
            facts = picking.reading.at_once(visitor.endpoint, request)
        else:
            facts = await picking.reading.in_slices(visitor.endpoint, request)
        refusal = refusal_of(request, facts, are_keys_required=picking.are_keys_required)
        if refusal is not None:
            raise _RefusedError(refusal)
        reserved = None
        if picking.spending is not None:
            reserved = await picking.spending.reserve(visitor.tenant.id, facts)
        ticket = self._ticket = picking.driver.open_ticket(visitor.tenant.id, facts, reserved)
        self._open.enter_context(ticket)
        ticket.on_cancel = self._cancelled
        decision, replica = await self._placed(ticket)
        if picking.with_receipts:
            self._told = receipts(decision)
        return await self._sent_to(of, request, facts, decision, replica)

    async def _placed(self, ticket: Ticket) -> tuple[Dispatch, Replica]:
        while True:
            decision = ticket.decided()
            if decision is None:
                decision = await self._decision(ticket)
            if type(decision) is Refuse:
                raise _RefusedError(
                    decision.refusal, receipts(decision) if self._picking.with_receipts else b""
                )
            assert type(decision) is Dispatch  # prompts are not computed on other replicas: `check_picker`
            replica = self._picking.replicas.get(decision.placement.replica)
            if replica is not None:
                return decision, replica
            ticket.attempt_failed(ConnectFailed("the replica left"), was_sent=False)

    async def _decision(self, ticket: Ticket) -> Dispatch | Refuse | PrefillLeg:
        limit_s = self._picking.config.max_wait_s
        message = f"No replica had room within {limit_s:g} s."
        late = Refusal(reason=RefusalReason.QUEUE_TIMEOUT, message=message, retry_after_s=5)
        timer = self._picking.driver.call_later(limit_s, ticket.give_up, _RefusedError(late))
        try:
            return await ticket.decision()
        finally:
            timer.cancel()

    async def _sent_to(
        self, of: int, request: HttpRequest, facts: RequestFacts, decision: Dispatch, replica: Replica
    ) -> list[bytes]:
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
        headers = answers.following(request.head, lines, replica)
        is_changed = body != request.body
        endpoint = (await replica.endpoint()).encode()
        if self._is_duplex and of == answers.REQUEST_BODY:
            if is_changed:
                headers += answers.removing([b"content-length"])
            return [
                answers.sent_on(answers.REQUEST_HEADERS, headers, endpoint),
                *answers.pieces(of, body, is_last=not self._has_trailers),
            ]
        if is_changed:
            headers += answers.setting([(b"content-length", b"%d" % len(body))])
        return [answers.sent_on(of, headers, endpoint, body=body if is_changed else None)]

    # --- the answer --------------------------------------------------------------------------------

    def _response_began(self, told: Any) -> bytes:
        headers = messages.headers_of(told)
        status = get_header(headers, b":status") or "502"
        self._status = int(status) if status.isdecimal() else 502
        if self._status == HTTPStatus.BAD_REQUEST and self._replica is not None:
            self._replica.refuses_priority = True  # perhaps: here it cannot be asked again without one
        ticket, head = self._ticket, self._head
        if ticket is not None and head is not None and not ticket.is_over:
            endpoint = head.visitor.endpoint
            self._observer = observe(
                endpoint.protocol,
                endpoint.work,
                get_header(headers, b"content-type") or "",
                get_header(headers, b"content-encoding"),
            )
            # An answer with a length comes at once, most often: then it is told at once.
            if get_header(headers, b"content-length") is None or told.end_of_stream:
                self._began()
            if told.end_of_stream:
                self._ended()
        return answers.go_on(answers.RESPONSE_HEADERS, answers.setting(answers.fields(self._told)))

    def _began(self) -> None:
        ticket, observer = self._ticket, self._observer
        if ticket is not None and observer is not None and self._milestones is None and not ticket.is_over:
            self._milestones = Milestones(ticket, observer)
            ticket.response_started(self._status)
            ticket.seen = self._seen

    def _part_came(self, part: bytes, *, is_last: bool) -> None:
        ticket, observer = self._ticket, self._observer
        if ticket is None or observer is None:
            return
        if is_last and self._milestones is None and not ticket.is_over:
            observer.feed(part)
            has_token = observer.has_first_token and self._status < HTTPStatus.BAD_REQUEST
            ticket.answered_at_once(observer.answer(self._status), has_first_token=has_token)
            return
        self._began()
        if observer.feed(part):
            self._tell()
        if is_last:
            self._ended()

    def _ended(self) -> None:
        if self._ticket is not None and self._observer is not None and not self._ticket.is_over:
            self._began()
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
        if self._observer is not None:  # it has begun: Envoy cuts it
            self._write(self._refusal(_RefusedError(refusal)))
        elif self._ticket is not None:
            self._ticket.give_up(_RefusedError(refusal))

    def _refusal(self, error: _RefusedError) -> bytes:
        status, lines, body = refusal_parts(self._protocol, error.refusal, error.told)
        headers = [*answers.fields(lines), (b"content-type", b"application/json")]
        return answers.immediate(status, headers, body, error.refusal.reason.value)
