"""A store that is reached by a connection: one deadline, one breaker, writes behind.

A deadline is counted in slices of a timer. However long the own event loop stands still, one slice passes,
and what the store answered meanwhile is read before the next one: a stall here is no fault of the store's.

Invariants: no call outlives the deadline, but for stalls of the own loop; while the breaker is open no call
does I/O; connections are made by the probe alone or within a deadline; what waits to be written is bounded,
and written in order.
"""

import asyncio
import contextlib
import logging
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Coroutine, Iterable, Iterator, Sequence
from typing import Any, Final, TypeVar

import msgspec

from gateway.shared_state.breaker import Breaker
from gateway.shared_state.protocol import Counters, Entry, OnReplaced, StoreUnavailable, checked_size
from gateway.telemetry.log_lines import ChangeLog, log_event

DEADLINE_S: Final = 0.02
# Of a deadline. An answer that lies there takes up to three rounds of the loop until its call has it.
SLICES: Final = 4
CONNECT_S: Final = 1.0
# What waits to be written when the store is closed has so long: `MAX_WAITING` of them take 0.6 s, or on a
# busy machine some seconds. Who ends does not wait for a slow store.
CLOSES_WITHIN_S: Final = 5.0
# How long writes wait for others to go with. A batch wakes the store, and this process once more for the
# answer; on one machine that costs more than what is in it.
GATHER_S: Final = 0.005
# Writes that go together at most: what the event loop does for them in one piece stays short.
BATCH: Final = 128
MAX_WAITING: Final = 20_000
MAX_WAITING_BYTES: Final = 16 << 20
# Writes that waited longer have their TTL shortened by that.
AGES_S: Final = 0.1

T = TypeVar("T")


class RefusedError(Exception):
    """The store answered that it will not do this. It is there, so the breaker stays as it is."""


class RemoteStore(ABC):
    """A `Store` but for the calls that are awaited: a subclass has these, each within `_bounded`. Made and
    used within one running event loop."""

    def __init__(self, name: str, *, deadline_s: float = DEADLINE_S) -> None:
        """`name` is for the log, without secrets."""
        self.counters = Counters()
        self.on_replaced: list[OnReplaced] = []
        self._name = name
        self._deadline_s = deadline_s
        self._loop = asyncio.get_running_loop()
        self._breaker = Breaker()
        self._log = ChangeLog()
        self._is_closed = False
        # What is to be written: since when, and its bytes.
        self._waiting: deque[tuple[float, int, Entry]] = deque()
        self._waiting_bytes = 0
        self._gathering: asyncio.TimerHandle | None = None
        self._writer: asyncio.Task[None] | None = None
        self._prober: asyncio.Task[None] | None = None

    @property
    def is_up(self) -> bool:
        return self._breaker.is_closed

    async def open(self) -> None:
        """Connects, within `CONNECT_S`. A store that is not there is probed until it is."""
        await self._probe()
        if not self.is_up and not self._is_closed:
            self._opened("it does not answer")

    def publish(self, entries: Sequence[Entry]) -> None:
        sizes = [checked_size(entry.key, entry.value, entry.ttl_s) for entry in entries]
        now, waiting, waiting_bytes, taken = self._loop.time(), self._waiting, self._waiting_bytes, 0
        for entry, size in zip(entries, sizes, strict=True):
            if self._is_closed or len(waiting) >= MAX_WAITING or waiting_bytes + size > MAX_WAITING_BYTES:
                continue
            waiting.append((now, size, entry))
            waiting_bytes += size
            taken += 1
        self._waiting_bytes = waiting_bytes
        self.counters.writes += taken
        self.counters.dropped_writes += len(sizes) - taken
        self._write_soon()

    async def flush(self) -> None:
        while (self._waiting or self._writer is not None) and self.is_up:
            self._write_now()
            if self._writer is not None:
                await asyncio.wait([self._writer])

    async def aclose(self) -> None:
        self._is_closed = True
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(CLOSES_WITHIN_S):
                await self.flush()
        self._breaker.open()
        self.counters.dropped_writes += len(self._waiting)
        self._waiting.clear()
        tasks = [task for task in (self._writer, self._prober) if task is not None]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await self._disconnect()

    # ── what a subclass sends; it raises one of `_broken`, or `RefusedError` ─────────────────────────

    _broken: tuple[type[Exception], ...] = (OSError,)

    @abstractmethod
    async def _write(self, batch: Sequence[Entry]) -> tuple[int, list[tuple[int, bytes]]]:
        """In order; returns how many the store refused, and where watched entries took the place of other
        values, and those."""

    @abstractmethod
    async def _connect(self) -> None: ...
    @abstractmethod
    async def _ping(self) -> None: ...

    @abstractmethod
    async def _disconnect(self) -> None: ...

    # ── deadline and breaker ─────────────────────────────────────────────────────────────────────────

    async def _bounded(self, work: Coroutine[Any, Any, T]) -> T:
        counters = self.counters
        counters.calls += 1
        if not self._breaker.is_closed:
            work.close()
            counters.not_tried += 1
            raise StoreUnavailable(f"{self._name}: not called while it is down")
        began = self._loop.time()
        try:
            result = await self._in_time(work)
        except TimeoutError:
            counters.timeouts += 1
            self._failed(began, "no answer in time")
            raise StoreUnavailable(f"{self._name}: no answer within {self._deadline_s:g} s") from None
        except RefusedError as error:
            counters.failures += 1
            raise StoreUnavailable(f"{self._name}: {error}") from error
        except self._broken as error:
            counters.failures += 1
            self._failed(began, str(error))
            raise StoreUnavailable(f"{self._name}: {error}") from error
        self._breaker.worked()
        return result

    async def _in_time(self, work: Coroutine[Any, Any, T]) -> T:
        """Raises TimeoutError when the deadline's slices are over."""
        loop, slice_s = self._loop, self._deadline_s / SLICES
        timer: asyncio.TimerHandle
        async with asyncio.timeout(None) as limit:

            def elapse(left: int) -> None:
                nonlocal timer
                if left:
                    timer = loop.call_later(slice_s, elapse, left - 1)
                else:
                    limit.reschedule(loop.time())

            timer = loop.call_later(slice_s, elapse, SLICES - 1)
            try:
                return await work
            finally:
                timer.cancel()

    def _failed(self, began: float, why: str) -> None:
        if self._breaker.failed(began=began, now=self._loop.time()):
            self._opened(why)

    def _opened(self, why: str) -> None:
        self._log.log("store", logging.WARNING, "store_down", store=self._name, cause=why)
        if not self._is_closed and self._prober is None:
            self._prober = self._loop.create_task(self._probe_until_up())

    async def _probe_until_up(self) -> None:
        try:
            while not self.is_up:
                await asyncio.sleep(self._breaker.wait_s)
                await self._probe()
        finally:
            self._prober = None
        self._log.log("store", logging.INFO, "store_up", store=self._name)

    async def _probe(self) -> None:
        try:
            async with asyncio.timeout(CONNECT_S):
                await self._connect()
            await self._in_time(self._ping())
        except Exception as error:  # noqa: BLE001 - whatever it is, the store is not up, and is probed again
            log_event(logging.DEBUG, "store_probed", store=self._name, cause=repr(error))
            self._breaker.probed(works=False)
        else:
            self._breaker.probed(works=True)
            self._write_soon()

    # ── writing behind ───────────────────────────────────────────────────────────────────────────────

    def _write_soon(self) -> None:
        if self._gathering is None and self._writer is None and self._waiting and self.is_up:
            self._gathering = self._loop.call_later(GATHER_S, self._write_now)

    def _write_now(self) -> None:
        if self._gathering is not None:
            self._gathering.cancel()
            self._gathering = None
        if self._writer is None and self._waiting and self.is_up:
            self._writer = self._loop.create_task(self._write_waiting())

    async def _write_waiting(self) -> None:
        """What comes meanwhile is gathered anew, unless it fills a batch."""
        try:
            while self._waiting and self.is_up:
                batch = self._take_batch()
                try:
                    if batch:
                        refused, replaced = await self._bounded(self._write(batch))
                        self.counters.dropped_writes += refused
                        for at, there in replaced:
                            for notify in self.on_replaced:
                                notify(batch[at], there)
                except StoreUnavailable:
                    self.counters.dropped_writes += len(batch)
                if len(self._waiting) < BATCH:
                    break
        finally:
            self._writer = None
            self._write_soon()

    def _take_batch(self) -> list[Entry]:
        now, waiting = self._loop.time(), self._waiting
        taken = [waiting.popleft() for _ in range(min(BATCH, len(waiting)))]
        self._waiting_bytes -= sum([size for _, size, _ in taken])
        if now - taken[0][0] > AGES_S:
            return list(self._aged(taken, now))
        return [entry for _, _, entry in taken]

    def _aged(self, taken: Iterable[tuple[float, int, Entry]], now: float) -> Iterator[Entry]:
        for since, _, entry in taken:
            left_s = entry.ttl_s - (now - since)
            if entry.value is None:
                yield entry
            elif left_s >= 0.001:
                yield msgspec.structs.replace(entry, ttl_s=left_s)
            else:
                self.counters.dropped_writes += 1
