"""Streamed events that differ in one text only: what stands around it is compared, not read.

An engine sends a token an event, and of some 250 bytes all but the token are the same each time. So the
text of many events is what is left when the bytes around it are taken away; and what is left are JSON
strings, or they were other events. No unescaped quote stands inside a string, so nothing else can hide there.
"""

import msgspec

_STRINGS = msgspec.json.Decoder(list[str])
_END = b"\n\n"


class TextGap:
    """The bytes before the text, and those after it to the event's end."""

    __slots__ = ("_after", "_before", "_between", "_least")

    def __init__(self, before: bytes, after: bytes) -> None:
        self._before, self._after = before, after
        self._between = after + before
        self._least = len(before) + len(after)

    def text_of(self, events: bytes) -> str | None:
        """The texts of whole events, one after the other; None if one of them is not like that."""
        before, after = self._before, self._after
        if len(events) < self._least or not (events.startswith(before) and events.endswith(after)):
            return None
        texts = events[len(before) : -len(after)].replace(self._between, b'","')
        try:
            return "".join(_STRINGS.decode(b'["%s"]' % texts))
        except (msgspec.MsgspecError, ValueError):
            return None

    def with_text(self, text: str) -> bytes:
        """An event with this text, which needs no escapes."""
        return b"%s%s%s" % (self._before, text.encode(), self._after)


def find_gap(events: bytes, field: bytes) -> TextGap | None:
    """Around the first text of that field (`"name":"`, with its quotes) in the last of these events.

    Whether that text is the one that matters, and the only one, is for the caller to try out.
    """
    event = events[events.rfind(_END, 0, -len(_END)) + len(_END) :] if events.count(_END) > 1 else events
    start = event.find(field) + len(field)
    end = event.find(b'"', start)
    if start < len(field) or end < 0 or not event.endswith(_END):
        return None
    return TextGap(event[:start], event[end:])
