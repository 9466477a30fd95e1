"""Records on their way from the driver to everybody who reads them, many at a time.

A record costs a request one place in a list. Who reads gets a list every few milliseconds: a call for each
reader and event costs twenty times as much. Nor are they kept for long: a megabyte of records pushes what
requests need out of the processor's caches, which costs more than all that is done with them.

What goes into the file and what is kept in memory is the same lines of JSON, made once.

Invariants: every reader gets every record once, in order; nothing waits for longer than `PERIOD_S`, or for
more than `_MANY` others; who calls `flush` has everything that was taken before.
"""

import asyncio
from collections.abc import Callable, Sequence
from typing import Any, Final

import msgspec

from gateway.domain.records import Record

PERIOD_S: Final = 0.02
_MANY: Final = 256


class Handover:
    def __init__(
        self,
        takers: Sequence[Callable[[list[Record]], Any]],
        line_takers: Sequence[Callable[[bytes, int], Any]] = (),
    ) -> None:
        """`takers` keep none of the lists that they get. `line_takers` get the same records as lines of JSON,
        and how many they are."""
        self._takers = tuple(takers)
        self._line_takers = tuple(line_takers)
        self._encoder = msgspec.json.Encoder()
        self._fresh: list[Record] = []

    def take(self, records: list[Record]) -> None:
        """To be called on a running loop."""
        fresh = self._fresh
        if not fresh:
            asyncio.get_running_loop().call_later(PERIOD_S, self.flush)
        fresh += records
        if len(fresh) >= _MANY:
            self.flush()

    def flush(self) -> None:
        fresh, self._fresh = self._fresh, []
        if not fresh:
            return
        for take in self._takers:
            take(fresh)
        if self._line_takers:
            lines = self._encoder.encode_lines(fresh)
            for take_lines in self._line_takers:
                take_lines(lines, len(fresh))
