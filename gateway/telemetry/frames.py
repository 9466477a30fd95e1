"""The stream as server-sent events: the next records of each reader, or a gap (pure).

Readers are served in *ticks*. What one tick may cost is bounded: so many records are encoded, and so many
are sent to all readers together, however many there are. A reader that lags behind the ring gets a gap, and
goes on at its end. Readers with the same position and filter share one encoding.

Invariants: a reader gets every record that it wants exactly once and in order, or a gap that covers it; what
is kept for readers does not grow with what they fail to read.
"""

from collections import OrderedDict
from typing import Final

import msgspec

from gateway.domain.ids import SessionId
from gateway.telemetry.ring import Ring

ENCODED_A_TICK: Final = 500
# To all readers together.
SENT_A_TICK: Final = 10_000
# Of one reader's records, however many readers there are.
LEAST_A_TICK: Final = 32
_REMEMBERED: Final = 64


class Filter(msgspec.Struct, frozen=True, kw_only=True):
    """What a reader wants; by default all."""

    types: frozenset[str] | None = None
    session: SessionId | None = None

    def wants(self, line: bytes) -> bool:
        if self.types is not None and type_of(line).decode() not in self.types:
            return False
        if self.session is None:
            return True
        # Most lines need no decoding.
        return self.session.encode(errors="replace") in line and _session.decode(line).session == self.session


class _OfSession(msgspec.Struct):
    session: str | None = None


_session: Final = msgspec.json.Decoder(_OfSession)


def type_of(line: bytes) -> bytes:
    return line[_TYPE : line.index(b'"', _TYPE)]


_TYPE: Final = len('{"type":"')


class Reader(msgspec.Struct, kw_only=True, eq=False):
    position: int
    """The number of the last record that it was sent, or that a gap covered."""
    wanted: Filter
    is_resuming: bool = False


class Frames:
    def __init__(self, ring: Ring) -> None:
        self.ring = ring
        self._left = ENCODED_A_TICK
        self._share = ENCODED_A_TICK
        self._made: OrderedDict[tuple[Filter, int, int], bytes] = OrderedDict()
        self.gaps = 0

    def begin_tick(self, readers: int) -> None:
        self._left = ENCODED_A_TICK
        self._share = max(LEAST_A_TICK, min(ENCODED_A_TICK, SENT_A_TICK // max(1, readers)))

    def open(self, after: int | None, wanted: Filter) -> Reader:
        if after is None:
            return Reader(position=self.ring.last, wanted=wanted)
        if after == 0:
            return Reader(position=self.ring.first - 1, wanted=wanted)
        return Reader(position=after, wanted=wanted, is_resuming=True)

    def read(self, reader: Reader) -> bytes:
        ring = self.ring
        gap = b""
        if reader.position > ring.last:  # of another life of the gateway
            gap = self._gap(reader, 1, ring.last)
        elif reader.position < ring.first - 1:
            # Who comes back gets what is still there; who is too slow would only fall behind again.
            gap = self._gap(reader, reader.position + 1, ring.first - 1 if reader.is_resuming else ring.last)
        reader.is_resuming = False
        start = reader.position
        end = min(ring.last, (start // self._share + 1) * self._share)  # so that readers meet
        if end <= start:
            return gap
        made = self._made.get((reader.wanted, start, end))
        if made is None:
            if self._left < end - start:
                return gap
            self._left -= end - start
            made = self._encode(start, end, reader.wanted)
            self._made[(reader.wanted, start, end)] = made
            if len(self._made) > _REMEMBERED:
                self._made.popitem(last=False)
        reader.position = end
        return gap + made

    def _gap(self, reader: Reader, start: int, end: int) -> bytes:
        self.gaps += 1
        reader.position = end
        return b'id: %d\nevent: gap\ndata: {"from":%d,"to":%d}\n\n' % (end, start, end)

    def _encode(self, start: int, end: int, wanted: Filter) -> bytes:
        is_all = wanted == _ALL
        events = [
            b"id: %d\nevent: %s\ndata: %s\n\n" % (number, type_of(line), line)
            for number, line in enumerate(self.ring.lines_behind(start, end - start), start + 1)
            if is_all or wanted.wants(line)
        ]
        if not is_all:
            events.append(b"id: %d\n\n" % end)  # no event, but where to go on
        return b"".join(events)


_ALL: Final = Filter()
