"""Observes a passing response: its bytes become milestones.

The relay passes every chunk to an observer and to the client. The observer keeps no chunk that it does not
need, and never raises. The cuts between chunks change how early a milestone is reported, and nothing else.
"""

import re
from collections.abc import Callable
from functools import lru_cache, partial
from typing import Final, cast

from gateway.domain.request import Answer, Protocol, Work
from gateway.responses.chat import ChatReader
from gateway.responses.content import ResponseContent
from gateway.responses.inflating_observer import InflatingObserver
from gateway.responses.messages import MessagesReader
from gateway.responses.observed import AnswerReader, ObservedResponse
from gateway.responses.other import ErrorReader, read_anyway
from gateway.responses.responses import ResponsesReader, StoredReader
from gateway.responses.usage_of_unread import MAX_BYTES, METADATA, AnswerEnds, UnreadUsageObserver
from gateway.wire.body import UNREADABLE, structure_of
from gateway.wire.inflate import INFLATABLE
from gateway.wire.sse import EventSplitter, event_data

# A whole answer larger than this is not read.
MAX_BODY_BYTES = 8 * 2**20
# Nor is an answer, or an event, of more values than that (`body.structure_of`): each becomes an object.
MAX_STRUCTURE = 2**17
# In one answer, of those that come several at once: twice what the longest have. Each costs some 4 µs.
MAX_EVENTS: Final = 2**18
# In one chunk, comments and empty ones included, unless they are of `_EVENT_BYTES` on average: a read of
# 256 kB has as many of those, they take 30 ms, and events with a token are larger.
MAX_EVENTS_AT_ONCE: Final = 2**12
_EVENT_BYTES: Final = 32
# Events in one chunk, from which on most are known by those before them; and how many may teach that.
_SEVERAL: Final = 4
_END: Final = b"\n\n"
# One event as most engines write them.
_PLAIN: Final = re.compile(rb"data: [^\r\n]{0,65536}\n\n").fullmatch
# Events up to which it costs less to read each than to know them by others.
_SHORT: Final = 6
# In one answer: what is no strict JSON takes five times as long.
_MAX_LOOSE_EVENTS: Final = 2**9

MayKeep = Callable[[int], bool]

_MAX_EARLY_TRIES = 8
# A larger answer is read once, at its end.
_EARLY_BYTES = 2**18
# Of an answer that is read for errors alone.
_MAX_ERROR_BYTES: Final = 2**16
_START_BYTES: Final = 16
_BLANK: Final = b"\xef\xbb\xbf \t\r\n"
# How an event stream begins, under whatever content type.
_FIELD: Final = re.compile(rb"(?:data|event|id|retry|):")
_ERROR_EVENT: Final = re.compile(rb"^(?:\xef\xbb\xbf)?event: ?(?:response\.)?error$", re.MULTILINE)
_DONE: Final = b"[DONE]"
_TAKES_TOKENS: Final = (Work.GENERATE, Work.POOL)
# Content types, beside `text/…`, of responses and of error pages alike.
_TEXTS: Final = ("", "application/octet-stream", "application/xml")


class ResponseObserver:
    """Observes one response: `feed` every chunk in order, then read `answer`. This one observes nothing."""

    is_stream = False
    """The response is read while it grows, so milestones come in the order of its content."""
    has_backlog = False
    """More has come than was read at once; `feed(b"")` goes on with it."""

    def __init__(self, _: object = None, *, observed: ObservedResponse | None = None) -> None:
        self.seen = observed or ObservedResponse()

    @property
    def events_left(self) -> int:
        return MAX_EVENTS

    def feed(self, chunk: bytes) -> bool:
        """The next bytes of the body. False if they brought no milestone."""
        return False

    def answer(self, status: int, *, is_over: bool = False) -> Answer:
        """What was seen, after the last byte. `is_over`: that was the answer's own end, and no cut."""
        return Answer(status=status)

    def _begin(self) -> None:
        content = self.seen.content
        self.seen = ObservedResponse()
        if content is not None:
            content.begin()
            self.seen.content = content

    def _answer(self, status: int, *, is_known: bool, lacks: str = "truncated") -> Answer:
        # The ids in an error belong to nothing that exists.
        if status >= 400:
            return Answer(status=status)
        is_judged = is_known and status < 300 and status not in (202, 204, 205)  # they need no answer
        return self.seen.answer(status, self.seen.failure(is_known=is_judged, lacks=lacks))


class StreamObserver(ResponseObserver):
    """Sees server-sent events. Those that plainly bring a piece are not decoded."""

    is_stream = True

    def __init__(
        self, make_reader: type[AnswerReader], _: object = None, *, observed: ObservedResponse | None = None
    ) -> None:
        super().__init__(observed=observed)
        self._reader = make_reader()
        self._splitter = EventSplitter()
        self._events_left = MAX_EVENTS
        self._loose_left = _MAX_LOOSE_EVENTS
        self._is_between = True
        self._has_unread = self._has_learnt = False
        # So many events more are read before any is known by others.
        self._unlearnt = _SHORT

    @property
    def events_left(self) -> int:
        return -1 if self._splitter.is_stopped else self._events_left

    def feed(self, chunk: bytes) -> bool:
        was_between, observed = self._is_between, self.seen
        if was_between and observed.has_first_token and self._has_learnt:
            has_news = self._reader.take(chunk, observed)
            if has_news is not None:
                return has_news
        before = observed.milestones, observed.has_first_token
        if was_between and _PLAIN(chunk) is not None:
            try:
                self._reader.read_event(chunk[6:-2], observed)
            except UNREADABLE:
                self._read(chunk[:-2])
            is_one = True
        else:
            is_one = self._feed_any(chunk) and was_between
        if is_one and self._unlearnt:
            self._unlearnt -= 1
        elif is_one and observed.has_first_token and observed.finish_reason is None:
            self._has_learnt = True
            self._reader.learn(chunk)
        return (observed.milestones, observed.has_first_token) != before

    def _feed_any(self, chunk: bytes) -> bool:
        """Whether one event ended with it."""
        observed = self.seen
        blocks = self._splitter.feed(chunk)
        count = len(blocks)
        if count > 1:
            self._events_left -= count
            is_dense = count > MAX_EVENTS_AT_ONCE and count * _EVENT_BYTES > len(chunk)
            if is_dense or self._events_left < 0:
                self._splitter.stop()
                del blocks[MAX_EVENTS_AT_ONCE:]
        if self._splitter.is_stopped:
            observed.other_bytes += len(chunk)
        tries = _SEVERAL if count >= _SEVERAL else 0
        for block in blocks:
            is_likely = tries > 0 and observed.has_first_token
            if is_likely and self._reader.take(block + _END, observed) is not None:
                continue
            self._read(block)
            if is_likely and observed.finish_reason is None:
                self._has_learnt = True
                self._reader.learn(block + _END)
                tries -= 1
        self._is_between = self._splitter.is_between_events
        return self._is_between and count == 1

    def answer(self, status: int, *, is_over: bool = False) -> Answer:
        has_unread = self._has_unread
        # Some servers leave out the empty line after their last event.
        for block in () if self._is_between else self._splitter.finish():
            self._read(block)
            has_unread |= self._has_unread and not event_data(block)
        is_unsure = has_unread or self._splitter.is_stopped or not self._reader.knows_answers
        return self._answer(status, is_known=is_over and not is_unsure)

    def _read(self, block: bytes) -> None:
        is_plain = block.startswith(b"data: ") and b"\n" not in block
        data = block[6:] if is_plain else event_data(block)
        read, observed = self._reader.read_event, self.seen
        if not data and block.lstrip(_BLANK).startswith(b"{"):  # a whole answer, under this content type
            data, read = block, self._reader.read_body
        if data:
            try:
                is_lost = is_unread = len(data) > MAX_STRUCTURE and structure_of(data) > MAX_STRUCTURE
                if not is_unread:
                    read(data, observed)
            except UNREADABLE:
                if data.strip() == _DONE:
                    observed.has_terminal = True
                    return
                self._loose_left -= 1
                found = read_anyway(data, read, observed) if self._loose_left >= 0 else None
                is_unread = found is None
                is_lost = is_unread or (found is False and data is not block)  # False: nothing is in it
            self._has_unread |= is_unread
            observed.other_bytes += len(data) * is_lost
        has_fields = len(block) != len(data) + len(b"data: ")
        if has_fields and b"error" in block and not observed.error_status and _ERROR_EVENT.search(block):
            observed.fail(None)


class BodyObserver(ResponseObserver):
    """Sees one JSON document, or a stream under another content type."""

    def __init__(self, make_reader: type[AnswerReader], may_keep: MayKeep | None = None) -> None:
        super().__init__()
        self._make_reader = make_reader
        self._may_keep = may_keep
        self._max_bytes = MAX_BODY_BYTES if make_reader.knows_answers else _MAX_ERROR_BYTES
        self._pieces: list[bytes] = []
        self._seen_bytes = 0
        # How many bytes had come when we last tried to read the document.
        self._read_bytes = 0
        self._is_known = True
        self._tries_left = _MAX_EARLY_TRIES
        self._start: bytes | None = b""
        self._stream: StreamObserver | None = None
        self._ends: AnswerEnds | None = None

    @property
    def events_left(self) -> int:
        if self._stream is not None:
            return self._stream.events_left
        max_bytes = MAX_BYTES if self._ends is not None else self._max_bytes
        return -1 if self._seen_bytes > max_bytes else MAX_EVENTS

    def feed(self, chunk: bytes) -> bool:
        if self._stream is not None:
            return self._stream.feed(chunk)
        self._seen_bytes += len(chunk)
        is_kept = self._seen_bytes <= self._max_bytes
        if is_kept and self._may_keep is not None and not self._may_keep(len(chunk)):
            self._seen_bytes = self._max_bytes + 1
        if self._seen_bytes > self._max_bytes:
            if self._ends is None and self._make_reader.knows_answers:
                self._keep_ends()
            if self._ends is not None:
                self._ends.keep(chunk)
            self._pieces.clear()
            self._begin()
            return False
        self._pieces.append(chunk)
        if self._start is not None and self._begins_stream(self._start + chunk):
            return self._go_on_as_stream()
        # It may be complete. If it hardly ever is, it is read at the end alone.
        is_early = self._tries_left and self._seen_bytes <= _EARLY_BYTES
        if is_early and (chunk.endswith(b"}") or chunk.rstrip(b" \t\r\n").endswith(b"}")):
            self._tries_left -= 1
            self._read()
            return True
        return False

    def _begins_stream(self, beginning: bytes) -> bool:
        start = beginning.lstrip(_BLANK)[:_START_BYTES]
        self._start = start if len(start) < _START_BYTES and not start.startswith(b"{") else None
        return self._start is None and _FIELD.match(start) is not None

    def _go_on_as_stream(self) -> bool:
        self.is_stream = True
        self._stream = StreamObserver(self._make_reader, observed=self.seen)
        pieces, self._pieces = self._pieces, []
        return self._stream.feed(b"".join(pieces))

    def answer(self, status: int, *, is_over: bool = False) -> Answer:
        if self._start and _FIELD.match(self._start):  # all that has come is very little
            self._start = None
            self._go_on_as_stream()
        if self._stream is not None:
            return self._stream.answer(status, is_over=is_over)
        is_kept = self._seen_bytes <= self._max_bytes
        if is_kept and (self._read_bytes != self._seen_bytes or not self._is_known):
            self._read(is_last=is_over)
        is_known = is_kept and self._is_known and self._make_reader.knows_answers
        answer = self._answer(
            status, is_known=is_over and is_known, lacks="malformed" if self._seen_bytes else "truncated"
        )
        if is_known or not self._make_reader.knows_answers:
            return answer
        return (self._ends or self._keep_ends()).counted(answer)

    def _keep_ends(self) -> AnswerEnds:
        self._ends = AnswerEnds(is_generated=True)
        for piece in self._pieces:
            self._ends.keep(piece)
        self._ends.whole = b"".join(self._pieces) if self._seen_bytes <= self._max_bytes else b""
        return self._ends

    def _read(self, *, is_last: bool = False) -> None:
        if self._read_bytes:
            self._begin()
        self._read_bytes = self._seen_bytes
        if len(self._pieces) > 1:
            self._pieces = [b"".join(self._pieces)]
        data, self._is_known = self._pieces[0], False
        if len(data) > MAX_STRUCTURE and structure_of(data) > MAX_STRUCTURE:
            return
        read = self._make_reader().read_body
        try:
            read(data, self.seen)
            self._is_known = True
        except UNREADABLE:
            self._begin()
            if is_last:
                self._is_known = read_anyway(data, read, self.seen) is not None


def observe(
    protocol: Protocol,
    work: Work,
    content_type: str,
    content_encoding: str | None,
    *,
    content: ResponseContent | None = None,
    may_keep: MayKeep | None = None,
    head: bytes = b"",
) -> ResponseObserver:
    """Observes nothing of a response that cannot be read. `content`: collects its content; `may_keep`:
    reserves memory for so many more bytes; `head`: its head, which holds vLLM's usage if the body is
    binary."""
    observer = _choose(protocol, work, content_type, content_encoding)(may_keep)
    if work is Work.POOL and (found := METADATA.search(head)) is not None:
        observer = cast(
            ResponseObserver, UnreadUsageObserver(observer, is_generated=False, metadata=found[0])
        )
    if content is not None:
        observer.seen.content = content
    return observer


_Make = Callable[[MayKeep | None], ResponseObserver]


@lru_cache(256)
def _choose(protocol: Protocol, work: Work, content_type: str, content_encoding: str | None) -> _Make:
    reader = _choose_reader(protocol, work)
    media_type = content_type.partition(";")[0].strip().lower()
    coding = (content_encoding or "identity").strip().lower()
    is_read = reader is not None and reader.knows_answers
    make: _Make = ResponseObserver
    is_text = media_type.startswith("text/") or media_type in _TEXTS
    if reader is None or (coding != "identity" and coding not in INFLATABLE):
        coding = "identity"
    elif media_type == "text/event-stream":
        make = partial(StreamObserver, reader)
    elif media_type.endswith(("/json", "+json")) or (is_text and work is Work.GENERATE and is_read):
        make = partial(BodyObserver, reader)
    elif work not in _TAKES_TOKENS:
        coding = "identity"
    if work in _TAKES_TOKENS and (make is ResponseObserver or not is_read):
        bare, is_generated = make, work is Work.GENERATE
        make = lambda may_keep: cast(  # noqa: E731
            ResponseObserver, UnreadUsageObserver(bare(may_keep), is_generated=is_generated)
        )
    if coding == "identity":
        return make
    return lambda may_keep: cast(ResponseObserver, InflatingObserver(make(may_keep), coding))


def _choose_reader(protocol: Protocol, work: Work) -> type[AnswerReader] | None:
    match protocol, work:
        case Protocol.CHAT | Protocol.COMPLETIONS, Work.GENERATE:
            return ChatReader
        case Protocol.RESPONSES, Work.GENERATE:
            return ResponsesReader
        case Protocol.RESPONSES, Work.STATE:
            return StoredReader
        case Protocol.MESSAGES, Work.GENERATE:
            return MessagesReader
        case (Protocol.MCP, _) | (_, Work.TUNNEL):
            return None
        case _:
            return ErrorReader
