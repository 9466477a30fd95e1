"""Server-sent events, split from chunks of any size (WHATWG HTML §9.2).

Lines end in LF, CRLF or CR, and an empty line ends an event. An event stays one block of bytes here;
only for events that matter are its data lines taken out. So a chunk that holds whole events, which is
how engines write them, costs one search and one split.
"""

# A larger event stops the splitter: it is no token, and we do not buffer without bound.
MAX_EVENT_BYTES = 4 * 2**20

_END = b"\n\n"
_BYTE_ORDER_MARK = b"\xef\xbb\xbf"


class EventSplitter:
    """Collects chunks and gives back complete events. Never raises."""

    def __init__(self) -> None:
        # The start of an event whose end has not come.
        self._pending = bytearray()
        self._ends_in_cr = False
        # An event was too large, or there were too many; nothing more will come out.
        self.is_stopped = False

    @property
    def is_between_events(self) -> bool:
        return not (self._pending or self._ends_in_cr or self.is_stopped)

    def feed(self, chunk: bytes) -> list[bytes]:
        """The events that this chunk completes, as blocks for `event_data`."""
        if self.is_stopped or not chunk:
            return []
        if self._ends_in_cr or b"\r" in chunk:
            chunk = self._normalise(chunk)
        pending = self._pending
        if not pending and chunk.endswith(_END) and len(chunk) <= MAX_EVENT_BYTES:
            return chunk[: -len(_END)].split(_END)
        # The pending bytes hold no end, but their last byte may be half of one.
        searched = max(0, len(pending) - 1)
        pending += chunk
        end = pending.rfind(_END, searched)
        complete = bytes(pending[:end]) if end >= 0 else b""
        if end >= 0:
            del pending[: end + len(_END)]
        return self._within_limit(complete)

    def finish(self) -> list[bytes]:
        block = bytes(self._pending)
        self._pending.clear()
        return [] if self.is_stopped or not block else [block]

    def _within_limit(self, complete: bytes) -> list[bytes]:
        blocks = complete.split(_END) if complete else []
        if len(complete) > MAX_EVENT_BYTES:
            for at, block in enumerate(blocks):
                if len(block) > MAX_EVENT_BYTES:
                    self.stop()
                    return blocks[:at]
        # One byte more than an event: the first half of its end.
        if len(self._pending) > MAX_EVENT_BYTES + 1:
            self.stop()
        return blocks

    def stop(self) -> None:
        self.is_stopped = True
        self._pending.clear()

    def _normalise(self, chunk: bytes) -> bytes:
        if self._ends_in_cr and chunk.startswith(b"\n"):
            chunk = chunk[1:]
            self._ends_in_cr = False
            if not chunk:
                return chunk
        self._ends_in_cr = chunk.endswith(b"\r")
        return chunk.replace(b"\r\n", b"\n").replace(b"\r", b"\n")


def event_data(block: bytes) -> bytes:
    """An event's data: its data lines, joined. Empty for comments and for events without data."""
    at = block.find(b"\n")
    if at < 0 and block.startswith(b"data: "):
        return block[6:]
    if block.startswith(b"event: ") and block.startswith(b"data: ", at + 1) and block.find(b"\n", at + 1) < 0:
        return block[at + 7 :]
    lines = []
    for line in block.removeprefix(_BYTE_ORDER_MARK).split(b"\n"):
        name, _, value = line.partition(b":")
        if name == b"data":
            lines.append(value.removeprefix(b" "))
    return b"\n".join(lines)
