"""The server, put together: what a gateway is made of, in which order it starts, and in which it stops."""

import asyncio
import logging
import secrets
import signal
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

from aiohttp import web

from gateway import __version__
from gateway.assembly import assemble
from gateway.config import Config
from gateway.config.changes import set_by_hand
from gateway.config.load import named
from gateway.config.server import is_loopback, split_listen
from gateway.core import events as ev
from gateway.core.coordinator import Coordinator
from gateway.domain.ids import ReplicaId
from gateway.domain.session_ids import keyed_ids
from gateway.server.admin.certificate_expiry import CertificateExpiry
from gateway.server.admin.loaded_references import LoadedReferences, read_references
from gateway.server.admin.settings_reload import (
    Read,
    SettingsReload,
    reload_on_signal,
    set_log_level,
)
from gateway.server.auth.authenticator import Authenticator
from gateway.server.auth.client_address import TrustedProxies
from gateway.server.auth.client_keys import ClientKeys
from gateway.server.auth.jwt_tokens import JwtTokens
from gateway.server.auth.key_file import KeyFile
from gateway.server.cluster.peers import Peers
from gateway.server.http import listening
from gateway.server.http.listener import Listener
from gateway.server.mcp.servers import McpServer, open_servers
from gateway.server.prefill_ahead.speculative_prefill import SpeculativePrefills
from gateway.server.proxy.driver import Driver
from gateway.server.proxy.open_ticket import Tickets
from gateway.server.proxy.prepare import RequestPreparation
from gateway.server.proxy.read_request import Reading
from gateway.server.proxy.relay import ContentListeners
from gateway.server.proxy.upstream_request import Outbound
from gateway.server.replicas.hint_sender import HintSender
from gateway.server.replicas.replica_watch import ReplicaWatch
from gateway.server.runtime.clock import SteadyClock, monotonic_clock, wall_clock
from gateway.server.runtime.tasks import TaskGroup
from gateway.server.serving import ProxyParts, Serving
from gateway.server.shutdown import GracefulShutdown
from gateway.server.storage.state_file import StateFile
from gateway.server.storage.tenant_usage import UsageFile, UsageReservations
from gateway.server.telemetry import Telemetry, hosts_of
from gateway.shared_state.fleet_secret import derived
from gateway.telemetry.log_lines import RefusalLog, log_event
from gateway.telemetry.recorder import Recorder
from gateway.upstream.local_faults import LocalFaults

if TYPE_CHECKING:
    from gateway.server.picker.service import PickerServer

_SWEEP_PERIOD_S = 1.0
# Nobody is let in before the replicas were looked at, or for so long.
_FIRST_CHECKS_S = 2.0


class Gateway:
    """One gateway process. `start`, then `leaving.drain` and `stop`; or `run`, which does all of it."""

    def __init__(
        self,
        config: Config,
        environ: Mapping[str, str],
        *,
        read: Read | None = None,
        fleet_secret: bytes | None = None,
        is_picker: bool = False,
    ) -> None:
        """Needs a running event loop. `read`: reads the settings again, None if that cannot be done;
        `fleet_secret`: what all gateways of the shared store have, None for the only one; `is_picker`:
        clients ask Envoy, which asks us where they go. Raises ConfigError or OSError for what the settings
        point to."""
        self._config = config
        references = read_references(config, environ)
        self.settings = (
            SettingsReload(config, references, environ, read, self._apply_settings) if read else None
        )
        self._now = asyncio.get_running_loop().time
        self._clock = SteadyClock()
        self._tasks = TaskGroup()
        local_faults = LocalFaults()
        coordinator = assemble(
            config, session_ids=keyed_ids(secrets.token_bytes(32)), publishes=fleet_secret is not None
        )
        with named("recording.path (--record)"):
            self._recorder = Recorder(config) if config.recording.path is not None else None
        self.telemetry, self.driver = self._open_brain(coordinator, environ, local_faults)
        self.replica_watch = ReplicaWatch(
            config, references, self.driver, self.telemetry, clock=self._clock, local_faults=local_faults
        )
        self.hints = self.telemetry.hints = HintSender(self.replica_watch.replicas, self._tasks)
        tokens = JwtTokens(config.jwt, references.jwt_keys, clock=wall_clock) if config.jwt else None
        salt = derived(fleet_secret, "tenants") if fleet_secret is not None else None
        self._client_keys = ClientKeys(config.tenants, salt=salt, tokens=tokens)
        self._is_open, path = False, config.server.keys_path
        self._key_file = KeyFile(path, self._client_keys, self._forget_callers) if path is not None else None
        self._peers = self.telemetry.peers = self._open_peers(environ, fleet_secret)
        self._parts = self._open_parts()
        servers = open_servers(config, environ, tls=references.upstream_tls, local_faults=local_faults)
        self.serving = Serving(config, self._parts, self.replica_watch, self.telemetry.metrics, servers)
        self._tls = references.server_tls
        self._certificates = CertificateExpiry(references.certificate_ends)
        self.telemetry.metrics.certificate_ends = self._certificates.ends
        proxies = TrustedProxies(config.server.trusted_proxies)
        self.listener = self._open_listener(proxies, servers)
        self.telemetry.metrics.requests = self.listener.requests
        self._refusals = RefusalLog(self.listener.refusals)
        self._picker = self._open_picker(proxies) if is_picker else None
        self.leaving = GracefulShutdown(
            config.server,
            self.driver,
            self.listener,
            peers=self._peers,
            mcp=self.serving.mcp,
            picker=self._picker,
        )
        with named("server.state_path"):
            self._state_file = StateFile.of(config, coordinator.sessions.residence)
            spent_path = f"{config.server.state_path}.spent" if config.server.state_path else None
            self._spent_file = UsageFile(spent_path, self.driver) if spent_path is not None else None
        self._control: web.AppRunner | None = None
        self.picker_port = self.control_port = 0

    def _open_brain(
        self, coordinator: Coordinator, environ: Mapping[str, str], local_faults: LocalFaults
    ) -> tuple[Telemetry, Driver]:
        telemetry = Telemetry(
            self._config,
            coordinator,
            environ,
            self._tasks,
            local_faults,
            connections=lambda: self.listener.connection_count,
            clock=self._clock,
        )
        driver = Driver(
            coordinator,
            clock=self._clock,
            id_prefix=secrets.token_hex(3),
            on_records=telemetry.take,
            recorder=self._recorder,
            send_hint=self._send_hint if self._config.hints.turnpike else None,
        )
        server = self._config.server
        driver.tells_causes = is_loopback(server.listen) and not (
            self._config.tenants or server.trusted_proxies
        )
        telemetry.on_tick = driver.tick
        return telemetry, driver

    def _open_peers(self, environ: Mapping[str, str], secret: bytes | None) -> Peers | None:
        if secret is None:
            return None
        members = self.replica_watch.members
        peers = Peers(
            self._config,
            environ,
            self.driver,
            secret,
            drains=members.drains,
            check_now=self.replica_watch.health.check_now,
            now=self._now,
        )
        members.publish_drains = peers.send_heartbeat
        return peers

    def _open_parts(self) -> ProxyParts:
        config, are_keys_required = self._config, self._client_keys.are_keys_required
        driver, watch, seen = self.driver, self.replica_watch, self.telemetry
        outbound = Outbound(
            config.hints, driver.coordinator.fleet.abilities, are_keys_required=are_keys_required
        )
        preparation = RequestPreparation(
            driver,
            Reading(config, driver, seen.metrics.unread),
            watch.health,
            self._peers,
            are_keys_required=are_keys_required,
            is_salted=config.hints.cache_salt_secret is not None,
        )
        # Without other gateways the brain knows all that is used.
        usage = UsageReservations(driver, self._peers, self._clock) if self._peers is not None else None
        tickets = Tickets(driver, seen.traces, usage)
        prefills, ahead = None, config.prefill_ahead
        if ahead.enabled:
            prefills = SpeculativePrefills(driver, watch.replicas, outbound, max_bytes=ahead.kept_bytes)
        listeners = ContentListeners(prefills, seen.traces, seen.contents, seen.first_words)
        return ProxyParts(preparation, tickets, outbound, listeners)

    def _open_listener(self, proxies: TrustedProxies, servers: Mapping[str, McpServer]) -> Listener:
        server = self._config.server
        return Listener(
            self.serving.handler,
            Authenticator(self._client_keys, proxies, mcp=servers),
            server.limits,
            proxies=proxies if server.proxy_protocol else None,
            access_log=self.telemetry.access_log,
            now=monotonic_clock,  # the loop's has whole milliseconds: less than a first token may take
        )

    def _open_picker(self, proxies: TrustedProxies) -> "PickerServer":
        from gateway.server.picker.service import PickerServer  # noqa: PLC0415 - only a picker needs gRPC
        from gateway.server.picker.stream import Picking  # noqa: PLC0415

        picking = Picking(self._config, self._parts, self.replica_watch.replicas, self.listener)
        return PickerServer(picking, Authenticator(self._client_keys, proxies), self._peers)

    async def start(self) -> None:
        """Raises OSError if an address cannot be bound."""
        server = self._config.server
        if self._picker is not None:
            self.picker_port = self._picker.bind()
        if self._peers is not None:
            await self._peers.open(self.listener)
        control = self.telemetry.control(
            self.driver, self._client_keys, is_retiring=lambda: self.leaving.is_retiring or not self._is_open
        )
        app = control.app()
        app.add_routes(self.replica_watch.members.routes())
        app.add_routes(self.settings.routes() if self.settings is not None else [])
        # Bodies that swell are read by who bounds them.
        self._control = web.AppRunner(app, access_log=None, handle_signals=False, auto_decompress=False)
        await self._control.setup()
        with listening.binding("server.control (--control)", server.control):
            await web.TCPSite(self._control, *split_listen(server.control)).start()
        self.control_port = self._control.addresses[0][1]
        if (tokens := self._client_keys.tokens) is not None and tokens.config.is_url:
            await tokens.fetch()
            self._tasks.supervise("keys of tokens", tokens.keep_keys)
        self._start_loops()
        await self.replica_watch.health.checked(_FIRST_CHECKS_S)
        if self._picker is not None:
            await self._picker.start()
        else:
            with listening.binding("server.listen (--listen)", server.listen):
                sockets = await listening.listening_sockets(
                    *split_listen(server.listen), reuse_port=server.reuse_port
                )
            await self.listener.open(sockets, self._tls)
        self._is_open = True
        if self._peers is not None:
            self._tasks.supervise("peers", self._peers.watch)
            self._tasks.supervise("peers' timeouts", self._peers.listener.watch)

    def _start_loops(self) -> None:
        supervise = self._tasks.supervise
        for name, work in self.telemetry.loops():
            supervise(name, work)
        self.replica_watch.open(self._tasks)
        if self._state_file is not None:
            supervise("state file", self._state_file.run)
        if self._spent_file is not None:
            supervise("spent file", self._spent_file.run)
        if self._key_file is not None:
            supervise("keys", self._key_file.run)
        supervise("client timeouts", self.listener.watch)
        supervise("upstream timeouts", self._sweep)

    def _send_hint(self, replica: ReplicaId, hint: str) -> None:
        self.hints.send(replica, hint)

    async def stop(self) -> None:
        self.listener.close()
        if self._picker is not None:
            await self._picker.stop(0.0)
        if (prefills := self._parts.listeners.prefills) is not None:
            prefills.close()
        await self._tasks.cancel()
        if (usage := self._parts.tickets.usage) is not None:
            await usage.close()
        if self._peers is not None:
            await self._peers.close()
        await self.hints.close()
        if self._control is not None:
            await self._control.cleanup()
        await self.replica_watch.close()
        self.serving.close()
        self.driver.close()
        if self._state_file is not None:
            await self._state_file.close()
        if self._spent_file is not None:
            await self._spent_file.close()
        await self.telemetry.close()
        if self._recorder is not None:
            await asyncio.to_thread(self._recorder.close)

    # --- settings that change ----------------------------------------------------------------------

    def _apply_settings(self, config: Config, references: LoadedReferences) -> None:
        """All at once, and the same for settings that were there before: so a failure is undone."""
        server = config.server
        self.driver.send(ev.SettingsChanged(references.brain))
        self._client_keys.apply_config(config.tenants)
        self.listener.apply_config(server.limits, references.server_tls)
        if self._client_keys.tokens is not None and references.jwt_keys is not None:
            self._client_keys.tokens.set_keys(references.jwt_keys)
        if self._peers is not None:
            self._peers.apply_config(config)
        self._forget_callers()
        self.serving.apply_config(config)
        self._parts.preparation.reading.apply_config(config)
        self._certificates.apply_config(references.certificate_ends)
        self.telemetry.apply_config(config)
        self.replica_watch.apply_config(config, references)
        self.leaving.apply_config(server)
        if (access := self.telemetry.access) is not None:
            access.apply_config(server.control_key_hashes, server.control_read_key_hashes, hosts_of(server))
        set_log_level(server.log_level)
        self._config = config

    def _forget_callers(self) -> None:
        self.listener.forget_callers()
        if self._peers is not None:
            self._peers.listener.forget_callers()

    def _on_hangup(self, settings: SettingsReload) -> None:
        self._tasks.spawn(reload_on_signal(settings.reload, self.telemetry.audit.record))

    async def run(self, on_serving: Callable[[Callable[[signal.Signals], None]], None] | None = None) -> None:
        """Serves until SIGTERM or SIGINT, and leaves as `GracefulShutdown` says. SIGHUP: reads the settings
        again.
        `on_serving`: called once it serves, with what takes a signal."""
        self.leaving.catch_signals()
        if self.settings is not None:
            loop = asyncio.get_running_loop()
            loop.add_signal_handler(signal.SIGHUP, self._on_hangup, self.settings)
        try:
            await self.start()
            port = self.listener.port if self._picker is None else self.picker_port
            message = listening.listening_on(self._config, port, self.control_port, self._picker is not None)
            log_event(logging.INFO, "listening", message, port=port, control_port=self.control_port)
            if self._picker is None:
                self.telemetry.views.listens_at = listening.agents_url(self._config.server, port)
            at = listening.dashboard_url(self._config.server.control, self.control_port)
            log_event(logging.INFO, "dashboard", f"the dashboard is at {at}", url=at)
            settings = set_by_hand(self._config)
            message = "; ".join(f"{key} = {value}" for key, value in settings.items())
            message = f"version {__version__}, with these settings: {message}"
            log_event(logging.INFO, "started", message, version=__version__, settings=settings)
            if on_serving is not None:
                on_serving(self.leaving.signalled)
            await self.leaving.wait(self._tasks)
        finally:
            await self.stop()

    async def _sweep(self) -> None:
        loop = asyncio.get_running_loop()
        while True:
            await asyncio.sleep(_SWEEP_PERIOD_S)
            now = loop.time()
            self.serving.sweep(now)
            self._refusals.log_new(now=now)
            self._certificates.warn(now=wall_clock())
            self.replica_watch.members.sweep(now=now)
            if (tokens := self._client_keys.tokens) is not None and tokens.must_reauthenticate():
                self._forget_callers()
            if self._peers is not None:
                self._peers.sweep(now=now)
