"""Records on their way from the driver to everybody who reads them, many at a time.

A record costs a request one place in a list. Who reads gets a list every few milliseconds: a call for each
reader and event costs twenty times as much. Nor are they kept for long: a megabyte of records pushes what
requests need out of the processor's caches, which costs more than all that is done with them.

What goes into the file and what is kept in memory is the same lines of JSON, made once.

Invariants: every reader gets every record once, in order; nothing waits for longer than `PERIOD_S`, or for
much more than `_MANY` others; no reader gets a record before the callback that it comes from has ended; who
calls `flush` has everything that was taken before.
"""

import asyncio
import logging
from collections.abc import Callable, Sequence
from typing import Any, Final

import msgspec

from gateway.domain.records import Record

_log: Final = logging.getLogger(__name__)
PERIOD_S: Final = 0.02
_MANY: Final = 256


class RecordBatcher:
    def __init__(
        self,
        takers: Sequence[Callable[[list[Record]], Any]],
        line_takers: Sequence[Callable[[bytes, int], Any]] = (),
    ) -> None:
        """`takers` change none of the lists that they get. `line_takers` get the same records as lines of
        JSON, and how many they are."""
        self._takers = tuple(takers)
        self._line_takers = tuple(line_takers)
        self._encoder = msgspec.json.Encoder()
        self._fresh: list[Record] = []
        self._due: asyncio.Handle | None = None
        self._is_soon = False
        self._has_failed = False

    def take(self, records: list[Record]) -> None:
        fresh = self._fresh
        fresh += records
        if self._due is None:
            self._due = asyncio.get_running_loop().call_later(PERIOD_S, self.flush)
        elif len(fresh) >= _MANY and not self._is_soon:
            self._is_soon = True
            self._due.cancel()
            self._due = asyncio.get_running_loop().call_soon(self.flush)

    def flush(self) -> None:
        if self._due is None:
            return
        self._due.cancel()
        self._due, self._is_soon = None, False
        fresh, self._fresh = self._fresh, []
        for take in self._takers:
            self._hand_over(take, fresh)
        if self._line_takers:
            lines = self._encoder.encode_lines(fresh)
            for take_lines in self._line_takers:
                self._hand_over(take_lines, lines, len(fresh))

    def _hand_over(self, take: Callable[..., Any], *what: Any) -> None:
        try:
            take(*what)
        except Exception:  # noqa: BLE001 - a bug of ours costs one reader these records
            if not self._has_failed:
                self._has_failed = True
                _log.exception("a reader of records failed, and goes on (logged once)")
