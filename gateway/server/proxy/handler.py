"""ONE request, from top to bottom.

The door has let it in. What does it say? → Tell the brain, await its decision → send it to that
replica → pass the answer on. Leaving the ticket's `with` block ends the request in the books, however
it is left.
"""

import asyncio
import logging
import re
from collections.abc import Mapping
from functools import partial
from http import HTTPStatus
from urllib.parse import unquote

import msgspec

from gateway.config.server import ServerConfig
from gateway.core import refusals
from gateway.core.commands import Dispatch, Refuse, RemotePrefill
from gateway.domain.decision import Refusal
from gateway.domain.ids import ReplicaId, clean_name
from gateway.domain.request import Answer, RequestFacts, Work
from gateway.responses.content import ResponseContent
from gateway.responses.observer import ResponseObserver, SilentObserver, observe
from gateway.server.disaggregation.kv_fetches import Fetch
from gateway.server.disaggregation.remote_prefills import RemotePrefills
from gateway.server.http.client_connection import ClientConnection
from gateway.server.http.request_head import RequestHead
from gateway.server.http.request_parser import HttpRequest
from gateway.server.prefill_ahead.retained_request import RetainedRequest
from gateway.server.proxy.driver import Driver, Ticket
from gateway.server.proxy.internal_responses import read_whole
from gateway.server.proxy.prepare import RequestPreparation, refusal_of
from gateway.server.proxy.queue_keepalive import QueueKeepAlive
from gateway.server.proxy.receipts import receipts
from gateway.server.proxy.relay import Relay, Write, framing_of, pass_whole
from gateway.server.proxy.releases import release
from gateway.server.proxy.websockets import Tunnels
from gateway.telemetry.histograms import Histogram
from gateway.upstream.connection import UpstreamConnection
from gateway.upstream.errors import AnswerMissing, AnswerTimedOut, ConnectFailed, ConnectTimedOut, LocalFault
from gateway.upstream.health import HealthChecks
from gateway.upstream.replica import Replica
from gateway.wire.endpoints import RELEASES, classify, meant
from gateway.wire.handshake import key_of

_log = logging.getLogger(__name__)

_LISTING = "/v1/models"
_MODELS = "/v1/models/"
_NO_SUCH_PATH = re.compile(
    rb"\s*(?:404:? ?)?(?:(?:page )?not found)?\.?\s*|<.*|"
    rb'[^}]*"(?:detail|message|error)": ?"(?:file )?not found\.?".*',
    re.I | re.S,
).fullmatch
"""Of the body of a 404: what servers say of paths, and not of models or stored things."""
_ERROR_WITHIN_S = 5.0
"""From the head of an error to its end, where it has to be read before it is passed on."""
_OVERHEAD_OF_ONE_IN = 15


class _Attempt(msgspec.Struct):
    """A replica that has begun to answer."""

    replica: Replica
    upstream: UpstreamConnection
    told: bytes
    held: QueueKeepAlive | None
    kept: RetainedRequest | None
    """If the conversation is to be kept."""
    said: ResponseContent | None
    """If somebody wants to know what the answer says."""


class ProxyHandler:
    """Called by every client connection with every request."""

    def __init__(
        self,
        driver: Driver,
        replicas: Mapping[ReplicaId, Replica],
        health: HealthChecks,
        asking: RequestPreparation,
        *,
        server: ServerConfig,
        overhead: Histogram | None = None,
        tunnels: Tunnels,
        legs: RemotePrefills | None = None,
    ) -> None:
        """`overhead`: what a request takes until it is sent on, of some; `legs`: None if no prompt is
        computed on one replica for another."""
        self._driver = driver
        self._replicas = replicas
        self._health = health
        self._asking = asking
        self._overhead = overhead
        self._tunnels = tunnels
        self._legs = legs
        self._served = 0
        self.apply_config(server)

    def apply_config(self, server: ServerConfig) -> None:
        self._with_receipts = server.has_receipts
        self._holding = server.holding

    async def __call__(self, client: ClientConnection, request: HttpRequest) -> None:
        endpoint, asking = request.head.visitor.endpoint, self._asking
        try:
            self._served += 1
            began_s = 0.0 if self._served & _OVERHEAD_OF_ONE_IN else self._driver.clock()
            if request.head.is_websocket:
                await self._serve_websocket(client, request)
                return
            path = request.head.visitor.path
            if path.startswith(_LISTING) and self._lists_models(client, request):
                return
            if request.head.facts.coding or asking.reading.is_splicing:
                plain = await self._plain(client, request)
                if plain is None:
                    return
                request = plain
            facts = await asking.reading.read(request)
            if path.startswith(_MODELS):
                name = unquote(path.removeprefix(_MODELS))
                if self._shows_model(client, request, name):
                    return
                facts = msgspec.structs.replace(facts, model=clean_name(name))
            refusal = refusal_of(
                request,
                facts,
                are_keys_required=asking.are_keys_required,
                is_salted=asking.outbound.is_salted,
            )
            if refusal is not None:
                client.refuse(endpoint.protocol, refusal)
            elif endpoint.name in RELEASES and not facts.is_relayed:
                await release(asking, client, request, facts)
            elif asking.peers is None or await asking.is_ours(request, facts, client):
                with await asking.open(request, facts) as ticket:
                    client.ticket, ticket.on_cancel = ticket, client.refuse_instead
                    ticket.began_s = began_s
                    attempt = await self._reach(ticket, client, request, facts)
                    if attempt is not None:
                        await self._answer(ticket, client, request, facts, attempt)
                        # What is stored of an answer that failed is itself answered well.
                        client.has_failed = ticket.has_failed and facts.work is not Work.STATE
        except Exception:  # noqa: BLE001 - a bug of ours costs one request, never the process
            _log.exception("a request to %s failed inside the gateway", endpoint.name)
            if client.is_answering:
                client.abort()
            else:
                client.refuse(endpoint.protocol, refusals.internal())

    async def _plain(self, client: ClientConnection, request: HttpRequest) -> HttpRequest | None:
        """None if it was refused."""
        plain = await self._asking.reading.plain(request, client.budget)
        if plain is request:
            return request
        refusal = plain if isinstance(plain, Refusal) else client.hold_instead(plain)
        if refusal is not None:
            client.refuse(request.head.visitor.endpoint.protocol, refusal)
            return None
        assert isinstance(plain, HttpRequest)
        return plain

    def _lists_models(self, client: ClientConnection, request: HttpRequest) -> bool:
        """Whether it asks for the list of models, which is answered here."""
        head = request.head
        is_listing = head.visitor.path.rstrip("/") == _LISTING and head.method in ("GET", "HEAD")
        if not (is_listing and self._health.lists_models):
            return False
        client.respond(200, b"", msgspec.json.encode(self._health.merged_models()))
        return True

    def _shows_model(self, client: ClientConnection, request: HttpRequest, name: str) -> bool:
        is_named = name in self._health.named and request.head.method in ("GET", "HEAD")
        card = self._health.cards().get(name) if is_named else None
        if card is not None:
            client.respond(200, b"", msgspec.json.encode(card))
        return card is not None

    async def _serve_websocket(self, client: ClientConnection, request: HttpRequest) -> None:
        judged = self._tunnels.judge(request.head, await self._asking.reading.read(request))
        if isinstance(judged, Refusal):
            client.refuse(request.head.visitor.endpoint.protocol, judged)
            return
        facts, without = judged
        await self._asking.is_ours(request, facts, None)
        with await self._asking.open(request, facts, without=without) as ticket:
            client.ticket, ticket.on_cancel = ticket, client.refuse_instead
            attempt = await self._reach(ticket, client, request, facts)
            if attempt is None:
                return
            if not attempt.upstream.is_switched:
                await self._answer(ticket, client, request, facts, attempt)
                return
            replica, upstream, told = attempt.replica, attempt.upstream, attempt.told
            await self._tunnels.run(client, request.head, ticket, replica, upstream, told)

    async def _reach(
        self, ticket: Ticket, client: ClientConnection, request: HttpRequest, facts: RequestFacts
    ) -> _Attempt | None:
        """Until a replica has begun to answer; None if the client was refused."""
        held: QueueKeepAlive | None = None
        handed_over: Fetch | None = None
        try:
            while True:
                decision = ticket.decided()
                if decision is None:
                    if held is None and facts.takes_keep_alives:  # else its client can be told nothing
                        held, request = (
                            QueueKeepAlive(
                                client,
                                request,
                                ticket.request if self._with_receipts else None,
                                facts,
                                self._holding,
                            ),
                            _plain(request),
                        )
                    decision = await ticket.decision()
                if type(decision) is RemotePrefill:
                    assert self._legs is not None
                    ticket.began_s = 0.0  # what the leg takes is no overhead
                    handed_over = await self._legs.run(
                        ticket, decision, request, self._asking.trace(ticket, decision.session)
                    )
                    continue
                told = receipts(decision) if self._with_receipts else b""
                if type(decision) is Refuse:
                    if held is not None and held.has_begun:
                        client.has_failed = True
                        held.refuse(decision.refusal)
                    else:
                        client.refuse(facts.protocol, decision.refusal, told)
                    return None
                replica = self._replicas.get(decision.placement.replica)
                if replica is None:  # it left after the brain had decided, and before we went on
                    ticket.attempt_failed(ConnectFailed("the replica left"))
                    continue
                upstream = await self._attempt(
                    *(ticket, decision, replica, request, facts),
                    handed_over if handed_over and self._driver.clock() < handed_over.until_s else None,
                )
                handed_over = None  # it is said once
                if upstream is not None:
                    if upstream.head is not None and upstream.head.status == HTTPStatus.NOT_FOUND:
                        self._asking.not_found(replica, decision.model or facts.model)
                        if self._is_misnamed(ticket, client, request.head, told, upstream, replica):
                            return None
                    kept, said = self._asking.listeners(ticket, decision, request, facts)
                    if upstream.has_sent_all:  # else the transport holds the body, and it still counts
                        client.let_go_of_body()
                    return _Attempt(replica, upstream, told, held, kept, said)
        finally:
            if held is not None:
                held.end()

    async def _answer(
        self,
        ticket: Ticket,
        client: ClientConnection,
        request: HttpRequest,
        facts: RequestFacts,
        attempt: _Attempt,
    ) -> None:
        replica, upstream, told, held = attempt.replica, attempt.upstream, attempt.told, attempt.held
        endpoint, head = request.head.visitor.endpoint, upstream.head
        assert head is not None
        is_reusable = False
        write: Write = client.write
        kept = attempt.kept
        observer: ResponseObserver
        if facts.is_relayed and not facts.stores:  # else later requests need the ids in it
            observer = SilentObserver()
        else:
            observer = observe(
                *(endpoint.protocol, endpoint.work, head.content_type, head.content_encoding),
                content=attempt.said,
                may_keep=client.keep_more,
                head=head.start,
            )
        try:
            if held is None or not held.has_begun:
                client.start_response(head.start + told, framing_of(head, request.head))
            else:
                write = held.writer(head)
            whole = upstream.take_complete_body()
            if whole is not None:
                await pass_whole(write, whole, head, ticket, observer)
                is_reusable = True
            else:
                is_reusable = await Relay(client, upstream, head, ticket, observer, write).run()
        finally:
            replica.release(upstream, reuse=is_reusable)
            if kept is not None and self._asking.prefills is not None:
                is_whole = observer.seen.has_terminal and observer.answer(head.status).is_good
                self._asking.prefills.answered(kept, is_whole=is_whole)
        if ticket.has_failed or not is_reusable:
            self._health.check_now(replica.id)

    def _is_misnamed(
        self,
        ticket: Ticket,
        client: ClientConnection,
        head: RequestHead,
        told: bytes,
        upstream: UpstreamConnection,
        replica: Replica,
    ) -> bool:
        """Whether the replica has no such path, and the client was told which one it meant."""
        path = meant(head.method, head.visitor.path)
        if path is None or not _NO_SUCH_PATH(b"".join(upstream.take_complete_body() or ())):
            return False
        refusal = refusals.unknown_path(head.visitor.path, path)
        client.refuse(classify(head.method, path).protocol, refusal, told)
        ticket.answered_at_once(Answer(status=HTTPStatus.NOT_FOUND), has_first_token=False)
        replica.release(upstream, reuse=True)
        return True

    async def _attempt(
        self,
        ticket: Ticket,
        decision: Dispatch,
        replica: Replica,
        request: HttpRequest,
        facts: RequestFacts,
        fetch: Fetch | None,
    ) -> UpstreamConnection | None:
        """Sends the request to one replica. None if no response head came; the brain knows then."""
        chunks_with = partial(self._asking.chunks, ticket, decision, request, facts, replica)
        head = request.head
        told = fetch.fields if fetch is not None else None
        exchange = partial(
            replica.exchange,
            is_head_request=head.method == "HEAD",
            websocket_key=key_of(head.headers) if head.is_websocket else None,
            may_repeat=facts.is_replayable and decision.attempt == 1 and not told,
        )
        chunks = chunks_with(fetch=told)
        ticket.fetch = fetch
        if ticket.began_s and self._overhead is not None and not decision.waited_s:
            self._overhead.add(self._driver.clock() - ticket.began_s)
            ticket.began_s = 0.0
        try:
            upstream = await exchange(chunks)
            if fetch is not None and fetch.has_failed(upstream) and facts.is_replayable:
                ticket.fetch = None
                replica.release(upstream, reuse=False)
                upstream = await exchange(chunks_with())
            is_missing = upstream.head is not None and upstream.head.status == HTTPStatus.NOT_FOUND
            if is_missing and meant(head.method, head.visitor.path) is not None:
                await self._read_error(replica, upstream)
            return upstream
        except LocalFault as error:
            ticket.attempt_failed(error, is_local=True)
        except ConnectTimedOut as error:
            self._health.check_now(replica.id)
            ticket.attempt_failed(error)
        except ConnectFailed as error:
            self._health.suspect(replica.id, str(error))
            ticket.attempt_failed(error)
        except AnswerTimedOut as error:
            ticket.attempt_failed(error, timed_out=True)
        except AnswerMissing as error:
            self._health.check_now(replica.id)
            ticket.attempt_failed(error)
        return None

    async def _read_error(self, replica: Replica, upstream: UpstreamConnection) -> bytes:
        """The body of an error. It is there to be passed on then."""
        timer = asyncio.get_running_loop().call_later(_ERROR_WITHIN_S, upstream.give_up_on_rest)
        try:
            return await read_whole(upstream)
        except BaseException:
            replica.release(upstream, reuse=False)
            raise
        finally:
            timer.cancel()


def _plain(request: HttpRequest) -> HttpRequest:
    fields = [field for field in request.head.headers if field[0].lower() != b"accept-encoding"]
    fields.append((b"Accept-Encoding", b"identity"))
    head = msgspec.structs.replace(request.head, headers=fields, passed_on={})
    return HttpRequest(head, request.body, request.before)
