"""The access log: a line of JSON for each request, at its end.

Of the client's data a line contains the names of its product and of a model; no address, no key.

Theory of operation. With a log, clients' connections are `LoggedConnection`s, which count bytes and make the
line. A request forwarded to another gateway has its line there. A thread writes the lines.
"""

import asyncio
import contextlib
import io
import os
import sys
from collections.abc import Callable
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, Final, cast

import msgspec

from gateway.config.telemetry import StreamFileConfig
from gateway.core import events as ev
from gateway.domain.decision import Refusal, RefusalReason
from gateway.domain.ids import shown_tenant
from gateway.domain.request import Usage
from gateway.errors import http_status
from gateway.requests.facts import read_header_facts
from gateway.server.auth.authenticator import Caller
from gateway.server.http.client_connection import ClientConnection
from gateway.server.http.connection_states import State
from gateway.server.http.request_parser import HttpRequest
from gateway.telemetry.jsonl import StreamFile
from gateway.telemetry.usage import outcome_of

if TYPE_CHECKING:
    from gateway.server.http.listener import Listener

_STDOUT: Final = 1
_MAX_PENDING: Final = 10_000
_NO_USAGE: Final = Usage()


class AccessLog(StreamFile):
    """A file that others may move or shorten; or `-`, standard output."""

    _name = "access_log"

    def __init__(self, path: str, clock: Callable[[], float]) -> None:
        """Raises OSError if it cannot be opened."""
        self.clock = clock
        self._is_stdout = path == "-"
        super().__init__(StreamFileConfig(path=path, max_bytes=sys.maxsize, max_pending=_MAX_PENDING))

    def _open(self, *, is_new: bool = False) -> None:
        if self._is_stdout:
            self._file, self._size = io.FileIO(os.dup(_STDOUT), "wb"), 0
        else:
            super()._open(is_new=is_new)

    def _write(self, lines: bytes) -> None:
        if self._is_stdout:  # which others may write to: a short line goes as a whole
            for line in lines.splitlines(keepends=True):
                super()._write(line)
            return
        try:
            self._follow()
        except OSError as error:  # it goes on where it is
            self._complain(error)
        super()._write(lines)

    def _follow(self) -> None:
        file = self._file
        with contextlib.suppress(FileNotFoundError):
            if os.path.samestat(self._path.stat(), os.fstat(file.fileno())):
                return
        self._open()
        file.close()


class LoggedConnection(ClientConnection):
    def __init__(self, listener: "Listener", log: AccessLog) -> None:
        super().__init__(listener)
        self._log, self._bytes_in = log, 0
        self._sent: _Counting

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._sent = _Counting(cast(asyncio.Transport, transport))
        super().connection_made(cast(asyncio.Transport, self._sent))

    def data_received(self, data: bytes) -> None:
        self._bytes_in += len(data)
        super().data_received(data)

    def _refuse_and_linger(self, refusal: Refusal) -> None:
        super()._refuse_and_linger(refusal)
        parser, tenant, endpoint = self.parser, None, ""
        method, target, headers = parser.refused_method, parser.refused_target, parser.refused_headers
        if method:  # else the head had not been read
            endpoint = self._listener.authenticator.endpoint(method, target).name
            if refusal.reason is not RefusalReason.UNAUTHENTICATED:  # it may not have been authenticated yet
                caller = self._authorize(method, target, headers)
                tenant = caller.tenant.id if isinstance(caller, Caller) else None
        client = read_header_facts(headers).client_name
        self._add(http_status(refusal.reason), method, endpoint, tenant, client)

    def _count(self, request: HttpRequest) -> None:
        super()._count(request)
        head, caller = request.head, request.head.caller
        if self.is_logged or self.ticket is not None or self.refused is not None:
            name, client = caller.endpoint.name, head.facts.client_name
            self._add(self.status, head.method, name, caller.tenant.id, client)
        self._bytes_in = self._sent.size = 0

    def _add(self, status: int, method: str, endpoint: str, tenant: str | None, client: str) -> None:
        ticket, reason, usage, live, known = self.ticket, self.refused, _NO_USAGE, None, None
        if ticket is not None:
            live, known = ticket.live, ticket.live or ticket.refused
            if ticket.refused is not None:
                reason = reason or ticket.refused.refusal.reason  # perhaps behind keep-alives
            if ticket.ended is not None and ticket.ended.answer is not None:
                usage = ticket.ended.answer.usage
        line = {
            "time": datetime.fromtimestamp(self._log.clock(), UTC),
            "turn": ticket and ticket.request,
            "tenant": tenant and shown_tenant(tenant),
            "client": client,
            "method": method,
            "endpoint": endpoint,
            "model": live.runs_on if live else ticket and ticket.facts.model,
            "session": known and known.session and known.session.session,
            "replica": live.tried[-1] if live and live.tried else None,
            "status": status,
            "outcome": "refused" if reason else self._outcome(status),
            "reason": reason,
            "waited_ms": known and _ms(known.waited_s),
            "ttft_ms": _ms(live.first_token_s - live.arrived_s) if live and live.saw_first_token else None,
            "duration_ms": _ms(self._listener.now() - self._first_byte),
            "prompt_tokens": usage.prompt_tokens,
            "cached_tokens": usage.cached_tokens,
            "output_tokens": usage.output_tokens,
            "bytes_in": self._bytes_in,
            "bytes_out": self._sent.size,
            "is_streamed": ticket is not None and ticket.facts.stream,
        }
        self._log.extend(msgspec.json.encode(line) + b"\n", 1)

    def _outcome(self, status: int) -> str:
        ended = self.ticket.ended if self.ticket is not None else None
        is_drained = self._listener.is_closed
        if self.state in (State.ANSWERING, State.CLOSING):
            return "drained" if is_drained else "cut"
        if isinstance(ended, ev.ResponseFinished | ev.AnsweredAtOnce):
            return outcome_of("finished", ended.answer.status, ended.answer.failure)
        if self.state is State.CLOSED:
            return "drained" if is_drained else "client_left"
        return outcome_of("finished", status, "")


def _ms(seconds: float) -> float:
    return round(seconds * 1e3, 3)


class _Counting:
    """A transport that counts what is written."""

    def __init__(self, transport: asyncio.Transport) -> None:
        self._transport, self._write, self.size = transport, transport.write, 0

    def write(self, data: bytes) -> None:
        self.size += len(data)
        self._write(data)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._transport, name)
