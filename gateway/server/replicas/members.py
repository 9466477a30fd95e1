"""Members of the fleet, as they come and go while the gateway runs: found, registered, drained, lost.

On the control listener, for whoever may act there:

    POST   /turnpike/replicas             {"url", "pool"?, "name"?}   registers, or is a heartbeat
    DELETE /turnpike/replicas/{name}                                  leaves
    POST   /turnpike/replicas/{name}/drain {"draining": true|false}   no new turns; or turns again
"""

import asyncio
import random
from collections.abc import Awaitable, Callable, Collection
from functools import partial
from typing import Final

import msgspec
from aiohttp import web

from gateway.config import Config
from gateway.config.upstream import DiscoveryConfig, KvEventsConfig, ReplicaName
from gateway.core import events as ev
from gateway.domain.ids import PoolId, ReplicaId
from gateway.fleet.membership import SET, Changes, Member, Membership, MembershipError
from gateway.server.admin.loaded_references import LoadedReferences
from gateway.server.cluster.drains import Drains
from gateway.server.replicas.endpoint_slices import EndpointSnapshot
from gateway.server.replicas.kubernetes import KubernetesDiscovery
from gateway.server.replicas.replica_discovery import Discovery
from gateway.server.runtime.tasks import TaskGroup, check_each
from gateway.upstream.local_faults import LocalFaults
from gateway.upstream.replica import Address, Replica, Transport

_LOOK_PERIOD_S: Final = 1.0
# What a list is called in the reason for which a replica left.
_KUBERNETES: Final = "service"


class Registration(msgspec.Struct, frozen=True, kw_only=True):
    url: str
    pool: str | None = None
    """By default the only one that takes registrations."""
    name: ReplicaName | None = None


class Draining(msgspec.Struct, frozen=True):
    draining: bool = True


class Members:
    """`replicas`: by name, for everybody who looks one up; this adds to it and takes away."""

    def __init__(
        self,
        config: Config,
        references: LoadedReferences,
        *,
        clock: Callable[[], float],
        local_faults: LocalFaults,
        send: Callable[[ev.Event], None],
    ) -> None:
        self._config = config
        self._references = references
        self._clock = clock
        self._local_faults = local_faults
        self._discoveries = {pool.name: pool.discovery for pool in config.pools if pool.discovery is not None}
        members = _members(config)
        self.replicas = {member.name: self._replica(member) for member in members}
        self._leaving: list[Replica] = []
        self._membership = Membership(members)
        self._on_join: Callable[[Replica], None] = lambda _: None
        self._on_leave: Callable[[ReplicaId], None] = lambda _: None
        self._tasks = TaskGroup()
        self._feeds: dict[ReplicaId, tuple[KvEventsConfig, asyncio.Task[None]]] = {}
        self._send = send
        self.drains = Drains(self.replicas, send)
        # To be set if there may be other gateways.
        self.publish_drains: Callable[[], Awaitable[None]] | None = None

    def open(
        self, tasks: TaskGroup, on_join: Callable[[Replica], None], on_leave: Callable[[ReplicaId], None]
    ) -> None:
        """Begins to look for members. `on_join` is called for each, now and later; `on_leave` for each that
        leaves, before another joins under its name."""
        self._tasks, self._on_join, self._on_leave = tasks, on_join, on_leave
        self._now = asyncio.get_running_loop().time
        for replica in self.replicas.values():
            self._send(ev.ReplicaJoined(replica.id, replica.pool))
            on_join(replica)
        pools = {pool.name: pool for pool in self._config.pools}
        for name, each in self._discoveries.items():
            if each.file is not None or each.dns is not None:
                tasks.supervise("discovery", Discovery(pools[name], each, self._on_discovery).run)
            if each.kubernetes is not None:
                on_snapshot, rng = partial(self._on_snapshot, PoolId(name)), random.Random()  # noqa: S311
                following = KubernetesDiscovery(each.kubernetes, on_snapshot, rng=rng)
                tasks.supervise("discovery in Kubernetes", following.run)
        self._follow_feeds()
        tasks.supervise("registrations", self._look_after)

    def apply_config(self, config: Config, references: LoadedReferences) -> None:
        self._config, self._references = config, references
        changes = self._membership.replace_configured(_members(config))
        for member in changes.left:
            self._leave(member, "the settings do not name it any more")
        for member in changes.joined:
            self._join(member)
        for replica in self.replicas.values():
            replica.apply_config(config.upstream, api_key=self._key_of(replica.id, replica.pool))
            replica.responses_websocket = self._takes_websockets(replica.id, replica.pool)
        self._follow_feeds()

    def _follow_feeds(self) -> None:
        wanted = {
            ReplicaId(name): each.kv_events
            for pool in self._config.pools
            for name, each in zip(pool.names(), pool.replicas, strict=True)
            if each.kv_events is not None
        }
        for name in [name for name, (settings, _) in self._feeds.items() if wanted.get(name) != settings]:
            self._feeds.pop(name)[1].cancel()
        for name, settings in wanted.items():
            if name not in self._feeds:
                from gateway.upstream.kv_feed import KvFeed  # noqa: PLC0415 - only who asks needs ZeroMQ

                feed = KvFeed(
                    name, settings, lambda *residency: self._send(ev.CacheResidencyReported(*residency))
                )
                self._feeds[name] = settings, self._tasks.supervise("KV events", feed.run)

    def close(self) -> None:
        for replica in (*self.replicas.values(), *self._leaving):
            replica.close()

    def sweep(self, *, now: float) -> None:
        all_there_are = (*self.replicas.values(), *self._leaving)
        check_each("replica's connections", all_there_are, lambda replica: replica.sweep(now=now))
        for replica in [each for each in self._leaving if not each.busy_count]:
            self._leaving.remove(replica)
            replica.close()

    # --- those who come and go ---------------------------------------------------------------------

    async def _look_after(self) -> None:
        while True:
            began_s = self._now()
            await asyncio.sleep(_LOOK_PERIOD_S)
            if self._local_faults.lost_s(began_s, now=self._now()):
                continue  # heartbeats that came meanwhile are read first
            for member in self._membership.expired(now=self._clock()):
                self._leave(member, "did not register again in time")

    def _on_discovery(self, pool: PoolId, origin: str, urls: Collection[str]) -> None:
        changes: Changes = self._membership.replace_listed(pool, origin, urls)
        for member in changes.left:
            self._leave(member, f"is not in the pool's {origin} any more")
        for member in changes.joined:
            self._join(member)

    def _on_snapshot(self, pool: PoolId, snapshot: EndpointSnapshot) -> None:
        """A terminating or unready endpoint does not join; a member stays, without new turns."""
        going = set(snapshot.draining)
        stay = [each.url for each in self._membership.of_list(pool, _KUBERNETES) if each.url in going]
        self._on_discovery(pool, _KUBERNETES, [*snapshot.up, *stay])
        for member in self._membership.of_list(pool, _KUBERNETES):
            self.drains.found(member.name, is_going=member.url in going)

    def _join(self, member: Member) -> None:
        replica = self.replicas[member.name] = self._replica(member)
        self._send(ev.ReplicaJoined(member.name, member.pool))
        self._on_join(replica)
        self.drains.joined(member.name)

    def _leave(self, member: Member, why: str) -> None:
        replica = self.replicas.pop(member.name)
        self._leaving.append(replica)
        self._on_leave(member.name)
        self._send(ev.ReplicaLeft(member.name, why))
        self.drains.left(member.name)

    def _replica(self, member: Member) -> Replica:
        address = Address.of_backend(member.url)
        return Replica(
            member.name,
            member.pool,
            address,
            config=self._config.upstream,
            api_key=self._key_of(member.name, member.pool),
            transport=Transport(
                self._references.upstream_tls if address.is_tls else None,
                self._config.server.limits.tcp_keepalive_s,
            ),
            local_faults=self._local_faults,
            responses_websocket=self._takes_websockets(member.name, member.pool),
        )

    def _takes_websockets(self, name: ReplicaId, pool: PoolId) -> bool:
        for its_pool in self._config.pools:
            if its_pool.name == pool:
                own = dict(zip(its_pool.names(), its_pool.replicas, strict=True)).get(name)
                settings = own or its_pool.discovery
                return settings is not None and settings.responses_websocket
        return False  # it is about to leave

    def _key_of(self, name: ReplicaId, pool: PoolId) -> str | None:
        named = self._references.replica_keys
        return named[name] if name in named else self._references.pool_keys.get(pool)

    # --- registrations -----------------------------------------------------------------------------

    def routes(self) -> list[web.RouteDef]:
        return [
            web.post("/turnpike/replicas", self._register),
            web.delete("/turnpike/replicas/{name}", self._withdraw),
            web.post("/turnpike/replicas/{name}/drain", self._drain),
        ]

    async def _register(self, request: web.Request) -> web.Response:
        try:
            registration = msgspec.json.decode(await request.read(), type=Registration)
            pool, discovery = self._pool_for(registration.pool)
            url = Address.of_backend(registration.url).url
            member, is_new = self._membership.heartbeat(
                pool, url, registration.name, ttl_s=discovery.ttl_s, now=self._clock()
            )
        except (msgspec.MsgspecError, ValueError) as error:
            return web.json_response({"error": str(error)}, status=400)
        except MembershipError as error:
            return web.json_response({"error": str(error)}, status=409)
        if is_new:
            self._join(member)
        reply = {"name": member.name, "pool": member.pool, "ttl_s": discovery.ttl_s}
        return web.json_response(reply, status=201 if is_new else 200)

    def _pool_for(self, name: str | None) -> tuple[PoolId, DiscoveryConfig]:
        takers = {pool: each for pool, each in self._discoveries.items() if each.registration}
        if name is None and len(takers) == 1:
            name = next(iter(takers))
        if name is None or name not in takers:
            raise MembershipError("no pool of that name takes registrations")
        return PoolId(name), takers[name]

    async def _withdraw(self, request: web.Request) -> web.Response:
        try:
            member = self._membership.withdraw(ReplicaId(request.match_info["name"]))
        except MembershipError as error:
            return web.json_response({"error": str(error)}, status=404)
        self._leave(member, "withdrew its registration")
        return web.json_response({"name": member.name, "left": True})

    async def _drain(self, request: web.Request) -> web.Response:
        name = ReplicaId(request.match_info["name"])
        if name not in self.replicas:
            return web.json_response({"error": "no such replica"}, status=404)
        try:
            command = msgspec.json.decode(await request.read() or b"{}", type=Draining)
        except msgspec.MsgspecError as error:
            return web.json_response({"error": str(error)}, status=400)
        self.drains.set_local(name, is_draining=command.draining)
        if self.publish_drains is not None:
            await self.publish_drains()
        return web.json_response({"name": name, "draining": command.draining})


def _members(config: Config) -> list[Member]:
    return [
        Member(name=ReplicaId(name), pool=PoolId(pool.name), url=Address.of_backend(each.url).url, origin=SET)
        for pool in config.pools
        for name, each in zip(pool.names(), pool.replicas, strict=True)
    ]
