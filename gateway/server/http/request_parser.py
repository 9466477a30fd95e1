"""From bytes of one client connection to requests: HTTP/1.1 read strictly, within limits.

llhttp (through httptools) does the parsing, in its strict mode. On top of it this module closes the
gaps through which requests are smuggled, authenticates them, and bounds the memory that a client can take. A
body is collected whole and later framed anew for the backend, so no client's framing ever gets there;
neither do its trailer fields, which follow after the head was judged.

Requests are read one at a time: bytes behind a whole one stay unread until the next `next_request`, because a
request of 30 bytes takes two kilobytes once it is read.

Sans-I/O: `hold` takes bytes, `next_request` reads them; nothing here touches a socket or a clock.
"""

from collections import deque
from collections.abc import Callable
from typing import Final

import httptools
import msgspec

from gateway.config.http_limits import HttpLimits
from gateway.domain.decision import Refusal
from gateway.requests.facts import read_header_facts
from gateway.server.auth.authenticator import Caller
from gateway.server.http.body_limits import BufferBudget, take_room
from gateway.server.http.refused_request import RefusedRequest, malformed
from gateway.server.http.request_head import (
    RequestHead,
    check_head,
    headers_too_large,
    path_of,
)
from gateway.wire.grown_body import GrownBodies
from gateway.wire.headers import RawHeaders
from gateway.wire.known_head import KnownHead, KnownHeads, know_head


class HttpRequest(msgspec.Struct):
    head: RequestHead
    body: bytes
    """Empty once it is no longer needed."""
    before: GrownBodies | None = None
    """Bodies that it may begin with."""
    swells: bool = False
    """It is compressed, and inflates to more than is read."""


# Decides on method, target and headers whether a request may go on.
Authorize = Callable[[str, bytes, RawHeaders], Caller | Refusal]


class RequestParser:
    """Give it what arrives with `hold`; take requests with `next_request`.

    After a refusal it reads no further; the requests before it are whole and stay.
    """

    def __init__(self, limits: HttpLimits, budget: BufferBudget, authorize: Authorize) -> None:
        self._limits = limits
        self._budget = budget
        self._authorize = authorize
        self._caller: Caller
        self.unread = b""
        self._at = 0
        # Whole ones. More than one only behind a body in chunks, whose end is not known beforehand.
        self.whole: deque[HttpRequest] = deque()
        self.refusal: Refusal | None = None
        # The target of the refused request, as far as it had been read.
        self.refused_target = b""
        # Its method, if its head had been read.
        self.refused_method = ""
        self.refused_headers: RawHeaders = []
        # The client waits for `100 Continue` before it sends the body. Whoever sends it clears this.
        self.wants_continue = False
        # Of the body that is being read; None if it comes in chunks.
        self._length: int | None = 0
        # Fed since llhttp's last callback.
        self._unreported_bytes = 0
        # Of bodies, in this call of `next_request`.
        self._pieces = 0
        # The last head: an identical one is not parsed again.
        self._last: tuple[KnownHead, RequestHead] | None = None
        # Of other connections; None where there are none, or somebody's rights have changed since.
        self.heads: KnownHeads[RequestHead] | None = None
        # The client's address, without the port.
        self.peer = ""
        # As it came, while the body of that request comes; None if it came in pieces.
        self._head: bytes | None = None
        # Of the request whose body comes, if llhttp knows nothing of it.
        self._followed: RequestHead | None
        self._bodies = GrownBodies()
        self._parser = httptools.HttpRequestParser(self)
        self._reset()

    @property
    def is_mid_request(self) -> bool:
        return self.is_in_head or self.is_in_body

    @property
    def unread_bytes(self) -> int:
        return len(self.unread) - self._at

    @property
    def is_between(self) -> bool:
        return not (self.unread or self.is_in_head or self.is_in_body)

    def hold(self, data: bytes) -> bool:
        """Whether a request begins with it."""
        is_between = not (self.unread or self.is_in_head or self.is_in_body)
        if self.unread:
            data = self.unread[self._at :] + data
        self.unread, self._at = data, 0
        return is_between

    def next_request(self) -> HttpRequest | None:
        """Reads until a request is whole; None if all was read, or refused, or is too much for one call: then
        some of it is still `unread`. Never raises."""
        self._pieces = 0
        while not self.whole:
            if self.refusal is not None:
                self.unread, self._at = b"", 0
            if not self.unread or self._pieces > _MAX_PIECES:
                return None
            is_beginning = not (self._at or self._unreported_bytes or self.is_in_head or self.is_in_body)
            if is_beginning and self._last is None and self.heads is not None:
                self._last = self.heads.find(self.peer, self.unread)
            if is_beginning and self._last is not None and self._follow(self.unread, *self._last):
                continue
            data = self._cut()
            if is_beginning:
                self._head = bytes(data) if data[-4:] == b"\r\n\r\n" else None
            if self._followed is not None:
                self._collect(self._followed, data)
            else:
                self._read(data)
        return self.whole.popleft()

    def forget_head(self) -> None:
        self._last = self._head = self.heads = None  # nor is one remembered whose body still comes

    def _follow(self, data: bytes, known: KnownHead, head: RequestHead) -> bool:
        """Whether this begins with the last one's head, and may be read without llhttp. What follows behind
        its body may not, nor a body that is too large: llhttp's callbacks refuse it."""
        found = known.find(data)
        if found is None:
            return False
        start, length = found
        if length > self._limits.max_body_bytes or len(data) > start + length:
            return False
        self._followed = head
        self._caller, self._target, self._length = head.caller, head.target, length
        self.is_in_body = True
        self.unread = b""
        if len(data) > start or not length:
            self._collect(head, data[start:])
        return True

    def _collect(self, head: RequestHead, data: bytes | memoryview) -> None:
        try:
            if data:
                self.on_body(bytes(data))
        except RefusedRequest as error:
            self.refuse(error.refusal)
            return
        if self._body_bytes == self._length:
            self._add(head)

    def _add(self, head: RequestHead) -> None:
        body = self._body[0] if len(self._body) == 1 else b"".join(self._body)
        self._reset()  # what the body holds of the budget is the request's now
        self.whole.append(HttpRequest(head, bytes(body), self._bodies))  # which `bytes` are already

    def _cut(self) -> bytes | memoryview:
        data, start = self.unread, self._at
        if not self.is_in_body:
            end = data.find(b"\r\n\r\n", start) + 4
            if end < 4:
                end = len(data)
        elif self._length is not None:
            end = start + max(self._length - self._body_bytes, 1)
        else:
            end = start + _CHUNKED_BYTES
        if end < len(data):
            self._at = end
        else:
            self.unread, self._at = b"", 0  # an idle connection keeps nothing of its last read
        if self.is_in_body and end - start > _UNPACED_BELOW_BYTES:
            return memoryview(data)[start:end]  # large enough for a copy to cost more
        return data[start:end]

    def _read(self, data: bytes | memoryview) -> None:
        while data and self.refusal is None:
            self._unreported_bytes += len(data)
            try:
                self._parser.feed_data(data)
                break
            except httptools.HttpParserUpgrade as upgrade:
                if self.whole and self.whole[-1].head.is_websocket:
                    self.unread = bytes(data[upgrade.args[0] :]) + self.take_unread()
                    self._parser = httptools.HttpRequestParser(self)
                    return
                data = self._without_upgrade() + data[upgrade.args[0] :]
                self._parser = httptools.HttpRequestParser(self)
            except httptools.HttpParserCallbackError as error:
                cause = error.__context__
                if not isinstance(cause, RefusedRequest):
                    raise
                self.refuse(cause.refusal)
            except httptools.HttpParserError as error:
                self.refuse(malformed(str(error)).refusal)
        # llhttp keeps an unfinished field to itself, and skips over a chunk extension, for ever if need be.
        if self._unreported_bytes > self._limits.max_header_bytes and self.refusal is None:
            self.refuse(headers_too_large(self._limits).refusal)

    def take_unread(self) -> bytes:
        data, self.unread, self._at = self.unread[self._at :], b"", 0
        return data

    def refuse(self, refusal: Refusal) -> None:
        self.refusal, self.refused_target, self.refused_headers = refusal, self._target, self._headers
        if self._followed is not None:
            self.refused_method, self.refused_headers = self._followed.method, self._followed.headers
        elif self.is_in_body:
            self.refused_method = self._parser.get_method().decode("ascii")
        self._give_back_body()
        self._reset()

    def close(self) -> None:
        self._give_back_body()
        for request in self.whole:
            self._budget.give_back(request.head.caller.tenant.id, len(request.body))
        self.whole.clear()
        self.unread, self._at = b"", 0
        self._reset()
        # Both refer back to us. Without them a closed connection needs no garbage collector.
        del self._parser, self._authorize

    def _give_back_body(self) -> None:
        if self._body_bytes:
            self._budget.give_back(self._caller.tenant.id, self._body_bytes)

    def _without_upgrade(self) -> bytes:
        """The head just read, without its upgrade, to be read again.

        Upgrades may be ignored (RFC 9110 §7.8), but llhttp takes what follows the head for the other
        protocol: a body would become a request of its own.
        """
        fields = b"".join(b"%s: %s\r\n" % field for field in self._headers if field[0].lower() != b"upgrade")
        version = self._parser.get_http_version().encode("ascii")
        return b"%s %s HTTP/%s\r\n%s\r\n" % (self._parser.get_method(), self._target, version, fields)

    def _reset(self) -> None:
        self._target = b""
        self._headers: RawHeaders = []
        self._header_bytes = 0
        self._body: list[bytes | bytearray] = []
        self._body_bytes = 0
        self.is_in_head = self.is_in_body = False
        self._followed = None

    # --- llhttp's callbacks ----------------------------------------------------------------------

    def on_message_begin(self) -> None:
        self._reset()
        self.is_in_head = True

    def on_url(self, part: bytes) -> None:
        self._unreported_bytes = 0
        self._target += part
        self._header_bytes += len(part)
        if self._header_bytes > self._limits.max_header_bytes:
            raise headers_too_large(self._limits)

    def on_header(self, name: bytes, value: bytes) -> None:
        self._unreported_bytes = 0
        self._header_bytes += len(name) + len(value) + _FIELD_BYTES
        if self._header_bytes > self._limits.max_header_bytes:
            raise headers_too_large(self._limits)
        if self.is_in_head:
            self._headers.append((name, value))

    def on_headers_complete(self) -> None:
        self._unreported_bytes = 0
        self.is_in_head, self.is_in_body = False, True
        method, version = self._parser.get_method(), self._parser.get_http_version()
        if not self._target.startswith(b"/"):
            self._target = path_of(self._target, method)
        self._length = check_head(method, self._target, self._headers, version, self._limits)
        judged = self._authorize(method.decode("ascii"), self._target, self._headers)
        if isinstance(judged, Refusal):
            raise RefusedRequest(judged)
        self._caller = judged
        for name, value in self._headers if version == "1.1" else ():
            if len(name) == 6 and name.lower() == b"expect" and value.lower() == b"100-continue":
                self.wants_continue = True

    def on_body(self, part: bytes) -> None:
        self._unreported_bytes = 0
        self._pieces += 1
        size = len(part)
        whole = self._body_bytes + size
        take_room(self._budget, self._limits, self._caller.tenant.id, size, whole=whole)
        self._body_bytes = whole
        body = self._body
        if size >= _UNPACED_BELOW_BYTES:
            body.append(part)
        elif body and type(body[-1]) is bytearray:
            body[-1] += part
        else:
            body.append(bytearray(part))

    def on_message_complete(self) -> None:
        self._unreported_bytes = 0
        is_websocket = self._parser.should_upgrade()
        if is_websocket and _WEBSOCKET not in (
            (name.lower(), value.lower()) for name, value in self._headers
        ):
            return  # it is read again without
        head = RequestHead(
            method=self._parser.get_method().decode("ascii"),
            target=self._target,
            headers=self._headers,
            is_http_1_0=self._parser.get_http_version() == "1.0",
            keep_alive=self._parser.should_keep_alive() and not is_websocket,
            caller=self._caller,
            facts=read_header_facts(self._headers),
            is_websocket=is_websocket,
        )
        self.wants_continue = False
        known, came, self._head = None, self._head, None
        if head.keep_alive and came is not None and self._length is not None:
            known = know_head(came, self._body_bytes)
        self._last = (known, head) if known is not None else None
        if known is not None and self.heads is not None and not head.caller.tenant.may_expire:
            self.heads.add(self.peer, known, head)
        self._add(head)


_WEBSOCKET: Final = (b"upgrade", b"websocket")
# What a header field counts beyond its name and value, for what it takes in memory; as in RFC 9113,
# §10.5.1.
_FIELD_BYTES: Final = 32
# So much of a body in chunks is read at a time.
_CHUNKED_BYTES: Final = 4096
# Chunks of a body that are read at once, or few more: half a millisecond, however small they are.
_MAX_PIECES: Final = 1000
# Smaller parts of a body are put together at once: each takes 40 bytes more than it holds.
_UNPACED_BELOW_BYTES: Final = 4096
