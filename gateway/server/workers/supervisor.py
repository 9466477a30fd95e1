"""Many processes behind one port: starts workers, replaces what dies, and replaces all of them on SIGHUP.

The parent takes no requests. It holds the listening sockets, so that a worker's end closes none, and answers
on the control address for all. A worker begins to accept when the parent says so: when a replica is up.
"""

import asyncio
import contextlib
import logging
import secrets
import shutil
import signal
import tempfile
from collections.abc import Mapping
from itertools import count
from pathlib import Path
from typing import Final

import msgspec
from aiohttp import web

from gateway.config import Config
from gateway.config.changes import Change, changes
from gateway.config.load import ConfigError
from gateway.config.server import split_listen
from gateway.server.clock import SteadyClock
from gateway.server.listening import SharedPort, listening_on
from gateway.server.references import check_references
from gateway.server.settings import (
    Read,
    SettingsPlane,
    refuse_restarts,
    reload_on_signal,
    set_log_level,
)
from gateway.server.tasks import CALM_S, TaskGroup, pause_s
from gateway.server.workers.control import MergedControl
from gateway.server.workers.merged_metrics import Totals
from gateway.server.workers.process import Worker
from gateway.shared_state.fleet_secret import keep
from gateway.shared_state.local_server import LocalServer
from gateway.shared_state.opening import open_store

_log = logging.getLogger(__name__)
_POLL_S: Final = 0.05
_LOOK_PERIOD_S: Final = 2.0
_BEGUN_WITHIN_S: Final = 60.0
"""A worker that does not answer by then is ended."""
_READY_WITHIN_S: Final = 2.0
"""A worker that has no replica by then accepts all the same: its clients are told so."""
_RELIEVES_WITHIN_S: Final = 10.0
"""One that is to relieve another has longer, and does not accept without."""
_LONGEST_PAUSE_S: Final = 5.0
"""Between a worker's end and its successor's start: connections may wait in its socket's queue."""
_MAX_FAILURES: Final = 5
"""In a row, with nobody serving: then all ends."""
_KILLED_AFTER_S: Final = 10.0
"""Beyond the time that a worker has for its end."""
_STORE: Final = "store"


class Supervisor:
    def __init__(self, config: Config, read: Read, environ: Mapping[str, str], *, wanted: int) -> None:
        """`config` is checked."""
        self._config = config
        self._read = read
        self._environ = environ
        self.wanted = wanted
        self.restarts = 0
        self.gone = Totals()
        self.is_ending = False
        self._clock = asyncio.get_running_loop().time
        self._port = SharedPort()
        self._tasks = TaskGroup()
        self._slots: list[Worker | None] = [None] * wanted
        """Who serves there, and is to stay."""
        self._empty_since: list[float] = [self._clock()] * wanted
        self._failures = [0] * wanted
        """In a row."""
        self._running: dict[int, Worker] = {}
        """By number. A slot's first has its own, one more than the slot's; who comes while that is taken has
        `wanted` more."""
        self._starting: set[int] = set()
        """Numbers."""
        self._serial = 0
        settings = SettingsPlane(read=read, diff=self._diff, reload=self.reload)
        self._control = MergedControl(self, began_s=SteadyClock()(), settings=settings, record=self._record)
        self._one_reload = asyncio.Lock()
        self._relieved: list[Worker] = []
        """By the last reload; some may still be leaving."""
        self._directory = Path()
        self._reload_asked = asyncio.Event()
        self._over: asyncio.Future[int] = asyncio.get_running_loop().create_future()
        """The exit status."""

    # --- for the control plane ---------------------------------------------------------------------

    @property
    def running(self) -> list[Worker]:
        return list(self._running.values())

    @property
    def serving(self) -> list[Worker]:
        return [each for each in self._slots if each is not None]

    @property
    def missing_s(self) -> float:
        now = self._clock()
        return max(
            now - (since if worker is None else worker.seen_at)
            for worker, since in zip(self._slots, self._empty_since, strict=True)
        )

    # --- from start to end -------------------------------------------------------------------------

    async def run(self) -> int:
        """Serves until SIGTERM or SIGINT; the exit status. Raises OSError if an address cannot be bound."""
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, self._end, number)
        loop.add_signal_handler(signal.SIGHUP, self._reload_asked.set)
        # No compression is undone here: workers get what was sent.
        runner = web.AppRunner(
            self._control.app(), access_log=None, handle_signals=False, auto_decompress=False
        )
        self._directory = Path(tempfile.mkdtemp(prefix="turnpike-"))  # for its owner alone
        store = LocalServer(str(self._directory / _STORE), self._clock)
        try:
            await store.start()
            own = await open_store(f"unix://{self._directory / _STORE}", self._clock)
            await keep(own, secrets.token_bytes(32))  # so that no worker waits for one
            await own.aclose()
            server = self._config.server
            await self._port.open(*split_listen(server.listen), slots=self.wanted)
            self._port.steer([0])
            await runner.setup()
            await web.TCPSite(runner, *split_listen(server.control)).start()
            await self._begin(runner.addresses[0][1])
            status = await self._over
            await self._all_ended()
            return status
        finally:
            for worker in self.running:
                worker.kill()
                await worker.ended()
            await self._tasks.cancel()
            await store.aclose()
            await runner.cleanup()
            self._port.close()
            shutil.rmtree(self._directory, ignore_errors=True)

    async def _begin(self, control_port: int) -> None:
        """One worker first: what is wrong with the settings is told once."""
        first = await self._start(0, self._config)
        if not await self._get_going(first):
            if not self.is_ending:
                self._give_up(await first.ended() or 1)
            return
        self._put(first)
        self._tasks.supervise("reload", self._keep_reloading)
        self._tasks.supervise("watch", self._watch)
        await asyncio.gather(*(self._fill(slot) for slot in range(1, self.wanted)))
        if not self.is_ending:
            where = listening_on(self._config, self._port.port, control_port)
            _log.info("%d workers, %s", self.wanted, where)

    def _end(self, number: signal.Signals) -> None:
        """The first signal is not for those who leave already: it would cut them off. The next is for all."""
        told = [each for each in self.running if self.is_ending or not each.is_leaving]
        if not self.is_ending:
            self.is_ending = True
            _log.info("ending %d workers; signal again to hurry", len(told))
        for worker in told:
            worker.signal(number if worker.is_accepting else signal.SIGINT)
        self._is_over(0)

    def _give_up(self, status: int) -> None:
        self.is_ending = True
        for worker in self.running:
            worker.signal(signal.SIGINT)
        self._is_over(status if status > 0 else 1)

    def _is_over(self, status: int) -> None:
        # Workers have the sockets as long as they accept; then connections must be refused, not wait.
        self._port.close()
        if not self._over.done():
            self._over.set_result(status)

    async def _all_ended(self) -> None:
        server = self._config.server
        patience_s = server.lame_duck_s + server.drain_s + _KILLED_AFTER_S
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(patience_s):
                await _ended(self.running)
        if self._running:
            _log.error("%d workers did not end in time, and are killed", len(self._running))

    # --- one worker after the other ----------------------------------------------------------------

    async def _start(self, slot: int, config: Config) -> Worker:
        taken = self._running.keys() | self._starting
        number = next(number for number in count(slot + 1, self.wanted) if number not in taken)
        self._serial += 1
        self._starting.add(number)
        try:
            worker = self._running[number] = await Worker.start(
                self._sharing(config),
                self._port.of(slot),
                control_path=self._directory / str(self._serial),
                number=number,
                serial=self._serial,
                slot=slot,
            )
        finally:
            self._starting.discard(number)
        self._tasks.spawn(self._follow(worker))
        if self.is_ending:
            worker.signal(signal.SIGINT)
        return worker

    def _sharing(self, config: Config) -> Config:
        """Workers share what they know: by the store that the settings name, or one that the parent has."""
        if config.shared.url is not None:
            return config
        shared = msgspec.structs.replace(config.shared, url=f"unix://{self._directory / _STORE}")
        return msgspec.structs.replace(config, shared=shared)

    async def _follow(self, worker: Worker) -> None:
        """Until it ends."""
        status = await worker.ended()
        self.gone.add(worker.last_metrics)
        del self._running[worker.number]
        if self._slots[worker.slot] is not worker:
            return
        self._slots[worker.slot] = None
        self._empty_since[worker.slot] = self._clock()
        self._steer()
        if self.is_ending:
            return
        _log.error("worker %d ended with %s, and is replaced", worker.number, _told(status))
        self.restarts += 1
        await self._fill(worker.slot)

    async def _fill(self, slot: int) -> None:
        """Tries until somebody serves there."""
        while True:
            if self._failures[slot]:
                await asyncio.sleep(min(_LONGEST_PAUSE_S, pause_s(self._failures[slot])))
            if self.is_ending or self._slots[slot] is not None:
                return
            self._failures[slot] += 1
            try:
                worker = await self._start(slot, self._config)
            except OSError as error:
                _log.error("a worker cannot be started: %s", error)
                continue
            if not await self._get_going(worker):
                status = await worker.ended()
                if self.is_ending:
                    return
                _log.error("worker %d did not start: it ended with %s", worker.number, _told(status))
                if self._failures[slot] >= _MAX_FAILURES and not self.serving:
                    _log.error("no worker starts; giving up")
                    self._give_up(status)
            elif self._slots[slot] is None and not self.is_ending:
                self._put(worker)
            else:
                worker.signal(signal.SIGINT)  # a reload was quicker

    async def _get_going(self, worker: Worker, patience_s: float = _READY_WITHIN_S) -> bool:
        """Waits until it can serve, or answers and has no replica for long. Whether it runs."""
        if not await self._answers(worker):
            return False
        await self._control.tell(worker)
        await self._wait_for_replicas(worker, patience_s)
        return not worker.has_ended

    async def _answers(self, worker: Worker) -> bool:
        try:
            async with asyncio.timeout(_BEGUN_WITHIN_S):
                while not worker.has_ended and await worker.ask("GET", "/turnpike/healthz") is None:  # noqa: ASYNC110 - another process
                    await asyncio.sleep(_POLL_S)
        except TimeoutError:
            worker.kill()
            return False
        return not worker.has_ended

    async def _wait_for_replicas(self, worker: Worker, patience_s: float) -> None:
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(patience_s):
                while not worker.has_ended and not await worker.is_ready():  # noqa: ASYNC110 - as above
                    await asyncio.sleep(_POLL_S)

    def _put(self, worker: Worker) -> None:
        """From now on it serves."""
        self._slots[worker.slot] = worker
        worker.accept()
        self._steer()

    def _steer(self) -> None:
        self._port.steer([slot for slot, worker in enumerate(self._slots) if worker is not None])

    async def _watch(self) -> None:
        while True:
            await asyncio.sleep(_LOOK_PERIOD_S)
            await asyncio.gather(*(worker.is_ready() for worker in self.serving))
            now = self._clock()
            for slot, worker in enumerate(self._slots):
                if worker is not None and now - worker.began_at > CALM_S:
                    self._failures[slot] = 0

    # --- all at once -------------------------------------------------------------------------------

    async def _keep_reloading(self) -> None:
        while True:
            await self._reload_asked.wait()
            self._reload_asked.clear()
            if not self.is_ending:
                await reload_on_signal(self.reload, self._record)

    def _record(self, who: str, what: str, outcome: int) -> None:
        """Has a worker record what the parent did."""
        if self.serving:
            self.serving[0].acted(who, what, outcome)

    def _diff(self, after: Config) -> tuple[Change, ...]:
        return changes(self._config, after, has_workers=True)

    def _read_checked(self) -> Config:
        config = self._read(None)
        check_references(config, self._environ)
        return config

    async def reload(self) -> tuple[Change, ...]:
        """New workers with the settings as they are now; when all are ready, the old ones leave. Raises
        ConfigError, OSError or ValueError if nothing was changed, and says why."""
        async with self._one_reload:
            await _ended(self._relieved)  # else two reloads in a row would have three times as many
            config = await asyncio.to_thread(self._read_checked)
            changed = self._diff(config)
            refuse_restarts(changed)
            started = list[Worker]()
            if (why := await self._start_all(config, started)) is not None:
                for each in started:
                    each.signal(signal.SIGINT)
                await _ended(started)
                raise ConfigError(why)
            self._relieved = self.serving
            self._hand_over(config, started)
            return changed

    def _hand_over(self, config: Config, started: list[Worker]) -> None:
        self._config = config
        set_log_level(config.server.log_level)
        for worker in started:
            before = self._slots[worker.slot]
            self._put(worker)
            if before is not None:
                before.hand_over()
        _log.info("%d new workers serve", len(started))

    async def _start_all(self, config: Config, started: list[Worker]) -> str | None:
        """What speaks against going on with those that were started."""
        try:
            for slot in range(self.wanted):
                if self.is_ending:
                    return "this is the end"
                started.append(await self._start(slot, config))
        except OSError as error:
            return f"a worker cannot be started: {error}"
        await asyncio.gather(*(self._get_going(each, _RELIEVES_WITHIN_S) for each in started))
        if self.is_ending:
            return "this is the end"
        if not all(await asyncio.gather(*(each.is_ready() for each in started))):
            if any(await asyncio.gather(*(each.is_ready() for each in self.serving))):
                return "the new workers do not become ready, as the old ones are"
        if any(each.has_ended for each in started):
            return "a new worker ended at once"
        return None


async def _ended(workers: list[Worker]) -> None:
    await asyncio.gather(*(each.ended() for each in workers))


def _told(status: int) -> str:
    return f"status {status}" if status >= 0 else signal.Signals(-status).name
