"""ONE request that passes through Envoy: whose it is, where it goes, what its answer was.

Envoy opens one gRPC stream for each HTTP request. The same authentication, reading, brain and outbound
headers as those of the proxy decide; the bytes stay with Envoy, but for fields that are spliced into a body.
A request that may not go on now waits here, as its headers wait in Envoy. Whatever ends the stream ends the
request: after the end of the answer by its own protocol it has finished, else its client has left.
"""

import asyncio
import contextlib
import logging
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any, Final

import grpc
import grpc.aio
import msgspec
from google.protobuf.message import DecodeError

from gateway.config import Config
from gateway.core import events as ev
from gateway.core import refusals
from gateway.core.commands import Dispatch, Refuse, RemotePrefill
from gateway.domain.decision import Refusal, RefusalReason
from gateway.domain.ids import ReplicaId
from gateway.domain.request import Answer, Protocol, RequestFacts
from gateway.requests.facts import read_header_facts
from gateway.responses.observer import ResponseObserver, observe
from gateway.server.auth.authenticator import Authenticator, Caller
from gateway.server.cluster.peer_auth import INHERITS, PASSED
from gateway.server.http.body_limits import take_room
from gateway.server.http.listener import Listener
from gateway.server.http.refused_request import RefusedRequest
from gateway.server.http.request_head import RequestHead
from gateway.server.http.request_parser import HttpRequest
from gateway.server.http.response_writer import refusal_parts
from gateway.server.picker import answers, messages
from gateway.server.picker.links import Passed, PickerLinks, StreamError
from gateway.server.proxy.byte_pump import Milestones, catch_up
from gateway.server.proxy.decision_headers import receipts
from gateway.server.proxy.prepare import Prepared, refusal_of
from gateway.server.proxy.ticket import Ticket
from gateway.server.serving import ProxyParts
from gateway.upstream.errors import ConnectFailed
from gateway.upstream.one_shot import in_task
from gateway.upstream.replica import Replica
from gateway.wire.headers import get_header

_log: Final = logging.getLogger(__name__)


class Picking(msgspec.Struct, frozen=True):
    """What all streams share."""

    config: Config
    parts: ProxyParts
    replicas: Mapping[ReplicaId, Replica]
    listener: Listener
    """Its room for bodies, and its counts of requests, hold for Envoy's, too."""


class Stream:
    def __init__(
        self, picking: Picking, auth: Authenticator, peer: str, context: Any, links: PickerLinks | None
    ) -> None:
        """`peer`: who is connected; `context`: gRPC's, of the call; `links`: to other pickers."""
        self._picking = picking
        self._config, self._budget = picking.config, picking.listener.budget
        self._auth = auth
        self._peer = peer
        self._context = context
        self._links = links
        self._task = asyncio.current_task()
        self._answered = 0
        # The message with the request's headers.
        self._begin: Any = None
        self._head: RequestHead | None = None
        self._protocol = Protocol.CHAT
        self._body = bytearray()
        self._came = b""  # as Envoy has it
        self._held = 0
        self._is_duplex = self._answers_duplex = self._has_trailers = False
        self._is_placed = self._is_reading = False
        self._passed: Passed | None = None
        self._ticket: Ticket | None = None
        self._receipts = b""
        self._observer: ResponseObserver | None = None
        self._milestones: Milestones | None = None
        self._status = 0
        self._stopped: Refusal | None = None
        self._open = contextlib.ExitStack()

    async def run(self) -> None:
        """Answers Envoy's messages, in order. Raises StreamError."""
        try:
            with self._open:
                await self._answer_all()
        except RefusedRequest as error:
            await self._send([self._refusal(error)])
        except DecodeError:
            raise StreamError(grpc.StatusCode.INVALID_ARGUMENT, "a message that cannot be read") from None
        except (StreamError, grpc.aio.BaseError):
            raise
        except asyncio.CancelledError:
            if self._stopped is None or self._task is None:
                raise
            self._task.uncancel()
            await self._send([self._refusal(RefusedRequest(self._stopped))])  # Envoy cuts the answer
        except Exception:  # noqa: BLE001 - a bug of ours costs one request, never the process
            _log.exception("a request failed inside the picker")
            await self._send([self._refusal(RefusedRequest(refusals.internal()))])
        finally:
            self._let_go()
            self._count()

    def _count(self) -> None:
        if self._begin is None or self._passed is not None:
            return
        endpoint = self._head.caller.endpoint.name if self._head is not None else ""
        has_failed = self._ticket is not None and self._ticket.has_failed
        self._picking.listener.counted(endpoint, self._status or 499, has_failed=has_failed)

    async def _answer_all(self) -> None:
        while (data := await self._read()) is not grpc.aio.EOF:
            await self._send(await self._answer(messages.ProcessingRequest.FromString(data)))
            if self._passed is not None:
                await self._passed.relay(self._context)
                return
            if self._stopped is not None:
                raise RefusedRequest(self._stopped)

    async def _read(self) -> Any:
        self._is_reading = True
        try:
            return await self._context.read()
        finally:
            self._is_reading = False

    async def _send(self, replies: Sequence[Any]) -> None:
        for reply in replies:
            await self._context.write(reply.SerializeToString())
            self._answered += 1

    async def _answer(self, message: Any) -> Sequence[Any]:
        if message.HasField("protocol_config"):
            self._is_duplex = message.protocol_config.request_body_mode == messages.FULL_DUPLEX
            self._answers_duplex = message.protocol_config.response_body_mode == messages.FULL_DUPLEX
        if message.HasField("request_headers"):
            self._begin = message
            return await self._request_began(message.request_headers)
        if message.HasField("request_body"):
            part = message.request_body
            return await self._body_came(part.body, part.end_of_stream or part.without_message)
        if message.HasField("response_headers"):
            return [self._response_began(message.response_headers)]
        if message.HasField("response_body"):
            part = message.response_body
            await self._part_came(part.body, is_last=part.end_of_stream)
            if self._answers_duplex:
                return answers.pieces(answers.RESPONSE_BODY, part.body, is_last=part.end_of_stream)
            return [answers.continue_with(answers.RESPONSE_BODY)]
        if message.HasField("request_trailers"):
            self._has_trailers = True
            ended = await self._body_came(b"", True) if self._is_duplex else []
            return [*ended, answers.continue_with("request_trailers")] if self._passed is None else []
        if message.HasField("response_trailers"):
            self._ended()
            return [answers.continue_with("response_trailers")]
        return []

    # --- the request -------------------------------------------------------------------------------

    async def _request_began(self, given: Any) -> Sequence[Any]:
        if self._head is not None:
            raise _out_of_order()
        method, target, headers = "GET", b"/", list[tuple[bytes, bytes]]()
        for name, value in messages.headers_of(given):
            if name == b":method":
                method = value.decode("latin-1")
            elif name == b":path":
                target = value
            elif name == b":authority":
                headers.append((b"Host", value))
            elif not name.startswith(b":"):
                headers.append((name, value))
        self._protocol = self._auth.endpoint("POST", target).protocol
        caller = self._auth.authorize(method, target, headers, self._peer)
        if not isinstance(caller, Caller):
            raise RefusedRequest(caller)
        self._head = RequestHead(
            method=method,
            target=target,
            headers=headers,
            is_http_1_0=False,
            keep_alive=True,
            caller=caller,
            facts=read_header_facts(headers),
        )
        if given.end_of_stream:
            return await self._decide(answers.REQUEST_HEADERS, HttpRequest(self._head, b""))
        if self._is_duplex:
            return []  # Envoy sends the body without waiting for an answer, and the headers on with one
        return [answers.continue_with(answers.REQUEST_HEADERS)]

    async def _body_came(self, part: bytes, is_last: bool) -> Sequence[Any]:
        if self._head is None or self._ticket is not None:
            raise _out_of_order()
        self._hold(self._head, len(part), whole=len(self._body) + len(part))
        if not is_last:
            self._body += part
            return []
        body = bytes(self._body + part) if self._body else part
        self._body.clear()
        try:
            return await self._decide(answers.REQUEST_BODY, HttpRequest(self._head, body))
        finally:
            self._let_go()

    def _hold(self, head: RequestHead, more: int, *, whole: int) -> None:
        take_room(self._budget, self._config.server.limits, head.caller.tenant.id, more, whole=whole)
        self._held += more

    def _let_go(self) -> None:
        if self._held and self._head is not None:
            self._budget.give_back(self._head.caller.tenant.id, self._held)
            self._held = 0

    async def _decide(self, of: str, came: HttpRequest) -> Sequence[Any]:
        self._came = came.body
        preparation, tickets = self._picking.parts.preparation, self._picking.parts.tickets
        request = await in_task(preparation.reading.plain(came, self._budget))
        if request is not came:
            self._hold(request.head, len(request.body), whole=len(request.body))
        facts = await in_task(preparation.reading.read(request))
        required, is_salted = preparation.are_keys_required, preparation.is_salted
        if refusal := refusal_of(request, facts, are_keys_required=required, is_salted=is_salted):
            raise RefusedRequest(refusal)

        pass_on = partial(self._pass_on, of, came)
        if self._links is not None and not await preparation.is_ours(request, facts, pass_on):
            return []
        ticket = self._ticket = self._open.enter_context(await tickets.open(Prepared(request, facts)))
        ticket.on_cancel = self._stop
        decision, replica = await self._placed(ticket)
        self._is_placed = True
        if self._config.server.has_receipts:
            self._receipts = receipts(decision)
        return await self._sent_to(of, request, facts, decision, replica)

    async def _pass_on(
        self, of: str, request: HttpRequest, link: Replica | None, takes_over_session: bool
    ) -> bool:
        peers = self._picking.parts.preparation.peers
        assert self._links is not None and peers is not None
        if link is None:
            raise StreamError(grpc.StatusCode.ABORTED, "the session is not here")
        begin, more = messages.ProcessingRequest(), messages.ProcessingRequest()
        begin.CopyFrom(self._begin)
        add = begin.request_headers.headers.headers.add
        add(key=PASSED, raw_value=peers.passing.header(link.id, request.head.caller.client))
        if takes_over_session:
            add(key=INHERITS, raw_value=b"1")
        sent = [begin]
        if of == answers.REQUEST_BODY:
            more.request_body.body, more.request_body.end_of_stream = request.body, not self._has_trailers
            sent.append(more)
        if self._has_trailers:
            sent.append(messages.ProcessingRequest(request_trailers={}))
        self._passed = await self._links.open(
            link.id, [each.SerializeToString() for each in sent], self._answered
        )
        return self._passed is not None

    async def _placed(self, ticket: Ticket) -> tuple[Dispatch, Replica]:
        while True:
            decision = ticket.decided() or await self._decision(ticket)
            if type(decision) is Refuse:
                lines = receipts(decision) if self._config.server.has_receipts else b""
                raise RefusedRequest(decision.refusal, lines)
            assert type(decision) is Dispatch  # prompts are not computed on other replicas: `check_picker`
            replica = self._picking.replicas.get(decision.placement.replica)
            if replica is not None:
                return decision, replica
            ticket.attempt_failed(ConnectFailed("the replica left"))

    async def _decision(self, ticket: Ticket) -> Dispatch | Refuse | RemotePrefill:
        limit_s = self._config.picker.max_wait_s
        message = f"No replica had room within {limit_s:g} s."
        late = Refusal(reason=RefusalReason.QUEUE_TIMEOUT, message=message, retry_after_s=5)
        driver = self._picking.parts.preparation.driver
        timer = driver.call_later(limit_s, ticket.give_up, RefusedRequest(late))
        try:
            return await in_task(ticket.decision())
        finally:
            timer.cancel()

    async def _sent_to(
        self, of: str, request: HttpRequest, facts: RequestFacts, decision: Dispatch, replica: Replica
    ) -> Sequence[Any]:
        parts, head, session = self._picking.parts, self._head, decision.session
        assert self._ticket is not None and head is not None
        trace = parts.tickets.trace(self._ticket, session.session if session is not None else None)
        first, *rest = parts.outbound.of_turn(decision, request, facts, replica, trace=trace)
        lines, _, begun = bytes(first).partition(b"\r\n\r\n")
        body = b"".join((begun, *rest))
        change = answers.following(head, lines, replica)
        is_changed = body != self._came
        endpoint = (await replica.endpoint()).encode()
        if self._is_duplex and of == answers.REQUEST_BODY:
            if is_changed:
                change.removed.append(b"content-length")
            return [
                answers.sent_on(answers.REQUEST_HEADERS, change, endpoint),
                *answers.pieces(of, body, is_last=not self._has_trailers),
            ]
        if is_changed:
            change.added.append((b"content-length", b"%d" % len(body)))
        return [answers.sent_on(of, change, endpoint, body=body if is_changed else None)]

    # --- the answer --------------------------------------------------------------------------------

    def _response_began(self, given: Any) -> Any:
        headers = messages.headers_of(given)
        status = get_header(headers, b":status") or "502"
        self._status = int(status) if status.isdecimal() else 502
        ticket, head = self._ticket, self._head
        if ticket is not None and head is not None and not ticket.is_over:
            endpoint = head.caller.endpoint
            self._observer = observe(
                endpoint.protocol,
                endpoint.work,
                get_header(headers, b"content-type") or "",
                get_header(headers, b"content-encoding"),
            )
            # An answer with a length comes at once, most often: then it is reported at once.
            if get_header(headers, b"content-length") is None or given.end_of_stream:
                self._began()
            if given.end_of_stream:
                self._ended()
        return answers.continue_with("response_headers", answers.fields(self._receipts))

    def _began(self) -> None:
        ticket, observer = self._ticket, self._observer
        if ticket is not None and observer is not None and self._milestones is None and not ticket.is_over:
            self._milestones = Milestones(ticket, observer, self._status)
            ticket.send(ev.ResponseStarted(ticket.request, self._status))
            ticket.seen = self._seen

    async def _part_came(self, part: bytes, *, is_last: bool) -> None:
        ticket, observer = self._ticket, self._observer
        if ticket is None or observer is None:
            return
        observer.feed(part)
        await catch_up(observer)
        if is_last and self._milestones is None and not ticket.is_over:
            answer = observer.answer(self._status, is_over=True)
            ticket.answered_at_once(answer, has_first_token=observer.seen.has_first_token and answer.is_good)
            return
        self._began()
        if self._milestones is not None:
            self._milestones.emit()
        if is_last:
            self._ended()

    def _ended(self) -> None:
        if self._ticket is not None and self._observer is not None and not self._ticket.is_over:
            self._began()
            self._ticket.finished(self._seen(is_over=True))

    def _seen(self, *, is_over: bool = False) -> Answer:
        assert self._observer is not None and self._milestones is not None
        answer = self._observer.answer(self._status, is_over=is_over)
        self._milestones.emit()
        return answer

    # --- refusals ----------------------------------------------------------------------------------

    def _stop(self, _: Protocol, refusal: Refusal) -> None:
        self._stopped = refusal
        if self._is_reading and self._task is not None:
            self._task.cancel()  # it waits for Envoy; a write must end before the next one begins
        elif not self._is_placed and self._ticket is not None:
            self._ticket.give_up(RefusedRequest(refusal))

    def _refusal(self, error: RefusedRequest) -> Any:
        self._status, lines, body = refusal_parts(self._protocol, error.refusal, error.lines)
        headers = [*answers.fields(lines), (b"content-type", b"application/json")]
        return answers.immediate(self._status, headers, body, error.refusal.reason.value)


def _out_of_order() -> StreamError:
    return StreamError(grpc.StatusCode.INVALID_ARGUMENT, "a message that cannot come now")
