"""From bytes of one client connection to requests: HTTP/1.1 read strictly, within limits.

llhttp (through httptools) does the parsing, in its strict mode. On top of it this module closes the
gaps through which requests are smuggled, asks the door, and bounds what a client can make us hold. A
body is collected whole and later framed anew for the backend, so no framing of a client's ever gets there;
neither do its trailer fields, which came after the head had been judged.

Sans-I/O: `feed` takes bytes and appends to `requests`; nothing here touches a socket or a clock.
"""

from collections import deque
from collections.abc import Callable

import httptools
import msgspec

from gateway.config.http_limits import HttpLimits
from gateway.domain.decision import Refusal, RefusalReason
from gateway.server.door import Visitor
from gateway.server.request_head import (
    RefusedRequest,
    RequestHead,
    check_head,
    headers_too_large,
    malformed,
    too_large,
)
from gateway.wire.facts import read_header_facts
from gateway.wire.headers import RawHeaders
from gateway.wire.known_head import KnownHead, know_message


class HttpRequest(msgspec.Struct):
    head: RequestHead
    body: bytes


Judge = Callable[[str, bytes, RawHeaders], Visitor | Refusal]
"""Decides on method, target and headers whether a request may go on."""


class BufferBudget:
    """The bytes that all requests together may hold."""

    def __init__(self, max_bytes: int) -> None:
        self._max = max_bytes
        self.used = 0

    def take(self, size: int) -> bool:
        """False, and nothing taken, if there is no room."""
        if self.used + size > self._max:
            return False
        self.used += size
        return True

    def give_back(self, size: int) -> None:
        self.used -= size


class RequestParser:
    """Feed it what arrives; take requests from `requests`.

    After a refusal it reads no further; the requests before it are whole and stay.
    """

    def __init__(self, limits: HttpLimits, budget: BufferBudget, judge: Judge) -> None:
        self._limits = limits
        self._budget = budget
        self._judge = judge
        self._visitor: Visitor
        self.requests: deque[HttpRequest] = deque()
        self.refusal: Refusal | None = None
        self.refused_target = b""
        """The target of the refused request, as far as it had been read."""
        self.refused_method = ""
        """Its method, if its head had been read."""
        self.wants_continue = False
        """The client waits for `100 Continue` before it sends the body. Whoever sends it clears this."""
        self.is_in_head = False
        self.is_in_body = False
        self._unreported_bytes = 0
        """Fed since llhttp last told us of anything."""
        self._last: tuple[KnownHead, RequestHead] | None = None
        """To know the next request by."""
        self._parser = httptools.HttpRequestParser(self)
        self._reset()

    @property
    def is_mid_request(self) -> bool:
        return self.is_in_head or self.is_in_body

    def feed(self, data: bytes) -> None:
        """Never raises: what cannot be accepted sets `refusal`."""
        is_between = not (self.is_in_head or self.is_in_body or self._unreported_bytes)
        if is_between and self._last is not None:
            body = self._last[0].body_of(data)
            if body is not None and self._may_hold(len(body)):
                self.requests.append(HttpRequest(self._last[1], body))
                return
        before = len(self.requests)
        self._read(data)
        if is_between and not self.is_mid_request and len(self.requests) == before + 1:
            request = self.requests[-1]
            known = know_message(data, len(request.body))
            self._last = (known, request.head) if known is not None and request.head.keep_alive else None

    def _may_hold(self, size: int) -> bool:
        """Takes it from the budget. If not, llhttp's callbacks say why."""
        return self.refusal is None and size <= self._limits.max_body_bytes and self._budget.take(size)

    def _read(self, data: bytes) -> None:
        while data and self.refusal is None:
            self._unreported_bytes += len(data)
            try:
                self._parser.feed_data(data)
                break
            except httptools.HttpParserUpgrade as upgrade:
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

    def refuse(self, refusal: Refusal) -> None:
        """Gives up the unfinished request."""
        self.refusal, self.refused_target = refusal, self._target
        if self.is_in_body:
            self.refused_method = self._parser.get_method().decode("ascii")
        self._budget.give_back(self._body_bytes)
        self._reset()

    def discard(self) -> None:
        """Gives back what unfinished and untaken requests hold."""
        self._budget.give_back(self._body_bytes + sum(len(r.body) for r in self.requests))
        self.requests.clear()
        self._reset()

    def _without_upgrade(self) -> bytes:
        """The head just read, to be read again as if no upgrade had been asked for.

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
        self._body: list[bytes] = []
        self._body_bytes = 0
        self.is_in_head = self.is_in_body = False

    # --- llhttp's callbacks ----------------------------------------------------------------------

    def on_message_begin(self) -> None:
        self._reset()
        self.is_in_head = True

    def on_url(self, part: bytes) -> None:
        self._unreported_bytes = 0
        self._target += part
        self._count_header_bytes(len(part))

    def on_header(self, name: bytes, value: bytes) -> None:
        self._unreported_bytes = 0
        self._count_header_bytes(len(name) + len(value) + 4)
        if self.is_in_head:
            self._headers.append((name, value))

    def on_headers_complete(self) -> None:
        self._unreported_bytes = 0
        self.is_in_head, self.is_in_body = False, True
        method, version = self._parser.get_method(), self._parser.get_http_version()
        check_head(method, self._target, self._headers, version, self._limits)
        judged = self._judge(method.decode("ascii"), self._target, self._headers)
        if isinstance(judged, Refusal):
            raise RefusedRequest(judged)
        self._visitor = judged
        if version == "1.1":
            self.wants_continue = any(
                len(name) == 6 and name.lower() == b"expect" and value.lower() == b"100-continue"
                for name, value in self._headers
            )

    def on_body(self, part: bytes) -> None:
        self._unreported_bytes = 0
        size = len(part)
        if self._body_bytes + size > self._limits.max_body_bytes:
            raise too_large(self._limits)
        if not self._budget.take(size):
            message = "The gateway holds as many request bodies as it can."
            raise RefusedRequest(Refusal(reason=RefusalReason.MEMORY_FULL, message=message, retry_after_s=5))
        self._body_bytes += size
        self._body.append(part)

    def on_message_complete(self) -> None:
        self._unreported_bytes = 0
        if self._parser.should_upgrade():
            return  # it is read again without
        body = self._body[0] if len(self._body) == 1 else b"".join(self._body)
        head = RequestHead(
            method=self._parser.get_method().decode("ascii"),
            target=self._target,
            headers=self._headers,
            is_http_1_0=self._parser.get_http_version() == "1.0",
            keep_alive=self._parser.should_keep_alive(),
            visitor=self._visitor,
            facts=read_header_facts(self._headers),
        )
        self._reset()  # what the body holds of the budget is the request's now
        self.wants_continue = False
        if not head.keep_alive:
            self._last = None  # nothing that follows is a request
        self.requests.append(HttpRequest(head, body))

    def _count_header_bytes(self, size: int) -> None:
        self._header_bytes += size
        if self._header_bytes > self._limits.max_header_bytes:
            raise headers_too_large(self._limits)
