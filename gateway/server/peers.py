"""The other gateways: who lives, and how a request gets to the one that has its session.

Each gateway says every `_PERIOD_S` that it lives, in the shared store; who has not said so for
`_GONE_AFTER_S` is gone, and its sessions go on elsewhere. A request goes to a peer as it came, over a
listener of the peers' own, with the address that it came from and a secret that only the fleet knows.

A gateway that could not say that it lives may have been taken for gone. It asks who has its sessions, and
gives back what was passed on to it and is another's by now. A store that was away has forgotten who lives:
until all had the time to say so again, those who lived before are taken to live.

Invariants: a request is passed on at most once; a client cannot claim to be a peer; where no peer answers or
takes it, the request is decided here; gateways that do not know the same secret pass nothing on.
"""

import asyncio
import contextlib
import hmac
import logging
import secrets
import time
from collections.abc import Callable, Coroutine, Mapping
from http import HTTPStatus
from typing import Any, Final, TypeVar

import msgspec

from gateway.config import Config
from gateway.config.server import split_listen
from gateway.core import events as ev
from gateway.core import refusals
from gateway.domain.decision import Refusal, RefusalReason
from gateway.domain.ids import PoolId, ReplicaId, TenantId
from gateway.domain.request import Protocol, RequestFacts
from gateway.domain.shares import Share
from gateway.domain.turn_trace import TurnTrace
from gateway.server.connection import ClientConnection
from gateway.server.door import Door, Visitor
from gateway.server.driver import Driver
from gateway.server.listener import Listener
from gateway.server.listening import listening_sockets
from gateway.server.relay import framing_of
from gateway.server.request_parser import HttpRequest
from gateway.shared_state.directory import HERE, Directory, Peer
from gateway.shared_state.fleet_secret import SETTLES_S, derived, keep
from gateway.shared_state.opening import open_shared
from gateway.shared_state.protocol import Store, StoreUnavailable
from gateway.upstream.errors import AnswerCut, AnswerMissing, UpstreamError
from gateway.upstream.replica import Address, Replica
from gateway.wire.headers import RawHeaders
from gateway.wire.hop_by_hop import end_to_end
from gateway.wire.splice import Chunk

T = TypeVar("T")

_log: Final = logging.getLogger(__name__)
_PERIOD_S: Final = 0.1
_GONE_AFTER_S: Final = 1.0
"""Ten periods. A process that computes for longer than that in one go is taken for gone."""
_BUSY_FROM: Final = 0.5
"""Share of its core that a gateway uses, from which new sessions begin where they come in: below it one core
serves all, above it the others must help."""
_BUSY_OVER_S: Final = 1.0
_CONNECT_WITHIN_S: Final = 0.5
_KEEPS_SECRET_EVERY: Final = 10
"""Periods."""
_PASSED: Final = b"x-turnpike-passed"
_BACK: Final = b"x-turnpike-passed: back\r\n"
"""In an answer: the request is not for the one that got it, which did nothing with it."""
_DROPPED: Final = frozenset((b"content-length", b"expect", _PASSED))


class _Told(msgspec.Struct, frozen=True, array_like=True):
    """What a gateway says of itself."""

    url: str
    is_busy: bool
    is_leaving: bool
    share: Share
    fleet: int
    """The same at all that know the same secret."""


class Peers:
    listener: Listener
    """Where the peers pass requests on to; like what follows, there after `open`."""
    directory: Directory
    _store: Store

    def __init__(
        self,
        config: Config,
        environ: Mapping[str, str],
        driver: Driver,
        secret: bytes,
        *,
        is_worker: bool,
        now: Callable[[], float],
    ) -> None:
        """`secret`: the fleet's; `is_worker`: it is one of several on this machine, as one has not the time
        for all."""
        self.alive: dict[str, Peer] = {}
        self.token = f"{derived(secret, 'peers'):x}"
        self.is_leaving = False
        self.passed_on = self.adopted = self.unreached = 0
        self._secret = secret
        self._fleet = derived(secret, "fleet")
        self._config = config.shared
        self._environ = environ
        self._is_worker = is_worker
        self._driver = driver
        self._origin = secrets.token_hex(6)
        self._upstream = msgspec.structs.replace(
            config.upstream,
            connect_timeout_s=_CONNECT_WITHIN_S,
            head_timeout_s=config.upstream.head_timeout_s + config.core.max_held_s,
        )
        self._now = now
        self._url = ""
        self._links: dict[str, Replica] = {}
        self._told_s = self._tried_s = now()
        """When it said last, and when it last tried to say, that it lives."""
        self._doubted_s = self._settled_s = now()
        self._others: dict[str, _Told] = {}
        self._has_shared = self._has_warned = False
        self._load = _Load(now)
        self._loop = asyncio.get_running_loop()
        self._idle_s = config.sessions.idle_s
        self._with_quotas = [TenantId(each.name) for each in config.tenants if each.quota.is_limited]

    async def open(self, clients: Listener) -> None:
        """Listens for peers, too. Raises OSError if the address cannot be bound."""
        self._store = await open_shared(self._config, self._environ, self._now)
        knows = self._driver.coordinator.sessions.sessions.knows
        self.directory = Directory(
            self._store,
            self._origin,
            self.alive,
            knows,
            idle_s=self._idle_s,
            with_quotas=self._with_quotas,
        )
        self._driver.on_publish = self.directory.publish
        door = PeerDoor(clients.door, self.token)
        self.listener = Listener(clients.handler, door, clients.limits, now=self._now)
        host, port = split_listen(self._config.peer_listen)
        await self.listener.open(await listening_sockets(host, port), None)
        self._url = self._config.peer_url or f"http://{host}:{self.listener.port}"
        await self.tell()

    # --- who lives -------------------------------------------------------------------------------

    async def watch(self) -> None:
        """Endless, for the caller to run as a task."""
        while True:
            for _ in range(_KEEPS_SECRET_EVERY):
                await self.tell()
                await asyncio.sleep(_PERIOD_S)
            await self._keep_secret()

    async def _keep_secret(self) -> None:
        """A store that lost it would give who starts another one."""
        with contextlib.suppress(StoreUnavailable):
            if not await keep(self._store, self._secret) and not self._has_warned:
                self._has_warned = True
                _log.warning("the shared store has another secret: sessions are shared after a restart")

    async def tell(self) -> None:
        """Says how this gateway is, and learns how the others are. A store that fails changes nothing."""
        is_busy = self._is_worker or self._load.share() >= _BUSY_FROM
        told = _Told(self._url, is_busy, self.is_leaving, self._driver.coordinator.share(), self._fleet)
        self._doubt_if_stopped()
        self._tried_s = now = self._now()
        try:
            values = await self._store.exchange(self._origin, _ENCODER.encode(told), _GONE_AFTER_S)
        except StoreUnavailable:
            self._tried_s = self._now()  # to wait for the store is not to stand still
            return
        others = _decoded(values)
        was_away = now - self._told_s > _GONE_AFTER_S
        self._told_s = now
        if was_away:
            self._doubt()
            self._settled_s = now + SETTLES_S
            await self._keep_secret()
        if now < self._settled_s:
            others = {**self._others, **others}
        self._others = others
        self.alive.clear()
        for origin, peer in others.items():
            if peer.fleet == self._fleet and not peer.is_leaving:
                self.alive[origin] = Peer(is_busy=peer.is_busy)
                self._link(origin, peer.url)
        for origin in [each for each in self._links if each not in others]:
            self._links.pop(origin).close()
        shares = tuple(each.share for each in others.values())
        if shares or self._has_shared:
            self._driver.send(ev.SharesReceived(shares))
        self._has_shared = bool(shares)

    def _doubt(self) -> None:
        self.directory.is_in_doubt = True
        self._doubted_s = self._now()

    def _doubt_if_stopped(self) -> None:
        """The process may have stood still; what waits at its sockets then comes before `tell`."""
        if self._now() - self._tried_s > _GONE_AFTER_S:
            self._doubt()

    async def leave(self) -> None:
        """The others stop passing requests on to this gateway, and go on with its sessions."""
        if not self.is_leaving:
            self.is_leaving = True
            self._doubt()
            await self.tell()

    def _link(self, origin: str, url: str) -> None:
        known = self._links.get(origin)
        if known is not None and known.address.url == url:
            return
        try:
            address = Address.parse(url)
        except ValueError:
            del self.alive[origin]
            return
        self._links[origin] = Replica(
            ReplicaId(origin), PoolId("gateways"), address, config=self._upstream, api_key=None, tls=None
        )

    def sweep(self, *, now: float) -> None:
        for link in self._links.values():
            link.sweep(now=now)
        if now - self._doubted_s > self._idle_s and not self.is_leaving:
            self.directory.is_in_doubt = False  # what it knew then is forgotten

    async def close(self) -> None:
        for link in self._links.values():
            link.close()
        if self._url:
            self.listener.close()
            await self._store.aclose()

    def has(self, visitor: Visitor, facts: RequestFacts) -> bool:
        """Whether the request is for this gateway to decide, as far as that is known without asking."""
        self._doubt_if_stopped()
        return self.directory.is_here(visitor.tenant.id, facts)

    # --- passing on ------------------------------------------------------------------------------

    async def place(
        self, client: ClientConnection, request: HttpRequest, facts: RequestFacts
    ) -> tuple[TurnTrace, ...] | None:
        """Passes the request on if a peer has its session, or back: then None. Else what there is to go on
        with."""
        visitor = request.head.visitor
        tenant: TenantId = visitor.tenant.id
        if visitor.was_passed_on and not self.directory.is_in_doubt:
            return await self._in_task(self.directory.left_behind(tenant, facts))
        for _ in range(2):
            # In a task of its own: who waits is none, and a store's client needs one.
            place = await self._in_task(self.directory.find(tenant, visitor.client, facts))
            owner = place.owner
            if owner is None and self._driver.coordinator.is_draining:
                owner = min(self.alive, default=None)  # whoever it is: it takes the session over
            link = self._links.get(owner) if owner is not None else None
            if visitor.was_passed_on and (link is not None or self.listener.is_draining):
                client.respond(HTTPStatus.MISDIRECTED_REQUEST, _BACK, b"")
                return None
            if link is None:
                self.adopted += len({trace.session for trace in place.adopted})
                return place.adopted
            if await self._pass_on(link, client, request, facts):
                self.passed_on += 1
                return None
            self.unreached += 1
            self.alive.pop(link.id, None)  # until it says again that it lives
            self._others.pop(link.id, None)
        return HERE.adopted

    async def _in_task(self, finding: Coroutine[Any, Any, T]) -> T:
        task = self._loop.create_task(finding)
        try:
            return await task
        except asyncio.CancelledError:
            task.cancel()
            raise

    async def _pass_on(
        self, link: Replica, client: ClientConnection, request: HttpRequest, facts: RequestFacts
    ) -> bool:
        """Whether the client was answered; if not, nothing of the request had any effect."""
        is_head = request.head.method == "HEAD"
        try:
            upstream = await link.exchange(
                self._chunks(link, request), is_head_request=is_head, may_repeat=facts.is_replayable
            )
        except AnswerMissing:
            if facts.is_replayable:
                return False
            client.refuse(facts.protocol, refusals.internal())
            return True
        except UpstreamError:
            return False
        is_reusable = False
        try:
            head = upstream.head
            assert head is not None
            if head.status == HTTPStatus.MISDIRECTED_REQUEST and _BACK in head.start:
                return False
            client.start_response(head.start, framing_of(head, request.head))
            client.follow(upstream)
            upstream.set_sink(client.write)
            client.flush_head()
            await upstream.done
            is_reusable = True
        except AnswerCut:
            client.abort()
        finally:
            client.follow(None)
            link.release(upstream, reuse=is_reusable)
        return True

    def _chunks(self, link: Replica, request: HttpRequest) -> list[Chunk]:
        head = request.head
        lines = [b"%s %s HTTP/1.1\r\n" % (head.method.encode("ascii"), head.target)]
        lines += [b"%s: %s\r\n" % field for field in end_to_end(head.headers, _DROPPED)]
        client = head.visitor.client.encode("ascii")
        lines.append(b"%s: %s %s\r\n" % (_PASSED, self.token.encode(), client))
        lines.append(b"Content-Length: %d\r\n\r\n" % len(request.body))
        return [b"".join(lines), request.body] if request.body else [b"".join(lines)]


def _decoded(values: Mapping[str, bytes]) -> dict[str, _Told]:
    others = {}
    for origin, value in values.items():
        with contextlib.suppress(msgspec.MsgspecError):  # another version of us
            others[origin] = _TOLD.decode(value)
    return others


class PeerDoor(Door):
    """The door for what peers pass on: they say whose request it is, and the tenant's key says the rest."""

    def __init__(self, door: Door, secret: str) -> None:
        self._door = door
        self._secret = secret.encode("ascii")

    def judge(self, method: str, target: bytes, headers: RawHeaders, peer: str) -> Visitor | Refusal:
        told = next((value for name, value in headers if name.lower() == _PASSED), b"")
        secret, _, client = told.partition(b" ")
        if not client or not hmac.compare_digest(secret, self._secret):
            message = "This port is for the gateways alone."
            return Refusal(reason=RefusalReason.FORBIDDEN, message=message)
        found = self._door.judge_client(method, target, headers, client.decode("ascii", "replace"))
        if isinstance(found, Visitor):
            return msgspec.structs.replace(found, was_passed_on=True)
        return found

    def protocol_of(self, path: str) -> Protocol:
        return self._door.protocol_of(path)


class _Load:
    """What share of a core this process used lately."""

    def __init__(self, now: Callable[[], float]) -> None:
        self._now = now
        self._at_s, self._used_s = now(), time.process_time()
        self._share = 0.0

    def share(self) -> float:
        now = self._now()
        if now - self._at_s >= _BUSY_OVER_S:
            used_s = time.process_time()
            self._share = (used_s - self._used_s) / (now - self._at_s)
            self._at_s, self._used_s = now, used_s
        return self._share


_ENCODER: Final = msgspec.msgpack.Encoder()
_TOLD: Final = msgspec.msgpack.Decoder(_Told)
