"""Streamed events that differ in one text only: what stands around it is compared, not read.

An engine sends a token an event, and of some 250 bytes all but the token are the same each time. So the
text of many events is what is left when the bytes around it are taken away; and what is left are JSON
strings, or they were other events. No unescaped quote stands inside a string, so nothing else can hide there.
"""

import re
from collections.abc import Callable
from typing import Final, NamedTuple

import msgspec

from gateway.responses.content import Kind
from gateway.wire.body import UNREADABLE
from gateway.wire.sse import event_data

_STRINGS: Final = msgspec.json.Decoder(list[str])
_ENDS: Final = (b"\n\n", b"\r\n\r\n")
_FIELDS: Final = "content arguments delta text partial_json reasoning reasoning_content thinking".split()
_STARTS: Final = tuple(b'"%s":%s"' % (each.encode(), blank) for each in _FIELDS for blank in (b"", b" "))
_NUMBER: Final = re.compile(rb'"sequence_number": ?([1-9][0-9]*)')
TEXT, THOUGHT, CALL = Kind.TEXT, Kind.THOUGHT, Kind.CALL  # looked up once: each token needs them
# A larger event brings more than a token, and the next one is hardly like it.
_MAX_BYTES: Final = 2048
# To find gaps in an answer's events: one for its text, one for each call; some engines' events have none.
_MAX_TRIES: Final = 16


class EventTemplate:
    """The bytes before the text, and those after it to the event's end."""

    __slots__ = ("_after", "_before", "_between", "_least")

    def __init__(self, before: bytes, after: bytes) -> None:
        self._before, self._after = before, after
        self._between = after + before
        self._least = len(before) + len(after)

    def text_of(self, events: bytes) -> str | None:
        found = events.removeprefix(self._before).removesuffix(self._after)
        if len(found) + self._least != len(events):
            return None
        try:
            text = found.decode()
            if '"' not in text and "\\" not in text and text.isprintable():
                return text  # one event's, and as it is
            return "".join(_STRINGS.decode(b'["%s"]' % found.replace(self._between, b'","')))
        except (msgspec.MsgspecError, ValueError):
            return None

    def with_text(self, text: str) -> bytes:
        return b"%s%s%s" % (self._before, text.encode(), self._after)


class NumberedTemplate(EventTemplate):
    """The same of a single event with a sequence number, which differs each time, behind its text."""

    __slots__ = ("_middle",)

    def __init__(self, before: bytes, middle: bytes, after: bytes) -> None:
        super().__init__(before, after)
        self._middle = middle

    def text_of(self, events: bytes) -> str | None:
        start, middle, end = events.partition(self._middle)
        number = end.removesuffix(self._after)
        is_like = middle and len(number) < len(end) and number.isdigit() and not number.startswith(b"0")
        return super().text_of(start + self._after) if is_like else None

    def with_text(self, text: str) -> bytes:
        return b"%s%s%s10%s" % (self._before, text.encode(), self._middle, self._after)


class Piece(NamedTuple):
    kind: Kind
    place: object
    """The call or the thought that it belongs to: any key of the protocol reader's."""
    text: str


# The piece in an event's data; None if it holds anything else. May raise one of `body.UNREADABLE`.
PieceOf = Callable[[bytes], Piece | None]


class Pieces:
    """The events of one answer that bring a piece like the last one did, and nothing else."""

    def __init__(self, piece_of: PieceOf) -> None:
        self._piece_of = piece_of
        self._tries = _MAX_TRIES
        # The text of whole events like the one that was learnt; None for others.
        self.text_of: Callable[[bytes], str | None] = lambda _: None
        self.kind = TEXT
        self.place: object = None

    def learn(self, event: bytes) -> None:
        """`event`: one, whole, as it came, to know the next ones by."""
        if not self._tries or len(event) > _MAX_BYTES or not event.endswith(_ENDS):
            return
        try:
            piece = self._piece_of(_data_of(event))
            if piece is None:
                return
            self._tries -= 1
            other = piece._replace(text="" if piece.text else "?")
            for start in _STARTS:
                template = _around(event, start)
                if template is not None and self._piece_of(_data_of(template.with_text(other.text))) == other:
                    self.text_of, self.kind, self.place = template.text_of, piece.kind, piece.place
                    return
        except UNREADABLE:
            return


def _data_of(event: bytes) -> bytes:
    return event_data(event.replace(b"\r\n", b"\n").rstrip(b"\n"))


def _around(event: bytes, start: bytes) -> EventTemplate | None:
    at = end = event.find(start) + len(start)
    if at < len(start):
        return None
    while (end := event.find(b'"', end)) >= 0:
        before = event[at:end]
        if (len(before) - len(before.rstrip(b"\\"))) % 2 == 0:  # it is not escaped
            number = _NUMBER.search(event, end)
            if number is None:
                return EventTemplate(event[:at], event[end:])
            return NumberedTemplate(event[:at], event[end : number.start(1)], event[number.end() :])
        end += 1
    return None
