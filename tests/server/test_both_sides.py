"""A client's connection, its relay and the replica's connection, driven from both sides at any moment.

The real parts over transports in memory: what a client sends, and a replica answers, is cut and mixed by
Hypothesis. After every step the bounds hold; at the end every byte came in order and nothing is left.
"""

import asyncio
import random
import re
from collections import deque
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any, cast

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from gateway.config.http_limits import HttpLimits
from gateway.domain.ids import RequestId, TenantId
from gateway.responses.observer import observe
from gateway.server.auth.authenticator import Caller
from gateway.server.auth.client_keys import Tenant
from gateway.server.http.body_limits import BufferBudget
from gateway.server.http.client_connection import ClientConnection
from gateway.server.http.connection_states import State
from gateway.server.http.request_parser import HttpRequest
from gateway.server.http.response_writer import Framing
from gateway.server.proxy.byte_pump import BytePump, framing_of, pass_whole
from gateway.upstream.connection import UpstreamConnection
from gateway.upstream.errors import AnswerMissing
from gateway.wire.endpoints import classify
from gateway.wire.known_head import KnownHeads
from tests.examples import examples

HIGH, LOW = 1000, 100
READ = 4000
MAX_UNREAD = 64 << 10


_pieces = st.sampled_from([1, 60, 700, READ, READ])


class Wire:
    """A transport in memory: what is written waits in a buffer until the other side reads it."""

    def __init__(self, protocol: Any, call_soon: Callable[[Callable[[], None]], None]) -> None:
        self.protocol, self._call_soon = protocol, call_soon
        self.unread = b""
        """Written, and not yet read by the other side."""
        self.reading = True
        self.closing = self.ended = self.was_aborted = self._is_paused = False
        self.most = 0
        protocol.connection_made(self)

    def get_extra_info(self, name: str) -> Any:
        return ("10.0.0.1", 1) if name == "peername" else None

    def write(self, data: bytes) -> None:
        assert not self.ended
        if self.closing:
            return
        self.unread += bytes(data)
        self.most = max(self.most, len(self.unread))
        if len(self.unread) > HIGH and not self._is_paused:
            self._is_paused = True
            self.protocol.pause_writing()

    def writelines(self, parts: list[bytes]) -> None:
        self.write(b"".join(parts))

    def take(self, size: int) -> bytes:
        data, self.unread = self.unread[:size], self.unread[size:]
        if self._is_paused and len(self.unread) <= LOW:
            self._is_paused = False
            self.protocol.resume_writing()
        if self.closing and not self.unread:
            self._lose(None)
        return data

    def arrives(self, data: bytes) -> None:
        if not self.ended:
            assert self.reading
            self.protocol.data_received(data)

    def get_write_buffer_size(self) -> int:
        return len(self.unread)

    def can_write_eof(self) -> bool:
        return False

    def is_closing(self) -> bool:
        return self.closing

    def is_reading(self) -> bool:
        return self.reading

    def pause_reading(self) -> None:
        self.reading = False

    def resume_reading(self) -> None:
        self.reading = True

    def close(self) -> None:
        if not self.closing:
            self.closing, self.reading = True, False
            if not self.unread:
                self._lose(None)

    def abort(self) -> None:
        if not self.was_aborted:
            self.closing, self.reading, self.was_aborted = True, False, True
            self._lose(None)

    def leaves(self) -> None:
        self._lose(ConnectionResetError())

    def ends(self) -> None:
        if not self.ended and not self.closing and not self.protocol.eof_received():
            self.close()

    def _lose(self, error: Exception | None) -> None:
        self.closing, self.reading = True, False

        def lose() -> None:
            if not self.ended:
                self.ended = True
                self.protocol.connection_lost(error)

        self._call_soon(lose)


class Books:
    """In place of a ticket: how each request ended."""

    request = RequestId("r")

    def __init__(self) -> None:
        self.ends: list[str] = []
        self.seen: Any = None

    def send(self, event: Any) -> None: ...

    def hand_over(self, seen: Any, number: int) -> None: ...

    def answered_at_once(self, answer: Any, *, has_first_token: bool) -> None:
        self.ends.append("finished")

    def finished(self, answer: Any) -> None:
        self.ends.append("finished")

    def cut(self, answer: Any, why: str) -> None:
        self.ends.append("cut")


class BothSides(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.soon: deque[Callable[[], None]] = deque()
        self.now = 0.0
        tenant = Tenant(TenantId("t"), False)
        self.listener: Any = SimpleNamespace(
            counted=lambda *_, **__: None,
            limits=HttpLimits(),
            heads=KnownHeads(),
            budget=BufferBudget(1 << 30),
            now=lambda: self.now,
            is_draining=False,
            handler=self.handle,
            connected=lambda connection: True,
            disconnected=lambda connection: None,
            authenticator=SimpleNamespace(authorize=lambda *_: Caller(tenant, "/", classify("POST", "/"))),
        )
        self.client = ClientConnection(cast(Any, self.listener))
        self.wire = Wire(self.client, self.soon.append)
        self.to_send = b""
        self.sent_bodies: list[bytes] = []
        self.received = b""
        self.begun: list[Books] = []
        self.gone: list[Books] = []
        self.upstream: tuple[UpstreamConnection, Wire] | None = None
        self.answers: list[bytes] = []
        """Bodies of responses, as far as the replica has sent them."""
        self.told: list[bytes] = []
        """What each client got before the response's own body."""
        self.to_answer = b""
        self.is_client_gone = False
        self.is_serving = False
        self.random = random.Random(1)

    # --- in place of the handlers and the pool ----------------------------------------------------

    async def handle(self, client: ClientConnection, request: HttpRequest) -> None:
        assert not self.is_serving, "two requests of one connection at once"
        assert not client.is_paused, "a request was begun though the client does not read"
        assert request.body == self.sent_bodies[len(self.begun)]
        self.is_serving = True
        books = Books()
        self.begun.append(books)
        try:
            await self.exchange(client, request, books)
        finally:
            self.is_serving = False
            if not books.ends:
                books.ends.append("left")
            books.seen = None

    async def exchange(self, client: ClientConnection, request: HttpRequest, books: Books) -> None:
        upstream, wire = self.connect()
        is_reusable = False
        try:
            upstream.send([b"POST / HTTP/1.1\r\n\r\n"], is_head_request=False)
            wire.take(1 << 20)
            is_held = self.random.random() < 0.3
            self.told.append(b"w" * 1500 if is_held else b"")
            self.answers.append(self.told[-1])
            if is_held:  # it is told to wait; it may not read even that
                client.start_response(b"HTTP/1.1 200 OK\r\nContent-Type: text/plain\r\n", Framing.CHUNKED)
                client.write([self.told[-1]])
            try:
                await upstream.head_came
            except AnswerMissing:
                books.ends.append("missing")
                client.abort()
                return
            client.let_go_of_body()
            head, ticket = upstream.head, cast(Any, books)
            assert head is not None
            if not is_held:
                client.start_response(head.start, framing_of(head, request.head))
            endpoint = request.head.caller.endpoint
            observer = observe(endpoint.protocol, endpoint.work, head.content_type, None)
            whole = upstream.take_complete_body()
            if whole is not None:
                await pass_whole(client.write, whole, head, ticket, observer)
                is_reusable = True
            else:
                relay = BytePump(client, upstream, head, ticket, observer, client.write)
                is_reusable = await relay.run()
        finally:
            if not (is_reusable and upstream.is_reusable):
                upstream.abort()
                self.upstream = None

    def connect(self) -> tuple[UpstreamConnection, Wire]:
        if self.upstream is None or not self.upstream[0].is_reusable:
            running = asyncio.events._get_running_loop()
            asyncio.events._set_running_loop(cast(Any, SimpleNamespace(time=lambda: self.now)))
            upstream = UpstreamConnection()
            asyncio.events._set_running_loop(running)
            self.upstream = upstream, Wire(upstream, self.soon.append)
        self.to_answer = b""
        return self.upstream

    def turn(self) -> None:
        while self.soon:
            self.soon.popleft()()

    # --- the client -------------------------------------------------------------------------------

    @precondition(lambda self: not self.is_client_gone and len(self.sent_bodies) < 40)
    @rule(sizes=st.lists(st.sampled_from([0, 5, 3000]), min_size=1, max_size=5), is_chunked=st.booleans())
    def asks(self, sizes: list[int], is_chunked: bool) -> None:
        for size in sizes:
            body = self.random.randbytes(size)
            self.sent_bodies.append(body)
            head = b"POST / HTTP/1.1\r\nHost: a\r\n"
            if is_chunked:
                parts = [body[i : i + 700] for i in range(0, size, 700)]
                framed = b"".join(b"%x\r\n%s\r\n" % (len(part), part) for part in parts)
                self.to_send += b"%sTransfer-Encoding: chunked\r\n\r\n%s0\r\n\r\n" % (head, framed)
            else:
                self.to_send += b"%sContent-Length: %d\r\n\r\n%s" % (head, size, body)

    @precondition(lambda self: self.to_send and self.wire.reading)
    @rule(size=_pieces)
    def sends(self, size: int) -> None:
        data, self.to_send = self.to_send[:size], self.to_send[size:]
        self.wire.arrives(data)
        self.turn()

    @rule(size=_pieces)
    def reads(self, size: int) -> None:
        self.received += self.wire.take(size)
        self.turn()

    @precondition(lambda self: not self.is_client_gone)
    @rule(how=st.sampled_from(["leaves", "ends"]))
    def goes(self, how: str) -> None:
        if self.random.random() < 0.05:
            self.is_client_gone = True
            getattr(self.wire, how)()
            self.turn()

    # --- the replica ------------------------------------------------------------------------------

    def is_asked(self) -> bool:
        return self.is_serving and self.upstream is not None and self.upstream[1].reading

    @precondition(lambda self: self.is_asked() and not self.to_answer)
    @rule(sizes=st.lists(st.sampled_from([1, 900, 3000]), max_size=6), is_whole=st.booleans())
    def prepares(self, sizes: list[int], is_whole: bool) -> None:
        assert self.upstream is not None
        if self.upstream[0].head is not None:
            return
        parts = [self.random.randbytes(size) for size in sizes]
        body = b"".join(parts)
        self.answers[-1] = self.told[-1] + body
        start = b"HTTP/1.1 200 OK\r\nContent-Type: text/plain\r\n"
        if is_whole:
            self.to_answer = b"%sContent-Length: %d\r\n\r\n%s" % (start, len(body), body)
        else:
            framed = b"".join(b"%x\r\n%s\r\n" % (len(part), part) for part in parts)
            self.to_answer = b"%sTransfer-Encoding: chunked\r\n\r\n%s0\r\n\r\n" % (start, framed)
        interim = self.random.choice((b"", b"HTTP/1.1 100 Continue\r\n\r\n"))
        nobodys = self.random.choice((b"", b"", b"x", b"HTTP/1.1 200 OK\r\nContent-Length: 1\r\n\r\ny"))
        self.to_answer = interim + self.to_answer + nobodys

    @precondition(lambda self: self.is_asked() and self.to_answer)
    @rule(size=_pieces)
    def answers_a_part(self, size: int) -> None:
        assert self.upstream is not None
        data, self.to_answer = self.to_answer[:size], self.to_answer[size:]
        self.upstream[1].arrives(data)
        self.turn()

    @precondition(lambda self: self.is_serving and self.upstream is not None)
    @rule()
    def breaks(self) -> None:
        if self.upstream is not None and self.random.random() < 0.05:
            self.upstream[1].leaves()
            self.turn()

    @precondition(lambda self: self.is_serving and self.upstream is not None)
    @rule()
    def stalls(self) -> None:
        if self.upstream is not None and self.random.random() < 0.05:
            self.upstream[0].give_up_on_rest() if self.upstream[0].head else None
            self.turn()

    # --- what always holds ------------------------------------------------------------------------

    @invariant()
    def what_is_held_is_bounded(self) -> None:
        assert self.wire.most <= HIGH + 2 * READ + 1000, "the client's buffer"
        assert self.client.parser.unread_bytes <= MAX_UNREAD + READ
        assert len(self.client.parser.whole) <= 1 + READ // 40

    @invariant()
    def the_replica_is_read_just_while_the_client_reads(self) -> None:
        if self.client.state is not State.ANSWERING or self.upstream is None:
            return
        if self.upstream[0].head is not None:
            assert self.upstream[1].reading is not self.client.is_paused or self.upstream[1].closing

    @invariant()
    def an_idle_replica_connection_is_read(self) -> None:
        if not self.is_serving and self.upstream is not None and self.upstream[0].is_reusable:
            assert self.upstream[1].reading, "the next request on it would get no answer"

    @invariant()
    def every_request_ends_once(self) -> None:
        for books in self.begun[: -1 if self.is_serving else None]:
            assert len(books.ends) == 1, books.ends

    @invariant()
    def bytes_come_in_order(self) -> None:
        bodies = responses(self.received)
        for got, sent in zip(bodies, self.answers, strict=False):
            assert sent.startswith(got)
        assert all(got == sent for got, sent in zip(bodies[:-1], self.answers, strict=False))

    def teardown(self) -> None:
        if not self.is_client_gone:
            self.wire.leaves()
        self.received += self.wire.take(len(self.wire.unread))  # who only sends nothing more reads on
        self.turn()
        assert self.client.state is State.CLOSED and not self.is_serving
        assert self.listener.budget.used == 0
        assert all(len(books.ends) == 1 for books in self.begun)
        if self.upstream is not None:
            self.upstream[0].abort()
        self.turn()


_HEAD = re.compile(rb"HTTP/1\.1 200 OK\r\nContent-Type: text/plain\r\n([^\r]*)\r\n\r\n")


def responses(data: bytes) -> list[bytes]:
    """The bodies in what a client received; the last may be unfinished."""
    bodies: list[bytes] = []
    while (head := _HEAD.match(data)) is not None:
        data = data[head.end() :]
        name, _, value = head[1].partition(b": ")
        if name == b"Content-Length":
            body, data = data[: int(value)], data[int(value) :]
        else:
            body = b""
            while (line := data.partition(b"\r\n"))[1]:
                size = int(line[0], 16)
                body += line[2][:size]
                data = line[2][size + 2 :]
                if not size:
                    break
        bodies.append(body)
    return bodies


BothSides.TestCase.settings = settings(
    deadline=None,
    max_examples=examples(60),
    stateful_step_count=80,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.filter_too_much],
)
TestBothSides = BothSides.TestCase
