"""The server, put together: listener, driver, health checks, control plane; started and drained."""

import asyncio
import contextlib
import logging
import secrets
import signal
import ssl
from collections.abc import Mapping
from functools import partial
from typing import TYPE_CHECKING

from aiohttp import web

from gateway.assembly import assemble
from gateway.config import Config
from gateway.config.server import split_listen
from gateway.core import events as ev
from gateway.domain.engine import EngineSignals
from gateway.domain.fleet import ReplicaFacts
from gateway.domain.ids import ReplicaId, TenantId
from gateway.domain.session_ids import keyed_ids
from gateway.server.asking import Asking
from gateway.server.clock import SteadyClock
from gateway.server.door import Door
from gateway.server.driver import Driver
from gateway.server.forwarded import TrustedProxies
from gateway.server.handlers import Handlers
from gateway.server.hint_sender import HintSender
from gateway.server.hosts import Hosts
from gateway.server.jwt_tokens import JwtTokens
from gateway.server.kv_fetches import PrefixPulls
from gateway.server.listener import Listener
from gateway.server.listening import listening_sockets
from gateway.server.mcp_calls import McpCalls
from gateway.server.mcp_early import McpEarly
from gateway.server.mcp_proxy import McpProxy
from gateway.server.mcp_servers import open_servers
from gateway.server.members import Members
from gateway.server.observation import Observation, hosts_of
from gateway.server.outbound import Outbound
from gateway.server.peers import Peers
from gateway.server.prefill_legs import PrefillLegs
from gateway.server.prefills import Prefills
from gateway.server.reading import Reading
from gateway.server.references import References, read_references
from gateway.server.request_head import RequestHead
from gateway.server.settings import (
    Read,
    Settings,
    SettingsPlane,
    reload_on_signal,
    set_log_level,
    worker_routes,
)
from gateway.server.spending import Spending, SpentFile
from gateway.server.state_file import StateFile
from gateway.server.tasks import TaskGroup
from gateway.server.tenants import CREDENTIAL_HEADERS, Tenants
from gateway.server.tool_spans import ToolSpans
from gateway.server.websockets import WebSockets
from gateway.server.workers.seat import Order, Seat, own_path, paths_of_all
from gateway.shared_state.fleet_secret import derived
from gateway.telemetry.mcp_counts import McpCounts
from gateway.telemetry.recorder import Recorder
from gateway.upstream.engine_watch import EngineWatch
from gateway.upstream.health import HealthChecks
from gateway.upstream.local_faults import LocalFaults
from gateway.upstream.replica import Replica
from gateway.wire.facts import TRANSCRIPTS
from gateway.wire.hashing import seed_hashes

if TYPE_CHECKING:
    from gateway.server.picker.service import PickerServer

_log = logging.getLogger(__name__)
_SWEEP_PERIOD_S = 1.0


class Gateway:
    """One gateway process. `start`, then `drain` and `stop`; or `run`, which does all of it."""

    def __init__(
        self,
        config: Config,
        environ: Mapping[str, str],
        *,
        seat: Seat | None = None,
        read: Read | None = None,
        fleet_secret: bytes | None = None,
        is_secret_its_own: bool = False,
        is_picker: bool = False,
    ) -> None:
        """Needs a running event loop. `seat`: this process is a worker's; `read`: reads the settings again,
        None if that cannot be done; `fleet_secret`: what all gateways
        of the shared store know, None for the only one; `is_secret_its_own`: they may know another one, since
        the store did not answer; `is_picker`: clients ask Envoy, which asks us where they go. Raises
        ConfigError or OSError for what the settings point to."""
        self._config = config
        self._seat = seat
        references = read_references(config, environ)
        self.settings = Settings(config, references, environ, read, self._follow_settings) if read else None
        self._now = asyncio.get_running_loop().time
        self._clock = SteadyClock()
        self._tasks = TaskGroup()
        prefix = secrets.token_hex(3)
        coordinator = assemble(
            config, session_ids=keyed_ids(secrets.token_bytes(32)), publishes=fleet_secret is not None
        )
        self._recorder = Recorder(config) if config.recording.path is not None else None
        local_faults = LocalFaults()
        self.observation = Observation(
            config,
            coordinator,
            environ,
            self._tasks,
            local_faults,
            connections=lambda: self.listener.connection_count,
            clock=self._clock,
        )
        self.driver = Driver(
            coordinator,
            clock=self._clock,
            id_prefix=prefix,
            on_records=self.observation.take,
            recorder=self._recorder,
            send_hint=self._send_hint if config.hints.turnpike else None,
        )
        self._members = Members(
            config,
            references,
            clock=self._clock,
            local_faults=local_faults,
            send=self.driver.send,
        )
        self._replicas = self._members.replicas
        self._health = HealthChecks(
            self._replicas,
            config.upstream,
            on_up=self._replica_came_up,
            on_down=self._replica_went_down,
            has_several_pools=len(config.pools) > 1,
            are_ordered=config.hints.priority,
            named_models=[model.name for model in config.models],
        )
        self.hints = self.observation.hints = HintSender(self._replicas, self._tasks)
        self._engines = EngineWatch(
            self._replicas,
            config.upstream,
            on_report=self._engine_reported,
            on_holdings=self.observation.engine_holds,
            is_looked_at=lambda: self.observation.views.is_looked_at,
        )
        tokens = JwtTokens(config.jwt, references.jwt_keys, clock=self._clock) if config.jwt else None
        self._tenants = tenants = Tenants(config.tenants, salt=fleet_secret, tokens=tokens)
        self._peers = self.observation.peers = self._open_peers(
            environ, fleet_secret, is_its_own=is_secret_its_own
        )
        self._spending, self._spent_file = self._open_spending(self._peers)
        outbound = Outbound(config.hints, are_keys_required=tenants.are_keys_required)
        self._prefills = self._open_prefills(outbound)
        self._handlers = self._open_handlers(outbound)
        self._mcp = self._open_mcp(environ, references.upstream_tls, local_faults)
        self._tls = references.server_tls
        proxies = TrustedProxies(config.server.trusted_proxies)
        self.listener = Listener(
            self._mcp or self._handlers,
            Door(tenants, proxies, mcp=[each.name for each in config.mcp]),
            config.server.limits,
            proxies=proxies if config.server.proxy_protocol else None,
            now=self._now,
        )
        self._picker = self._open_picker(outbound, proxies) if is_picker else None
        self.picker_port = 0
        self._state_file = self._open_state_file()
        self._watchers: dict[ReplicaId, tuple[asyncio.Task[None], ...]] = {}
        self._is_retiring = self._is_handing_over = False
        self._hurry = asyncio.Event()
        """Set by a signal that ends the lame-duck phase."""
        self._stopping, self._ending = asyncio.Event(), asyncio.Event()
        self._control: web.AppRunner | None = None
        self.control_port = 0

    def _open_state_file(self) -> StateFile | None:
        config, seat = self._config, self._seat
        if (path := config.server.state_path) is not None:
            return StateFile(
                path if seat is None else own_path(path, seat.number),
                self.driver.coordinator.sessions.residence,
                max_ids=config.state.max_state_ids,
                others=paths_of_all(path),
            )
        if config.tenants:
            _log.info("server.state_path is not set: stored responses will be unknown after a restart")
        return None

    def _open_spending(self, peers: Peers | None) -> tuple[Spending | None, SpentFile | None]:
        bounds, spending, file = self.driver.coordinator.bounding.bounds, None, None
        if any(each.counts_repeats for each in self._config.bounds):
            TRANSCRIPTS.tells_steps = True
        if bounds is None or not bounds.has_accounts:
            return None, None
        if peers is not None:
            spending = Spending(bounds, lambda: peers.store, self._clock)
            self.driver.on_spend = spending.spend
        if (path := self._config.server.state_path) is not None:
            path = f"{path}.spent"
            own = path if self._seat is None else own_path(path, self._seat.number)
            file = SpentFile(own, bounds, self.driver.send, others=paths_of_all(path))
        return spending, file

    def _open_prefills(self, outbound: Outbound) -> Prefills | None:
        ahead = self._config.prefill_ahead
        if not ahead.enabled:
            return None
        prefills = Prefills(self.driver, self._replicas, outbound, max_bytes=ahead.kept_bytes)
        self.driver.on_prefill = prefills.take
        return prefills

    def _open_peers(
        self, environ: Mapping[str, str], secret: bytes | None, *, is_its_own: bool
    ) -> Peers | None:
        if secret is None:
            return None
        is_worker = self._seat is not None
        peers = Peers(
            self._config,
            environ,
            self.driver,
            secret,
            on_secret=self._learn_secret if is_its_own else None,
            drains=self._members.drains,
            check_now=self._health.check_now,
            is_worker=is_worker,
            now=self._now,
        )
        self._members.tell_of_drains = peers.tell
        return peers

    def _learn_secret(self, secret: bytes) -> None:
        """Of the gateways of the shared store."""
        seed = derived(secret, "hashes")
        seed_hashes(seed)
        self.driver.send(ev.HashesSeeded(seed))
        self._tenants.salt_with(secret)
        self.listener.forget_visitors()

    def _open_handlers(self, outbound: Outbound) -> Handlers:
        config = self._config
        asking = Asking(
            self.driver,
            self._health,
            outbound,
            Reading(self.driver, self.observation.metrics.unread, is_relay=self._config.server.is_relay),
            are_keys_required=self._tenants.are_keys_required,
            traces=self.observation.traces,
            contents=self.observation.contents,
            prefills=self._prefills,
            peers=self._peers,
            spending=self._spending,
        )
        self.websockets = WebSockets(
            self._replicas,
            self._health,
            asking,
            config=config.server,
            counts=self.observation.metrics.websockets,
        )
        return Handlers(
            self.driver,
            self._replicas,
            self._health,
            asking,
            server=config.server,
            overhead=self.observation.metrics.overhead,
            websockets=self.websockets,
            legs=PrefillLegs.of(config, self.driver, self._replicas, self._health, outbound),
            pulls=PrefixPulls.of(config, self._replicas, self.observation.metrics.pulls),
        )

    def _open_picker(self, outbound: Outbound, proxies: TrustedProxies) -> "PickerServer":
        from gateway.server.picker.opening import open_picker  # noqa: PLC0415 - only a picker needs gRPC

        return open_picker(
            self._config,
            self.driver,
            Door(self._tenants, proxies),
            Reading(self.driver, self.observation.metrics.unread, is_relay=self._config.server.is_relay),
            outbound,
            self._replicas,
            self.listener.budget,
            are_keys_required=self._tenants.are_keys_required,
            spending=self._spending,
            tasks=self._tasks,
        )

    def _open_mcp(
        self, environ: Mapping[str, str], tls: ssl.SSLContext | None, local_faults: LocalFaults
    ) -> McpProxy | None:
        if not self._config.mcp:
            return None
        servers = open_servers(self._config, environ, tls=tls, local_faults=local_faults)
        counts = self.observation.metrics.mcp = McpCounts()
        calls = McpCalls(self.driver, counts, self._config)
        dropped = CREDENTIAL_HEADERS if self._tenants.are_keys_required else frozenset()
        early: McpEarly | None = None
        if any(each.early_tools for each in self._config.mcp):
            early = McpEarly(self.driver, calls, servers, counts, dropped=dropped)
        return McpProxy(servers, self._handlers, calls, early, dropped=dropped)

    async def start(self) -> None:
        """Raises OSError if an address cannot be bound."""
        server = self._config.server
        if self._peers is not None:
            await self._peers.open(self.listener)
        if self._picker is not None:
            self.picker_port = await self._picker.start()
        elif self._seat is None:
            await self.listener.open(await listening_sockets(*split_listen(server.listen)), self._tls)
        control = self.observation.control(self.driver, self._tenants, is_retiring=lambda: self._is_retiring)
        app = control.app()
        app.add_routes(self._members.routes())
        app.add_routes(self._settings_routes())
        app.add_routes(Hosts(self.driver.send).routes())
        traced = self.driver.coordinator.sessions.tools.traced
        app.add_routes(ToolSpans(self.driver.send, traced.verdicts, self._tenants).routes())
        # Bodies that swell are read by who bounds them.
        self._control = web.AppRunner(app, access_log=None, handle_signals=False, auto_decompress=False)
        await self._control.setup()
        if self._seat is None:
            await web.TCPSite(self._control, *split_listen(server.control)).start()
            self.control_port = self._control.addresses[0][1]
        else:
            await web.UnixSite(self._control, self._seat.control_path).start()
            self._tasks.spawn(self._follow(self._seat))
        if (tokens := self._tenants.tokens) is not None and tokens.is_kept_by_url:
            await tokens.fetch()
            self._tasks.supervise("keys of tokens", tokens.keep_keys)
        self._start_loops()
        if self._peers is not None:
            self._tasks.supervise("peers", self._peers.watch)
            self._tasks.supervise("peers' lessons", self._peers.teach)
            self._tasks.supervise("peers' timeouts", self._peers.listener.watch)

    async def _follow(self, seat: Seat) -> None:
        """Does what the parent says. It may not be served before it says so: replicas are not known yet."""
        seat.on_acted = self.observation.audit.record
        if await seat.told() is Order.ACCEPT:
            await self.listener.open(seat.sockets, self._tls)
            if await seat.told() is Order.HAND_OVER:
                self._is_handing_over = True
                self._stopping.set()
                return
        self._on_signal(signal.SIGINT)  # the parent is gone

    def _start_loops(self) -> None:
        supervise = self._tasks.supervise
        self._health.open()
        self._engines.open()
        for name, work in self.observation.loops():
            supervise(name, work)
        self._members.open(self._tasks, self._replica_joined, self._replica_left)
        if self._state_file is not None:
            supervise("state file", self._state_file.run)
        if self._spent_file is not None:
            supervise("spent file", self._spent_file.run)
        supervise("client timeouts", self.listener.watch)
        supervise("upstream timeouts", self._sweep)

    def _send_hint(self, replica: ReplicaId, hint: str) -> None:
        self.hints.send(replica, hint)

    async def retire(self) -> None:
        """Says that it is not ready, and still serves whoever comes, until load balancers have noticed."""
        self._is_retiring = True
        if self._picker is not None:
            self._picker.retire()
        if self._peers is not None:
            await self._peers.leave()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(self._config.server.lame_duck_s):
                await self._hurry.wait()

    async def drain(self) -> None:
        """Stops taking requests and waits for the running ones, as long as the settings say."""
        self._is_retiring = True
        if self._peers is not None:
            await self._peers.leave()
        self.driver.send(ev.DrainStarted())
        await self._drain_connections()

    async def hand_over(self) -> None:
        """Another process takes new connections. A connection that is there gets its next answer, as its
        last: closing it between two requests could cross the next one on its way."""
        self._is_retiring = True
        if self._peers is not None:
            await self._peers.leave()
        self.listener.leave()
        await self.listener.emptied(self._config.server.lame_duck_s)
        await self._drain_connections()

    async def _drain_connections(self) -> None:
        if self._mcp is not None:
            self._mcp.drain()
        if self._picker is not None:
            await self._picker.stop(self._config.server.drain_s)
        listeners = [self.listener, *([self._peers.listener] if self._peers is not None else [])]
        await asyncio.gather(*(each.drain(self._config.server.drain_s) for each in listeners))
        if left := sum(each.connection_count for each in listeners):
            _log.warning("%d connections are cut off at the end of the drain", left)

    async def stop(self) -> None:
        self.listener.close()
        if self._picker is not None:
            await self._picker.stop(0.0)
        if self._prefills is not None:
            self._prefills.close()
        await self._tasks.cancel()
        if self._spending is not None:
            await self._spending.close()
        if self._peers is not None:
            await self._peers.close()
        await self._health.close()
        await self._engines.close()
        await self.hints.close()
        if self._control is not None:
            await self._control.cleanup()
        self._members.close()
        if self._mcp is not None:
            self._mcp.close()
        self.driver.close()
        if self._state_file is not None:
            await self._state_file.close()
        if self._spent_file is not None:
            await self._spent_file.close()
        await self.observation.close()
        if self._recorder is not None:
            await asyncio.to_thread(self._recorder.close)
        if self._seat is not None:
            await self._seat.leave(self.observation.metrics.render())

    # --- settings that change ----------------------------------------------------------------------

    def _settings_routes(self) -> list[web.RouteDef]:
        if self._seat is not None:
            return worker_routes()
        if (settings := self.settings) is None:
            return []
        return SettingsPlane(read=settings.read, diff=settings.diff, reload=settings.reload).routes()

    def _follow_settings(self, config: Config, references: References) -> None:
        """All at once, and the same for settings that were there before: so a failure is undone."""
        server, health = config.server, self._health
        self.driver.send(ev.SettingsChanged(references.brain))
        self._tenants.follow(config.tenants)
        self.listener.follow(server.limits, references.server_tls)
        if self._tenants.tokens is not None and references.jwt_keys is not None:
            self._tenants.tokens.set_keys(references.jwt_keys)
        if self._peers is not None:
            self._peers.follow(config)
        self._forget_visitors()
        self._handlers.follow(server)
        self.websockets.follow(server)
        health.follow(
            config.upstream,
            has_several_pools=len(config.pools) > 1,
            named_models=[model.name for model in config.models],
        )
        self._engines.follow(config.upstream)
        self._members.follow(config, references)
        if (access := self.observation.access) is not None:
            access.follow(server.control_key_hashes, server.control_read_key_hashes, hosts_of(server))
        set_log_level(server.log_level)
        self._config = config

    def _forget_visitors(self) -> None:
        """Whoever is known by a connection is asked for anew."""
        self.listener.forget_visitors()
        if self._peers is not None:
            self._peers.listener.forget_visitors()
        self.websockets.ask_anew(self._whose)

    def _whose(self, head: RequestHead) -> TenantId | None:
        tenant = self._tenants.authenticate(head.headers, head.visitor.client)
        return tenant.id if tenant is not None else None

    def _on_hangup(self, settings: Settings) -> None:
        self._tasks.spawn(reload_on_signal(settings.reload, self.observation.audit.record))

    async def run(self) -> None:
        """Serves until SIGTERM or SIGINT; each further signal goes on to the next step.

        SIGTERM: lame duck, then drain, then end. SIGINT, which a person sends, begins with the drain.
        """
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, self._on_signal, number)
        if self.settings is not None:
            loop.add_signal_handler(signal.SIGHUP, self._on_hangup, self.settings)
        try:
            await self.start()
            if self._seat is None:
                port = self.listener.port if self._picker is None else self.picker_port
                _log.info("%s", listening_on(self._config, port, self.control_port, self._picker is not None))
            await self._stopping.wait()
            leaving = self._tasks.spawn(self._leave())
            hurrying = self._tasks.spawn(_wait(self._ending))
            await asyncio.wait((leaving, hurrying), return_when=asyncio.FIRST_COMPLETED)
        finally:
            await self.stop()

    def _on_signal(self, number: signal.Signals) -> None:
        if self.listener.is_draining:
            self._ending.set()
        elif self._stopping.is_set() or number == signal.SIGINT:
            self._hurry.set()
        self._stopping.set()

    async def _leave(self) -> None:
        if self._is_handing_over:
            await self.hand_over()
            return
        if self._config.server.lame_duck_s and not self._hurry.is_set():
            _log.info("not ready any more; serving for another %g s", self._config.server.lame_duck_s)
            await self.retire()
        _log.info("draining; signal again to stop at once")
        await self.drain()

    def _replica_joined(self, replica: Replica) -> None:
        self._watchers[replica.id] = (
            self._tasks.supervise("health checks", partial(self._health.watch, replica), of=replica.id),
            self._tasks.supervise("engine watch", partial(self._engines.watch, replica), of=replica.id),
        )

    def _replica_left(self, replica: ReplicaId) -> None:
        for watcher in self._watchers.pop(replica):
            watcher.cancel()
        self._health.left(replica)
        self._engines.went_down(replica)
        self.observation.replica_went_down(replica)

    def _replica_came_up(self, facts: ReplicaFacts) -> None:
        self._engines.came_up(facts)
        self.driver.send(ev.ReplicaCameUp(facts))

    def _replica_went_down(self, replica: ReplicaId, why: str) -> None:
        self._engines.went_down(replica)
        self.observation.replica_went_down(replica)
        self.driver.send(ev.ReplicaWentDown(replica, why))

    def _engine_reported(self, replica: ReplicaId, signals: EngineSignals) -> None:
        self.observation.engine_reported(replica, signals)
        self.driver.send(ev.EngineReported(replica, signals))

    async def _sweep(self) -> None:
        loop = asyncio.get_running_loop()
        while True:
            await asyncio.sleep(_SWEEP_PERIOD_S)
            now = loop.time()
            self._clock.follow()
            self._handlers.sweep(now)
            if self._prefills is not None:
                self._prefills.sweep(now)
            if self._mcp is not None:
                self._mcp.sweep(now)
            self._members.sweep(now=now)
            if (tokens := self._tenants.tokens) is not None and tokens.must_ask_anew():
                self._forget_visitors()
            if self._peers is not None:
                self._peers.sweep(now=now)


def listening_on(config: Config, port: int, control_port: int, is_picker: bool = False) -> str:
    if is_picker:
        host, _ = split_listen(config.picker.listen)
        return f"picking for Envoy on {host}:{port}, control on port {control_port}"
    host, _ = split_listen(config.server.listen)
    scheme = "https" if config.server.tls_certificate else "http"
    return f"listening on {scheme}://{host}:{port}, control on port {control_port}"


async def _wait(event: asyncio.Event) -> None:
    await event.wait()
