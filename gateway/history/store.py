"""A gateway's history: what is written there, and what it answers.

Questions are asked on a thread, one after the other. The event loop gives one that finds no other before it
a moment (`_MOMENT_S`): most are answered by then. What a thread tells the loop later is heard two turns of
the loop later, and on a busy gateway these take ten times as long as the answer.
"""

import asyncio
import concurrent.futures
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Final, TypeVar

from gateway.config.history import HistoryConfig
from gateway.domain.ids import ReplicaId, RequestId, SessionId
from gateway.domain.records import Record
from gateway.history.reader import Found, Reader, StoredTurn
from gateway.history.writer import Writer

_REST_S: Final = 30.0
"""When nobody has asked for so long, files are closed."""
_MOMENT_S: Final = 0.005
"""As long as the interpreter lets one thread keep the others waiting anyway (`sys.getswitchinterval`)."""
T = TypeVar("T")


class History:
    def __init__(
        self,
        config: HistoryConfig,
        *,
        running: Callable[[], Mapping[ReplicaId, int]],
        clock: Callable[[], float],
        monotonic: Callable[[], float],
    ) -> None:
        """`running`: how many turns each replica that is up runs now; `clock`: Unix time. Starts the thread
        that writes; a directory that cannot be used is its matter, and nobody else's."""
        self._running = running
        self._writer = Writer(config, clock=clock)
        self._reader = Reader(self._writer.segments, monotonic=monotonic)
        self._asking = ThreadPoolExecutor(1, thread_name_prefix="history-reader")
        self._asked = 0
        """Questions that have no answer yet."""
        self._rest: asyncio.TimerHandle | None = None
        self._is_closed = False

    @property
    def written(self) -> int:
        """Turns."""
        return self._writer.written

    @property
    def dropped(self) -> int:
        return self._writer.dropped

    @property
    def failures(self) -> int:
        """Attempts to write."""
        return self._writer.failures

    @property
    def bytes(self) -> int:
        """On the disk."""
        return self._writer.bytes

    @property
    def trouble(self) -> str | None:
        """Why nothing can be written for now."""
        return self._writer.trouble

    def take(self, records: list[Record]) -> None:
        """For the handover."""
        self._writer.take(records, self._running())

    async def turn(self, turn: RequestId) -> StoredTurn | None:
        if (still := self._writer.fold.open_turn(turn)) is not None:
            records = list(still.records)
            before, window = await self._ask(lambda: self._reader.beside(records, still.loads)) or ([], None)
            return StoredTurn(turn, still.session, records, still.loads, before, window)
        return await self._ask(lambda: self._reader.turn(turn))

    async def session(self, session: SessionId, *, before_s: float | None = None) -> Found | None:
        found = await self._ask(lambda: self._reader.session(session, before_s=before_s))
        if found is None:
            return None
        known = {turn for turn, _ in found.turns}
        still = [] if before_s is not None else self._writer.fold.open_turns_of(session)
        more = [(turn.id, list(turn.records)) for turn in still if turn.id not in known]
        return found._replace(turns=[*found.turns, *more])

    async def sessions(self, where: str, values: tuple[Any, ...], *, limit: int) -> list[dict[str, Any]]:
        """As `Reader.sessions`; nothing if the directory cannot be read."""
        return await self._ask(lambda: self._reader.sessions(where, values, limit=limit)) or []

    async def measures(
        self, where: str, values: tuple[Any, ...], *, from_s: float, to_s: float, sample: int
    ) -> tuple[int, list[list[Any]]]:
        """As `Reader.measures`; nothing if the directory cannot be read."""
        reader = self._reader
        found = await self._ask(
            lambda: reader.measures(where, values, from_s=from_s, to_s=to_s, sample=sample)
        )
        return found if found is not None else (0, [])

    async def since_s(self) -> float | None:
        """The oldest turn's end."""
        return await self._ask(self._reader.since_s)

    async def close(self) -> None:
        """Writes what there is, within some seconds. Nothing the second time."""
        if self._is_closed:
            return
        self._is_closed = True
        if self._rest is not None:
            self._rest.cancel()
        self._asking.submit(self._reader.close)
        await asyncio.to_thread(self._asking.shutdown)
        await asyncio.to_thread(self._writer.close)

    async def _ask(self, question: Callable[[], T]) -> T | None:
        """None if the directory cannot be read, and once it is closed."""
        if self._is_closed:
            return None
        if self._rest is not None:
            self._rest.cancel()
        loop = asyncio.get_running_loop()
        self._rest = loop.call_later(_REST_S, self._asking.submit, self._reader.close)
        asked = self._asking.submit(question)
        if not self._asked:  # else it waits for the thread, and the loop would wait in vain
            concurrent.futures.wait((asked,), _MOMENT_S)
        self._asked += 1
        try:
            answer: T = asked.result() if asked.done() else await asyncio.wrap_future(asked)
        except OSError:
            return None
        finally:
            self._asked -= 1
        return answer
