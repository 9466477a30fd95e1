"""Prepared: a request's body can be read, its facts are known, nothing forbids it, and it is decided here.

What needs no decision of the brain is answered on the way: lists of models, releases of sessions, requests of
sessions that another gateway has.
"""

from functools import partial
from typing import Final
from urllib.parse import unquote

import msgspec

from gateway.core import events as ev
from gateway.core import refusals
from gateway.core.turn_records import GPU_WORK
from gateway.domain.decision import Refusal
from gateway.domain.ids import ReplicaId, clean_name
from gateway.domain.request import Protocol, RequestFacts, Work
from gateway.server.cluster.peer_client import PassOn
from gateway.server.cluster.peers import Peers
from gateway.server.http.client_connection import ClientConnection
from gateway.server.http.refused_request import RefusedRequest
from gateway.server.http.request_parser import HttpRequest
from gateway.server.proxy.driver import Driver
from gateway.server.proxy.finish_session import release
from gateway.server.proxy.read_request import Reading
from gateway.server.proxy.upstream_request import is_form_alone
from gateway.upstream.health_probes import HealthChecks
from gateway.wire.endpoints import RELEASES
from gateway.wire.inflate import INFLATABLE
from gateway.wire.splice import is_object

_LISTING: Final = "/v1/models"
_MODELS: Final = "/v1/models/"
_TIMED_ONE_IN: Final = 15


class Prepared(msgspec.Struct):
    request: HttpRequest
    facts: RequestFacts
    without: tuple[ReplicaId, ...] = ()
    """Replicas that may not have it."""
    began_s: float = 0.0
    """When it came; 0 if its time is not measured."""


class RequestPreparation(msgspec.Struct):
    driver: Driver
    reading: Reading
    health: HealthChecks
    peers: Peers | None
    """None for the only gateway."""
    are_keys_required: bool
    is_salted: bool
    """Each tenant has a prefix cache of its own."""
    count: int = 0

    async def prepare(self, client: ClientConnection, request: HttpRequest) -> Prepared | None:
        """None if it was answered here, or by another gateway."""
        self.count += 1
        began_s = 0.0 if self.count & _TIMED_ONE_IN else self.driver.clock()
        endpoint, path = request.head.caller.endpoint, request.head.caller.path
        if path.startswith(_LISTING) and self._lists_models(client, request):
            return None
        try:
            plain = await self.reading.plain(request, client.budget)
            if plain is not request:
                client.hold_instead(plain)
                request = plain
        except RefusedRequest as error:
            client.refuse(endpoint.protocol, error.refusal)
            return None
        facts = await self.reading.read(request)
        if path.startswith(_MODELS):
            name = unquote(path.removeprefix(_MODELS))
            if self._shows_model(client, request, name):
                return None
            facts = msgspec.structs.replace(facts, model=clean_name(name))
        refusal = refusal_of(
            request, facts, are_keys_required=self.are_keys_required, is_salted=self.is_salted
        )
        if refusal is not None:
            client.refuse(endpoint.protocol, refusal)
        elif endpoint.name in RELEASES and not facts.is_relayed:
            await release(self.driver, self.peers, client, request, facts)
        elif self.peers is None or await self.is_ours(
            request, facts, partial(self.peers.links.pass_on, client, request, facts)
        ):
            return Prepared(request, facts, began_s=began_s)
        return None

    def _lists_models(self, client: ClientConnection, request: HttpRequest) -> bool:
        """Whether it is for the list of models, which is answered here."""
        head = request.head
        is_listing = head.caller.path.rstrip("/") == _LISTING and head.method in ("GET", "HEAD")
        if not (is_listing and self.health.lists_models):
            return False
        client.respond(200, b"", msgspec.json.encode(self.health.merged_models()))
        return True

    def _shows_model(self, client: ClientConnection, request: HttpRequest, name: str) -> bool:
        is_named = name in self.health.named and request.head.method in ("GET", "HEAD")
        card = self.health.cards().get(name) if is_named else None
        if card is not None:
            client.respond(200, b"", msgspec.json.encode(card))
        return card is not None

    async def is_ours(self, request: HttpRequest, facts: RequestFacts, pass_on: PassOn | None) -> bool:
        """Whether it is decided here; what other gateways know of its session is known here from then on.
        `pass_on`: sends it to the gateway that has its session; None if it is to go on here."""
        peers, caller = self.peers, request.head.caller
        if peers is None or peers.has(caller, facts):
            return True
        if pass_on is None:
            left = await peers.left_for_us(caller, facts)
        elif (placed := await peers.place(request, facts, pass_on)) is not None:
            left = placed
        else:
            return False
        for trace in left:
            self.driver.send(ev.SessionAdopted(trace))
        return True


def refusal_of(
    request: HttpRequest, facts: RequestFacts, *, are_keys_required: bool, is_salted: bool
) -> Refusal | None:
    """None if it may pass."""
    may_move_kv = request.head.caller.tenant.may_move_kv
    if facts.moves_kv and not may_move_kv:
        return refusals.moves_kv()
    if facts.names_response and are_keys_required:
        return refusals.names_response()
    coding = request.head.facts.coding if request.body else ""
    # Where tenants are apart, what is not known must not matter. An engine may see more than we do in an
    # unknown coding, and in what is too much to be read: an id of a session that was stopped, another
    # model, KV caches, another tenant's response.
    is_turn, is_ours = facts.work is Work.GENERATE, facts.protocol is Protocol.RESPONSES
    must_be_known = is_turn or is_ours or not may_move_kv
    is_unknown = coding or (not facts.is_readable and (is_ours or (facts.is_hidden and is_turn)))
    # Where no salt can be put, an engine might take the client's: one that passes over the coding, say.
    lacks_salt = False
    if is_salted and request.body and facts.work in GPU_WORK:
        is_form = is_form_alone(request) and request.body.startswith(b"--")
        lacks_salt = bool(coding) or not (is_form or is_object(request.body))
    if lacks_salt or (are_keys_required and must_be_known and is_unknown):
        return refusals.unread(coding, facts, is_known=coding in INFLATABLE, swells=request.swells)
    return None
