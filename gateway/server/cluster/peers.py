"""The other gateways: which are alive, and how a request gets to the one that has its session.

Each gateway writes a heartbeat to the shared store every `_PERIOD_S`. Without one for `_GONE_AFTER_S` it is
gone: it gets no new requests, its sessions go on elsewhere, and its answers that have begun may end. A
request goes to a peer as it came, over a listener of the peers' own, with the address that it came from.
Peers are authenticated by the fleet's secret (`peer_heartbeats.py`).

While the store is away, gateways exchange heartbeats directly, over the same listeners, and requests go to
the homes of what they name. One that alone lost the store does so, too.

A gateway that could not send its heartbeat may have been taken for gone. It looks up the owners of its
sessions, and gives back what was passed on to it and is another's by now. A store that was away has lost the
heartbeats: until all had the time to send a new one, the gateways alive before are taken to be alive.

Operators' drains are stored beside the heartbeats, under names of their own (`drains.py`). A heartbeat names
the replicas that its gateway finds dead; the others then check these at once for themselves: the sender's
network may be at fault.

Invariants: a request is passed on at most once; a client cannot claim to be a peer; where no peer answers or
takes it, the request is decided here; gateways that do not have the same secret are strangers.
"""

import asyncio
import contextlib
import secrets
from collections import deque
from collections.abc import Callable, Coroutine, Mapping, Sequence
from functools import partial
from http import HTTPStatus
from itertools import count
from typing import Any, Final, TypeVar

import msgspec

from gateway.config import Config
from gateway.config.server import split_listen
from gateway.core import events as ev
from gateway.domain.ids import ReplicaId, TenantId
from gateway.domain.request import RequestFacts
from gateway.domain.turn_trace import TurnTrace
from gateway.fleet.breaker_states import BreakerState
from gateway.server.auth.authenticator import Authenticator, Caller
from gateway.server.cluster.drains import Drain, Drains
from gateway.server.cluster.peer_auth import PATH, Passing, PeerAuthenticator
from gateway.server.cluster.peer_client import PassOn, PeerLinks
from gateway.server.cluster.peer_heartbeats import LASTS_S, DirectTalk, PeerHeartbeat
from gateway.server.cluster.process_load import ProcessLoad
from gateway.server.http.client_connection import ClientConnection, Handler
from gateway.server.http.listener import Listener
from gateway.server.http.listening import binding, listening_sockets
from gateway.server.http.request_parser import HttpRequest
from gateway.server.proxy.driver import Driver
from gateway.shared_state.allowances import Allowances
from gateway.shared_state.breaker import LONGEST_WAIT_S
from gateway.shared_state.directory import HERE, Directory, Peer
from gateway.shared_state.fleet_secret import Seal
from gateway.shared_state.opening import open_shared
from gateway.shared_state.protocol import Store, StoreUnavailable
from gateway.upstream.replica import Replica
from gateway.upstream.tls import PeerTls

T = TypeVar("T")

_PERIOD_S: Final = 0.1
# Ten periods. A process that computes for longer than that in one go is taken for gone.
_GONE_AFTER_S: Final = LASTS_S
# So long after a store came back all gateways that run have reached it.
_SETTLES_S: Final = LONGEST_WAIT_S + 1.0
# Share of its core that a gateway uses, from which new sessions begin where they come in: below it one core
# serves all, above it the others must help.
_BUSY_FROM: Final = 0.5
# To pass a request on: to who has its session, to the heir of that, and to the heir's.
_TRIES: Final = 3
_DRAIN_TTL_S: Final = 30 * 86_400.0
_NO_TIME_S: Final = 0.001
# In one heartbeat: 9 kB. Of more in a second, the others learn from the store.
_MAX_TWINS: Final = 1024
_EJECTED: Final = BreakerState.EJECTED
# With the name of a replica: the store's name for its drain.
_DRAIN: Final = "drain "


class Peers:
    listener: Listener
    """Where the peers pass requests on to; like what follows, there after `open`."""
    directory: Directory
    store: Store

    def __init__(
        self,
        config: Config,
        environ: Mapping[str, str],
        driver: Driver,
        secret: bytes,
        *,
        drains: Drains,
        check_now: Callable[[ReplicaId], None],
        now: Callable[[], float],
    ) -> None:
        self.alive: dict[str, Peer] = {}
        # HOST:PORT where a picker takes streams that are passed on; to be set before `open`.
        self.picks_at = ""
        self._origin = secrets.token_hex(6)
        self.passing = Passing(secret)
        self._tls = PeerTls.of(config.shared)
        self.links = PeerLinks(config, self.passing, self._tls.client)
        self.is_leaving = False
        self.passed_on = self.adopted = self.unreached = 0
        self._secret = secret
        self._config = config
        self._environ = environ
        self._driver = driver
        self._drains = drains
        self._check_now = check_now
        self._now = now
        self._url = ""
        # Of the last heartbeat in the store, and of the last attempt.
        self._sent_s = self._tried_s = now()
        self._doubted_s = now()
        self._settled_s = now()
        self._others: dict[str, PeerHeartbeat] = {}
        # Names of what this gateway and another one gave, and when they were found.
        self._twins: deque[tuple[float, int]] = deque(maxlen=_MAX_TWINS)
        self._direct = DirectTalk(self._origin, secret, now, self.links)
        self._exchanging: asyncio.Task[bool] | None = None
        self._drain_seal = Seal(secret, "drains")
        self._has_shared = False
        self._numbers = count(1)
        self._load = ProcessLoad(now)
        self._loop = asyncio.get_running_loop()

    async def open(self, clients: Listener) -> None:
        """Listens for peers, too. Raises OSError if the address cannot be bound."""
        config, idle_s = self._config, self._config.sessions.idle_s
        self.store = await open_shared(config.shared, self._environ, self._secret)
        sessions = self._driver.coordinator.sessions.sessions
        self.directory = Directory(
            self.store,
            self._origin,
            self.alive,
            lambda tenant, facts: sessions.knows(tenant, facts, now=self._now()),
            found_twins=self._found_twins,
            idle_s=idle_s,
            with_quotas=_with_quotas(config),
            allowances=Allowances(config.shared.max_tenant_mb * 1e6, stays_s=idle_s, now=self._now),
        )
        self._driver.on_publish = self.directory.publish
        handler = partial(self._handle, clients.handler)
        self.listener = Listener(
            handler,
            self.authenticator(clients.authenticator),
            clients.limits,
            access_log=clients.access_log,
            now=clients.now,
        )
        listen = config.shared.peer_listen
        with binding("shared.peer_listen", listen):
            sockets = await listening_sockets(*split_listen(listen))
        await self.listener.open(sockets, self._tls.server)
        host = listen.rpartition(":")[0]
        self._url = config.shared.peer_url or f"{config.shared.peer_scheme}://{host}:{self.listener.port}"
        await self.send_heartbeat()
        if self._exchanging is not None:  # clients come next, whose sessions may be the others'
            await self._exchanging
            await self.send_heartbeat()

    def authenticator(self, authenticator: Authenticator) -> PeerAuthenticator:
        return PeerAuthenticator(authenticator, self.passing, self._origin)

    def pickers(self) -> dict[str, str]:
        return {origin: each.picks_at for origin, each in self._others.items()}

    def apply_config(self, config: Config) -> None:
        self.directory.with_quotas = _with_quotas(config)
        self.listener.apply_config(config.server.limits, None)

    # --- heartbeats ------------------------------------------------------------------------------

    async def watch(self) -> None:
        while True:
            await self.send_heartbeat()
            await asyncio.sleep(_PERIOD_S)

    def _heartbeat(self) -> bytes:
        # Of a shared port, a connection stays with the gateway that it came in at: a session that began
        # elsewhere would be passed on with each turn, at twice the CPU time.
        is_busy = self._config.server.reuse_port or self._load.share() >= _BUSY_FROM
        coordinator = self._driver.coordinator
        fleet, health = coordinator.fleet, coordinator.fleet.health
        heartbeat = PeerHeartbeat(
            self._url,
            is_busy,
            self.is_leaving,
            coordinator.share(),
            tuple(
                each.facts.id for each in fleet if not each.is_up or health.state(each.facts.id) is _EJECTED
            ),
            next(self._numbers),
            self._lately_found(),
            self.picks_at,
        )
        return self._direct.announce(heartbeat)

    def _found_twins(self, names: Sequence[int]) -> None:
        self._driver.send(ev.AmbiguousEvidence(tuple(names)))
        now = self._now()
        self._twins.extend([(now, name) for name in names])

    def _lately_found(self) -> tuple[int, ...]:
        """A gateway that misses them learns of them from the store, which has marked them."""
        while self._twins and self._now() - self._twins[0][0] > _GONE_AFTER_S:
            self._twins.popleft()
        return tuple([name for _, name in self._twins])

    async def send_heartbeat(self) -> None:
        self._doubt_if_stopped()
        self._tried_s = now = self._now()
        try:
            values = await self.store.exchange(self._origin, self._heartbeat(), _GONE_AFTER_S)
        except StoreUnavailable:
            self._tried_s = self._now()  # to wait for the store is not to stand still
            urls = {origin: each.url for origin, each in self._others.items()} | self._direct.unproven()
            if await self._direct.exchange(urls, self._heartbeat()):
                self._take_in(self._direct.recent())
            return
        was_away = now - self._sent_s > _GONE_AFTER_S
        self._sent_s = now
        drains = {}
        for name, value in values.items():
            if not name.startswith(_DRAIN):
                self._direct.record_peer(name, value)
            elif (drain := self._read_drain(name, value)) is not None:
                drains[ReplicaId(name.removeprefix(_DRAIN))] = drain
        if was_away:
            self._doubt()
            self._settled_s = now + _SETTLES_S
        unproven = self._direct.unproven()
        if unproven and (self._exchanging is None or self._exchanging.done()):
            self._exchanging = self._loop.create_task(self._direct.exchange(unproven, self._heartbeat()))
        # A store that is another one by now, a stale replica, lacks recent heartbeats.
        others = self._direct.recent()
        if now < self._settled_s:
            others = {**self._others, **others}
        self._take_in(others)
        await self._put_drains(self._drains.merge_remote(drains))

    def _read_drain(self, name: str, value: bytes) -> Drain | None:
        with contextlib.suppress(msgspec.MsgspecError):  # nobody's of the fleet, or of another version of us
            return msgspec.msgpack.decode(self._drain_seal.take(name.encode(), value) or b"", type=Drain)
        return None

    def _take_in(self, others: dict[str, PeerHeartbeat]) -> None:
        before, now = self._others.values(), others.values()
        for replica in {name for each in now for name in each.dead}.difference(
            *(each.dead for each in before)
        ):
            self._check_now(replica)
        twins = {name for each in now for name in each.twins}.difference(*(each.twins for each in before))
        if twins:
            self._driver.send(ev.AmbiguousEvidence(tuple(twins)))
        self._others = others
        self.alive.clear()
        for origin, peer in others.items():
            if not peer.is_leaving and self.links.connect(origin, peer.url):
                self.alive[origin] = Peer(is_busy=peer.is_busy)
        self.links.keep(others)
        shares = tuple(each.share for each in others.values())
        if shares or self._has_shared:
            self._driver.send(ev.SharesReceived(shares))
        self._has_shared = bool(shares)

    async def _put_drains(self, missing: Mapping[ReplicaId, Drain | None]) -> None:
        with contextlib.suppress(StoreUnavailable):
            for replica, drain in missing.items():
                ttl_s = _NO_TIME_S if drain is None else _DRAIN_TTL_S
                name = f"{_DRAIN}{replica}"
                value = self._drain_seal.put(name.encode(), msgspec.msgpack.encode(drain))
                await self.store.exchange(name, value, ttl_s)

    async def _handle(self, handler: Handler, client: ClientConnection, request: HttpRequest) -> None:
        if request.head.caller.path == PATH:
            client.is_logged = False
            client.respond(HTTPStatus.OK, b"", self._direct.answer(request.body, self._heartbeat()))
        else:
            await handler(client, request)

    # --- who may have been taken for gone ----------------------------------------------------------

    def _doubt(self) -> None:
        self.directory.is_in_doubt = True
        self._doubted_s = self._now()

    def _doubt_if_stopped(self) -> None:
        """The process may have stood still; what waits at its sockets then comes before the next
        heartbeat."""
        if self._now() - self._tried_s > _GONE_AFTER_S:
            self._doubt()

    @property
    def withheld(self) -> int:
        return self.directory.withheld

    async def leave(self) -> None:
        if not self.is_leaving:
            self.is_leaving = True
            self._doubt()
            await self.send_heartbeat()

    def sweep(self, *, now: float) -> None:
        self.links.sweep(now=now)
        if now - self._doubted_s > self._config.sessions.idle_s and not self.is_leaving:
            self.directory.is_in_doubt = False  # what it knew then is forgotten

    async def close(self) -> None:
        self.links.close()
        if self._exchanging is not None:
            self._exchanging.cancel()
            await asyncio.wait([self._exchanging])
        await self._direct.close()
        if self._url:
            self.listener.close()
            await self.store.aclose()

    def has(self, caller: Caller, facts: RequestFacts) -> bool:
        self._doubt_if_stopped()
        return self.directory.is_here(caller.tenant.id, facts)

    # --- whose a request is ----------------------------------------------------------------------

    async def place(
        self, request: HttpRequest, facts: RequestFacts, pass_on: PassOn
    ) -> tuple[TurnTrace, ...] | None:
        """Passes the request on if a peer has its session, or back: then None. Else what there is to go on
        with."""
        caller = request.head.caller
        tenant: TenantId = caller.tenant.id
        if caller.is_from_peer and not self.directory.is_in_doubt:
            if not caller.takes_over_session:
                return ()
            return self._counted(await self._in_task(self.directory.inherited(tenant, facts)))
        for _ in range(_TRIES):
            # In a task of its own: who waits is none, and a store's client needs one.
            place = await self._in_task(self.directory.find(tenant, caller.client, facts))
            owner, takes_over_session = place.owner, place.takes_over_session
            if owner is None and self._driver.coordinator.is_draining:
                owner = min(self.alive, default=None)  # whoever it is: it takes the session over
                takes_over_session = True
            link = self.links.get(owner)
            if caller.is_from_peer and (link is not None or self.listener.is_draining):
                await pass_on(None, False)
                return None
            if link is None:
                return self._counted(place.adopted)
            if await pass_on(link, takes_over_session):
                self.passed_on += 1
                return None
            self.unreached += 1
            self.alive.pop(link.id, None)  # until its next heartbeat
            self._others.pop(link.id, None)
            self._direct.missed(link.id)
        return HERE.adopted

    @property
    def opened_store(self) -> Store | None:
        return getattr(self, "store", None)

    async def who_has(self, tenant: TenantId, stated: str) -> Replica | None:
        """The other gateway with a session that its client calls so; None if there is none."""
        return self.links.get(await self._in_task(self.directory.owner_of(tenant, stated)))

    async def left_for_us(self, caller: Caller, facts: RequestFacts) -> tuple[TurnTrace, ...]:
        place = await self._in_task(self.directory.find(caller.tenant.id, caller.client, facts))
        return self._counted(place.adopted)

    def _counted(self, adopted: tuple[TurnTrace, ...]) -> tuple[TurnTrace, ...]:
        self.adopted += len({trace.session for trace in adopted})
        return adopted

    async def _in_task(self, finding: Coroutine[Any, Any, T]) -> T:
        task = self._loop.create_task(finding)
        try:
            return await task
        except asyncio.CancelledError:
            task.cancel()
            raise


def _with_quotas(config: Config) -> frozenset[TenantId]:
    return frozenset(TenantId(each.name) for each in config.tenants if each.quota.is_limited)
