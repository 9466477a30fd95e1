"""Everybody who reads the information stream in this process, put together from the settings.

What is switched off is not there: its cost is nothing. What is on takes the records of many events at once,
and looks at them later.
"""

import asyncio
import logging
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from typing import Any, Final

from gateway.config import Config
from gateway.config.load import named
from gateway.config.server import ServerConfig, split_listen
from gateway.core.coordinator import Coordinator
from gateway.core.snapshot import Gauges, take_gauges
from gateway.dashboard.graphs import view_graphs
from gateway.dashboard.views import Views
from gateway.domain.engine import EngineSignals, PluginReport
from gateway.domain.ids import ReplicaId
from gateway.domain.records import Record
from gateway.server.admin.access import ControlAccess
from gateway.server.admin.api import ControlPlane, Process
from gateway.server.admin.audit import Audit
from gateway.server.admin.certificate_expiry import expiring_soon
from gateway.server.admin.events import Events
from gateway.server.admin.history_proxy import HistoryProxy
from gateway.server.auth.client_keys import ClientKeys
from gateway.server.cluster.peers import Peers
from gateway.server.http.access_log import AccessLog
from gateway.server.proxy.driver import Driver
from gateway.server.replicas.hint_sender import HintSender
from gateway.server.runtime.clock import wall_clock
from gateway.server.runtime.record_batcher import RecordBatcher
from gateway.server.runtime.tasks import TaskGroup, Work
from gateway.telemetry.first_words import FirstWords
from gateway.telemetry.frames import Frames
from gateway.telemetry.jsonl import StreamFile
from gateway.telemetry.log_lines import ChangeLog, log_event
from gateway.telemetry.metrics import Metrics
from gateway.telemetry.objective import Objective, OutcomeView
from gateway.telemetry.otel.contents import Contents
from gateway.telemetry.otel.export import TraceExport
from gateway.telemetry.otel.trace_context import TraceContexts
from gateway.telemetry.ring import Ring
from gateway.telemetry.usage import Usages
from gateway.upstream.local_faults import LocalFaults

_LAG_PERIOD_S: Final = 0.25


class Telemetry:
    def __init__(
        self,
        config: Config,
        coordinator: Coordinator,
        environ: Mapping[str, str],
        tasks: TaskGroup,
        local_faults: LocalFaults,
        *,
        connections: Callable[[], int],
        clock: Callable[[], float],
    ) -> None:
        """`connections`: how many of clients are open. Raises ConfigError or OSError for what the settings
        point to."""
        self._config = config
        self._coordinator = coordinator
        self._clock = clock
        self._tasks = tasks
        self._local_faults = local_faults
        self.signals: dict[ReplicaId, EngineSignals] = {}
        # Of the engines that are up; who watches them writes it.
        self.plugins: dict[ReplicaId, PluginReport] = {}
        self._file, self.access_log = _open_files(config, clock)
        self._ring = (
            None
            if config.server.is_relay or not config.stream.ring_records
            else Ring(config.stream.ring_records, config.stream.ring_bytes)
        )
        self._events: Events | None = None
        self._history = HistoryProxy(config.history, environ)
        # To be set by whoever sends hints.
        self.hints: HintSender | None = None
        # To be set if there may be other gateways.
        self.peers: Peers | None = None
        self.outcome = Objective(config.objective, max_sessions=config.sessions.max_sessions)
        self.metrics = Metrics(
            self._gauges,
            {
                "faults": (FAULTS, lambda: coordinator.faults),
                **{
                    name: (what, partial(self._count, who, count))
                    for name, what, who, count in COUNTED_ELSEWHERE
                },
            },
            restarts=tasks.restarts,
            local_faults=local_faults.counts,
            connections=connections,
            peers=lambda: len(self.peers.alive) if self.peers is not None else 0,
            outcome=self.outcome,
            usages=Usages(config.prices),
        )
        self.views = Views(
            coordinator,
            self._ring,
            self.signals,
            self.plugins,
            clock=clock,
            outcome=self._view_outcome,
            prices={each.model: each for each in config.prices},
        )
        self.metrics.is_store_up = self.views.is_store_up = self._is_store_up
        self.views.graphs = lambda: view_graphs(coordinator.sessions.conversations.graphs)
        takers: list[Callable[[list[Record]], Any]] = [self.metrics.take, ChangeLog().log_replicas]
        line_takers = [each.extend for each in (self._file, self._ring) if each is not None]
        # For the handlers; None if nobody traces.
        self.traces: TraceContexts | None = None
        # For the handlers; None if no reader may have texts.
        self.contents = Contents(config.otel) if config.otel.content else None
        self.first_words = FirstWords() if config.server.first_words else None
        self.views.first_words = self.first_words if self.first_words is not None else {}
        self._export: TraceExport | None = None
        takers += self._exports(environ)
        self._handover = RecordBatcher(takers, line_takers)
        self.take = self._handover.take
        self.audit = Audit(lambda record: self.take([record]), clock=clock)
        # To be set to who must know when the event loop stands still.
        self.on_tick: Callable[[float], None] = lambda _: None
        # There after `control`.
        self.access: ControlAccess | None = None

    def _exports(self, environ: Mapping[str, str]) -> Iterator[Callable[[list[Record]], None]]:
        otel, most = self._config.otel, self._config.sessions.max_sessions
        if otel.endpoint is not None:
            self.traces = TraceContexts(otel.sample, max_sessions=most)
            self._export = TraceExport(
                otel,
                self.traces,
                environ,
                max_sessions=most,
                clock=self._clock,
                contents=self.contents,
            )
            yield self._export.take
        if self.contents is not None:
            message = "otel.content: spans say what requests and answers say, prompts and secrets included"
            log_event(logging.WARNING, "content_traced", message)

    def _count(self, who: str, name: str) -> int:
        counter = getattr(self, who)
        return getattr(counter, name) if counter is not None else 0

    def loops(self) -> list[tuple[str, Work]]:
        loops: list[tuple[str, Work]] = [("loop lag", self._watch_the_loop)]
        if self._export is not None:
            self._export.open()
            loops.append(("trace export", self._export.run))
        return loops

    async def _watch_the_loop(self) -> None:
        spread, clock = self.metrics.loop_lag, asyncio.get_running_loop().time
        while True:
            self._local_faults.ticked(period_s=_LAG_PERIOD_S, now=clock())
            self.on_tick(_LAG_PERIOD_S)
            due_s = clock() + _LAG_PERIOD_S
            await asyncio.sleep(_LAG_PERIOD_S)
            spread.add(max(0.0, clock() - due_s))

    @property
    def _frames(self) -> Frames | None:
        return self._events.frames if self._events is not None else None

    def control(
        self, driver: Driver, client_keys: ClientKeys, *, is_retiring: Callable[[], bool]
    ) -> ControlPlane:
        server = self._config.server
        if self._ring is not None:
            self._events = Events(self._ring, self._tasks)
        self.access = access = ControlAccess(
            write_hashes=server.control_key_hashes,
            read_hashes=server.control_read_key_hashes,
            hosts=hosts_of(server),
        )
        self.views.failing = failing = partial(self._failing, client_keys)
        return ControlPlane(
            driver,
            self.metrics,
            self.views,
            self._events,
            access,
            self.audit,
            self._history,
            Process(
                usage=self._view_usage,
                is_retiring=is_retiring,
                failing=failing,
                flush=self._handover.flush,
                publish_stop=self.peers.directory.stopped if self.peers is not None else None,
            ),
        )

    def apply_config(self, config: Config) -> None:
        self._handover.flush()  # what was used costs what it cost then
        self.metrics.flush()
        self.metrics.usages.apply_config(config.prices)
        if self.first_words is not None and not all(each.content for each in config.tenants):
            self.first_words.clear()  # some may be of a tenant whose `content` is false now

    async def close(self) -> None:
        self._handover.flush()
        if self._export is not None:
            await self._export.close()
        for file in (self._file, self.access_log):
            if file is not None:
                await asyncio.to_thread(file.close)
        await self._history.close()

    def _view_outcome(self) -> OutcomeView:
        self.metrics.flush()
        return self.outcome.view()

    def _view_usage(self) -> dict[str, Any]:
        self.metrics.flush()
        now = self._clock()
        return {"at_s": now, "began_s": self.views.began_s, "usage": self.metrics.usages.rows(now=now)}

    def _is_store_up(self) -> bool | None:
        store = self.peers.opened_store if self.peers is not None else None
        return store.is_up if store is not None else None

    def _failing(self, client_keys: ClientKeys) -> list[str]:
        lacking = self._local_faults.lasting(now=asyncio.get_running_loop().time())
        return [
            *self._tasks.failing(),
            *(["the shared store"] if self._is_store_up() is False else []),
            *(f"connections to replicas ({kind})" for kind in lacking),
            *(message for _, _, message in expiring_soon(self.metrics.certificate_ends, now=wall_clock())),
            *([client_keys.keys_fault] if client_keys.keys_fault else []),
            *(["stream.path cannot be written"] if self._file is not None and self._file.is_failing else []),
            *(["no client key is valid, so every request is refused"] if client_keys.has_no_key else []),
        ]

    def _gauges(self) -> Gauges:
        return take_gauges(self._coordinator, self.signals, now=self._clock())


def _open_files(config: Config, clock: Callable[[], float]) -> tuple[StreamFile | None, AccessLog | None]:
    with named("stream.path"):
        file = StreamFile(config.stream) if config.stream.path is not None else None
    with named("server.access_log"):
        path = config.server.access_log
        return file, AccessLog(path, clock) if path is not None else None


def hosts_of(server: ServerConfig) -> tuple[str, ...]:
    return (*server.control_hosts, split_listen(server.control)[0].lower())


FAULTS: Final = "Exceptions in decisions, after which the gateway went on"
# Metrics: what they are, and who counts.
COUNTED_ELSEWHERE: Final = (
    ("stream_dropped", "Records not written to `stream.path`", "_file", "dropped"),
    ("access_log_dropped", "Lines not written to the access log", "access_log", "dropped"),
    ("hints_sent", "Hints accepted by engines", "hints", "sent"),
    ("hints_dropped", "Hints dropped for want of room or of their replica", "hints", "dropped"),
    ("hints_failed", "Hints that no engine accepted", "hints", "failed"),
    ("requests_passed_on", "Requests passed on to the gateway of their session", "peers", "passed_on"),
    ("sessions_adopted", "Sessions taken over from a gateway that is gone", "peers", "adopted"),
    ("peer_forward_failures", "Requests that another gateway did not accept", "peers", "unreached"),
    (
        "shared_entries_withheld",
        "Entries withheld from the store: their tenant is over `shared.max_tenant_mb`",
        "peers",
        "withheld",
    ),
    ("event_gaps", "Gaps in the event streams of readers", "_frames", "gaps"),
    ("spans_sent", "Spans accepted by the collector", "_export", "sent"),
    ("spans_dropped", "Spans that no collector accepted", "_export", "dropped"),
    (
        "control_actions_unrecorded",
        "Control actions without a record, beyond 5 a second",
        "audit",
        "left_out",
    ),
    ("contents_dropped", "Turns traced without content, for want of room", "contents", "left_out"),
    ("turns_untraced", "Turns without spans, beyond `otel.max_spans_per_s`", "_export", "left_out"),
)
