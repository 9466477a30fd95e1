"""Watching a compressed answer go by.

A kilobyte of it may be a megabyte, or a hundred thousand events. So chunks are inflated and read a bounded
amount at once; the rest waits for the next `feed`, at the answer's end for one with nothing.
"""

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, Final

from gateway.domain.request import Answer
from gateway.wire.inflate import Inflater, InflationError

if TYPE_CHECKING:
    from gateway.responses.observer import ResponseObserver

# Work for one `feed`, in bytes: 6,500 of the smallest events take 35 ms, 4,000 with a token 25 ms.
_AT_ONCE: Final = 2**20
# What an event costs beside its bytes.
_EVENT: Final = 150
_PIECE_BYTES: Final = 2**15
# What a piece costs at least, in bytes: an empty member of gzip has none.
_LEAST_PIECE: Final = 2**9
_MAX_BEHIND_BYTES: Final = 2**22


class InflatingObserver:
    """Inflates a copy of an answer for another observer; in all else it is that one."""

    def __init__(self, inner: "ResponseObserver", coding: str) -> None:
        self._inner = inner
        self._inflater: Inflater | None = Inflater(coding)
        self._waiting = bytearray()
        self._pieces = _inflate(self._inflater, self._waiting)
        self.has_backlog = False

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)

    def feed(self, chunk: bytes) -> bool:
        if self._inflater is None:
            return False
        self._waiting += chunk
        has_news, work_left, events_left = False, _AT_ONCE, self._inner.events_left
        self.has_backlog = True
        try:
            for piece in self._pieces:
                if piece is None:
                    self.has_backlog = False
                    break
                has_news |= self._inner.feed(piece)
                work_left -= max(len(piece), _LEAST_PIECE)
                if work_left <= _EVENT * (events_left - self._inner.events_left):
                    break
        except InflationError:
            self._stop()
        if self._inner.events_left < 0 or len(self._waiting) > _MAX_BEHIND_BYTES:
            self._stop()
        return has_news

    def answer(self, status: int, *, is_over: bool = False) -> Answer:
        is_whole = self._inflater is not None and not self.has_backlog
        return self._inner.answer(status, is_over=is_over and is_whole)

    def _stop(self) -> None:
        self._inflater, self.has_backlog = None, False
        self._waiting.clear()


def _inflate(inflater: Inflater, waiting: bytearray) -> Iterator[bytes | None]:
    """Pieces of all that ever waits; None while nothing does."""
    while True:
        chunk = bytes(waiting)
        waiting.clear()
        for piece in inflater.feed(chunk):
            for at in range(0, len(piece) or 1, _PIECE_BYTES):
                yield piece[at : at + _PIECE_BYTES]
        if not waiting:
            yield None
