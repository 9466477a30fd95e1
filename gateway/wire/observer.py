"""Watching an answer go by: its bytes become milestones.

The relay hands every chunk to an observer and to the client; the observer keeps no chunk that it does
not need and never raises, so it can slow or break nothing. What it says does not depend on how the
bytes were cut into chunks, except how early it says it.
"""

from collections.abc import Callable
from functools import lru_cache, partial
from typing import Any, cast
from typing import Protocol as Interface

from gateway.domain.request import Answer, Protocol, ToolCall, Work
from gateway.wire.body import UNREADABLE, structure_of
from gateway.wire.chat_answers import ChatReader
from gateway.wire.inflate import INFLATABLE, Inflater, InflationError
from gateway.wire.messages_answers import MessagesReader
from gateway.wire.responses_answers import ResponsesReader
from gateway.wire.said import Said
from gateway.wire.sighting import AnswerReader, Sighting
from gateway.wire.sse import EventSplitter, event_data
from gateway.wire.usage_answers import UsageObserver

MAX_BODY_BYTES = 8 * 2**20
"""A whole answer larger than this is not read."""
MAX_STRUCTURE = 2**17
"""Nor is an answer, or an event, of more values than that (`body.structure_of`): each becomes an object."""

MayKeep = Callable[[int], bool]

_MAX_EARLY_TRIES = 8
_EARLY_BYTES = 2**18
"""A larger answer is read once, at its end."""


class ResponseObserver(Interface):
    """Sees one answer. `feed` every chunk in order, then ask for the `answer` once."""

    @property
    def has_first_token(self) -> bool:
        """The model has begun: content, reasoning or a tool call was seen; or the whole answer was."""

    @property
    def has_terminal(self) -> bool:
        """The protocol's own end of the answer was seen."""

    @property
    def tool_calls(self) -> list[ToolCall]:
        """The calls seen so far, in order; each appears once its id and name are known."""

    @property
    def closed_calls(self) -> list[ToolCall]:
        """Those whose arguments are complete, in the order in which they became so."""

    def arguments_of(self, number: int) -> bytes | None:
        """The arguments of a closed call, by its place among them, as they came; None if they, or what was
        said before, were too much to be kept."""

    @property
    def state_ids(self) -> list[str]:
        """Ids of what the replica stores for later requests, seen so far, in order."""

    @property
    def is_stream(self) -> bool:
        """It sees an answer grow, so that what it sees first came first."""

    def tell(self, said: Said) -> None:
        """What the answer says goes there, too; to be called before the first chunk."""

    def feed(self, chunk: bytes) -> bool:
        """The next bytes of the body. False if they plainly brought no milestone."""

    def answer(self, status: int, *, is_over: bool = False) -> Answer:
        """What was seen, after the last byte. `is_over`: that was the answer's own end, and no cut."""


def observe(
    protocol: Protocol,
    work: Work,
    content_type: str,
    content_encoding: str | None,
    *,
    said: Said | None = None,
    may_keep: MayKeep | None = None,
) -> ResponseObserver:
    """An observer for an answer with these header fields; one that sees nothing if we cannot read it. `said`:
    told what the answer says; `may_keep`: asked before so many more bytes of it are kept."""
    observer = _choose(protocol, work, content_type, content_encoding)(may_keep)
    if work is Work.POOL:
        coding = (content_encoding or "").strip().lower()
        observer = cast(ResponseObserver, UsageObserver(observer, coding))
    if said is not None:
        observer.tell(said)
    return observer


@lru_cache(256)
def _choose(
    protocol: Protocol, work: Work, content_type: str, content_encoding: str | None
) -> Callable[[MayKeep | None], ResponseObserver]:
    reader = _choose_reader(protocol, work)
    media_type = content_type.partition(";")[0].strip().lower()
    coding = (content_encoding or "identity").strip().lower()
    make: Callable[[MayKeep | None], ResponseObserver]
    if reader is None or (coding != "identity" and coding not in INFLATABLE):
        return lambda _: SilentObserver()
    if media_type == "text/event-stream":
        make = lambda _: StreamObserver(reader)  # noqa: E731
    elif media_type == "application/json":
        make = partial(BodyObserver, reader)
    else:
        return lambda _: SilentObserver()
    if coding == "identity":
        return make
    return lambda may_keep: cast(ResponseObserver, InflatingObserver(make(may_keep), coding))


def _choose_reader(protocol: Protocol, work: Work) -> type[AnswerReader] | None:
    match protocol, work:
        case Protocol.CHAT | Protocol.COMPLETIONS, Work.GENERATE:
            return ChatReader
        case Protocol.RESPONSES, Work.GENERATE | Work.STATE:
            return ResponsesReader
        case Protocol.MESSAGES, Work.GENERATE:
            return MessagesReader
        case _:
            return None


class _Observer:
    """What every observer says of its sighting."""

    is_stream = False

    def __init__(self) -> None:
        self._sighting = Sighting()

    @property
    def has_first_token(self) -> bool:
        return self._sighting.has_first_token

    @property
    def has_terminal(self) -> bool:
        return self._sighting.has_terminal

    @property
    def tool_calls(self) -> list[ToolCall]:
        return self._sighting.tool_calls

    @property
    def closed_calls(self) -> list[ToolCall]:
        return self._sighting.closed_calls

    def arguments_of(self, number: int) -> bytes | None:
        return self._sighting.arguments_of(number)

    @property
    def state_ids(self) -> list[str]:
        return self._sighting.state_ids

    def tell(self, said: Said) -> None:
        self._sighting.said = said

    def _begin(self) -> None:
        said = self._sighting.said
        self._sighting = Sighting()
        if said is not None:
            said.begin()
            self._sighting.said = said

    def _answer(self, status: int, *, is_over: bool, may_miss_its_end: bool) -> Answer:
        # An error says nothing about the session: what it mentions was not made.
        if status >= 400:
            return Answer(status=status)
        return self._sighting.answer(
            status, self._sighting.failure(may_miss_its_end=may_miss_its_end or not is_over)
        )


_NOTHING = Sighting()
_ERROR_EVENTS = (b"event: error\n", b"event:error\n")


class SilentObserver(_Observer):
    """Sees nothing."""

    def __init__(self) -> None:
        self._sighting = _NOTHING

    def tell(self, said: Said) -> None:
        """There is nothing to be told."""

    def feed(self, chunk: bytes) -> bool:
        return False

    def answer(self, status: int, *, is_over: bool = False) -> Answer:
        return Answer(status=status)


class StreamObserver(_Observer):
    """Sees server-sent events. Those that plainly bring a piece are not decoded."""

    is_stream = True

    def __init__(self, make_reader: Callable[[], AnswerReader]) -> None:
        super().__init__()
        self._reader = make_reader()
        self._splitter = EventSplitter()
        self._is_between = True
        """What comes next is the start of an event."""
        self._has_unread = False
        """Events, one of which may have been the last."""

    def feed(self, chunk: bytes) -> bool:
        was_between, sighting = self._is_between, self._sighting
        if was_between and sighting.has_first_token:
            has_news = self._reader.take(chunk, sighting)
            if has_news is not None:
                return has_news
        blocks = self._splitter.feed(chunk)
        for block in blocks:
            self._read(block)
        self._is_between = self._splitter.is_between_events
        is_whole = was_between and self._is_between and len(blocks) == 1
        if is_whole and sighting.has_first_token and sighting.finish_reason is None:
            self._reader.learn(chunk)
        return True

    def answer(self, status: int, *, is_over: bool = False) -> Answer:
        # Some servers leave out the empty line after their last event.
        for block in self._splitter.finish():
            self._read(block)
        is_unsure = self._has_unread or self._splitter.is_stopped
        return self._answer(status, is_over=is_over, may_miss_its_end=is_unsure)

    def _read(self, block: bytes) -> None:
        data = event_data(block)
        if not data or _is_dense(data):
            self._has_unread |= bool(data)
            return
        try:
            self._reader.read_event(data, self._sighting)
        except UNREADABLE:
            self._has_unread = True
        if block.startswith(_ERROR_EVENTS) and not self._sighting.error_status:
            self._sighting.fail(None)


class BodyObserver(_Observer):
    """Sees one JSON document."""

    def __init__(self, make_reader: Callable[[], AnswerReader], may_keep: MayKeep | None = None) -> None:
        super().__init__()
        self._make_reader = make_reader
        self._may_keep = may_keep
        self._pieces: list[bytes] = []
        self._seen_bytes = 0
        self._read_bytes = 0
        """How many bytes had come when we last tried to read the document."""
        self._tries_left = _MAX_EARLY_TRIES

    def feed(self, chunk: bytes) -> bool:
        self._seen_bytes += len(chunk)
        if (
            self._seen_bytes <= MAX_BODY_BYTES
            and self._may_keep is not None
            and not self._may_keep(len(chunk))
        ):
            self._seen_bytes = MAX_BODY_BYTES + 1
        if self._seen_bytes > MAX_BODY_BYTES:
            self._pieces.clear()
            self._begin()
            return False
        self._pieces.append(chunk)
        # It may be complete. If it hardly ever is, it is read at the end alone.
        is_early = self._tries_left and self._seen_bytes <= _EARLY_BYTES
        if is_early and (chunk.endswith(b"}") or chunk.rstrip(b" \t\r\n").endswith(b"}")):
            self._tries_left -= 1
            self._read()
            return True
        return False

    def answer(self, status: int, *, is_over: bool = False) -> Answer:
        if self._read_bytes != self._seen_bytes <= MAX_BODY_BYTES:
            self._read()
        # One that cannot be read may be in another form.
        return self._answer(status, is_over=is_over, may_miss_its_end=self._seen_bytes > 0)

    def _read(self) -> None:
        if self._read_bytes:
            self._begin()
        self._read_bytes = self._seen_bytes
        if len(self._pieces) > 1:
            self._pieces = [b"".join(self._pieces)]
        data = self._pieces[0]
        if len(data) > MAX_STRUCTURE and _is_dense(data):
            return
        try:
            self._make_reader().read_body(data, self._sighting)
        except UNREADABLE:
            self._begin()


def _is_dense(data: bytes) -> bool:
    return len(data) > MAX_STRUCTURE and structure_of(data) > MAX_STRUCTURE


class InflatingObserver:
    """Inflates a copy of a compressed answer for another observer; in all else it is that one."""

    def __init__(self, inner: ResponseObserver, coding: str) -> None:
        self._inner = inner
        self._inflater: Inflater | None = Inflater(coding)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)

    def feed(self, chunk: bytes) -> bool:
        if self._inflater is None:
            return False
        has_news = False
        try:
            for piece in self._inflater.feed(chunk):
                has_news |= self._inner.feed(piece)
        except InflationError:
            self._inflater = None
        return has_news

    def answer(self, status: int, *, is_over: bool = False) -> Answer:
        return self._inner.answer(status, is_over=is_over and self._inflater is not None)
