"""However bytes are cut, the same requests come out; and so they do where heads are known again."""

import asyncio
import itertools
import socket

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gateway.config.http_limits import HttpLimits
from gateway.domain.ids import TenantId
from gateway.responses.observer import BodyObserver, StreamObserver
from gateway.server.auth.authenticator import Caller
from gateway.server.auth.client_keys import Tenant, hash_key
from gateway.server.http.body_limits import BufferBudget
from gateway.server.http.request_head import RequestHead
from gateway.server.http.request_parser import HttpRequest, RequestParser
from gateway.wire.endpoints import classify
from gateway.wire.headers import RawHeaders
from gateway.wire.known_head import KnownHeads
from tests.examples import examples
from tests.server.bench import DELTA, DONE, STREAM_HEAD, answer, chunk, eventually, post, sends

LIMITS = HttpLimits(max_header_bytes=2000, max_body_bytes=5000, max_buffered_bytes=1 << 20)

_names = st.text("ABCabc-_09", min_size=1, max_size=12).map(str.encode)
_values = st.text(st.characters(min_codepoint=0x21, max_codepoint=0x7E), max_size=30).map(str.encode)
_targets = st.text("abc/%25?=&", max_size=20).map(lambda text: b"/" + text.encode())
_OWN = {b"host", b"content-length", b"transfer-encoding", b"connection", b"upgrade", b"expect"}
_fields = st.lists(st.tuples(_names, _values).filter(lambda f: f[0].lower() not in _OWN), max_size=4)


@st.composite
def requests(draw: st.DrawFn) -> tuple[bytes, tuple]:
    """A valid request as bytes, and what should be read of it."""
    method = draw(st.sampled_from([b"GET", b"POST", b"DELETE"]))
    target, fields, body = draw(_targets), draw(_fields), draw(st.binary(max_size=300))
    if draw(st.booleans()):
        fields = [*fields, (b"Connection", b"Upgrade"), (b"Upgrade", b"h2c")]
    fields = [(b"Host", b"gw"), *fields]
    if draw(st.booleans()):
        sizes = draw(st.lists(st.integers(1, 50), max_size=5))
        framed, rest = b"", body
        for size in sizes:
            piece, rest = rest[:size], rest[size:]
            if piece:
                framed += b"%x;ext=1\r\n%s\r\n" % (len(piece), piece)
        if rest:
            framed += b"%X\r\n%s\r\n" % (len(rest), rest)
        framed += b"0\r\nTrailer: x\r\n\r\n"
        fields.append((b"Transfer-Encoding", b"chunked"))
    else:
        framed = body
        fields.append((b"Content-Length", b"%d" % len(body)))
    head = b"".join(b"%s: %s\r\n" % field for field in fields)
    kept = [field for field in fields if field[0] != b"Upgrade"]
    return b"%s %s HTTP/1.1\r\n%s\r\n%s" % (method, target, head, framed), (method, target, kept, body)


def let_in(method: str, target: bytes, headers: RawHeaders) -> Caller:
    """A door that is wide open: the parser alone is tested here."""
    return Caller(Tenant(TenantId("t"), False), "/", classify(method, "/"))


def cut(data: bytes, cuts: list[int]) -> list[bytes]:
    places = sorted({0, len(data), *(c % (len(data) + 1) for c in cuts)})
    return [data[a:b] for a, b in itertools.pairwise(places)]


class Parser(RequestParser):
    """With all requests that were read so far."""

    def __init__(self) -> None:
        super().__init__(LIMITS, BufferBudget(1 << 20), let_in)
        self.requests: list[HttpRequest] = []

    def feed(self, data: bytes) -> None:
        self.hold(data)
        while (request := self.next_request()) is not None or self.unread or self.whole:
            if request is not None:
                self.requests.append(request)

    def end(self) -> None:
        """Nothing of the budget may be left when all requests are given back."""
        self.close()
        self._budget.give_back(TenantId("t"), sum(len(r.body) for r in self.requests))
        assert self._budget.used == 0


def parse(pieces: list[bytes]) -> Parser:
    parser = Parser()
    for piece in pieces:
        parser.feed(piece)
    return parser


def read(parser: Parser) -> list[tuple]:
    return [
        (r.head.method.encode(), r.head.target, [f for f in r.head.headers if f[0] != b"Upgrade"], r.body)
        for r in parser.requests
    ]


def without_lengths(requests: list[tuple]) -> list[tuple]:
    return [
        (method, target, [f for f in headers if f[0].lower() != b"content-length"], body)
        for method, target, headers, body in requests
    ]


_cuts = st.lists(st.integers(0, 10_000), max_size=12)


@given(st.lists(requests(), min_size=1, max_size=4), _cuts)
@settings(deadline=None)
def test_any_split_gives_the_same_requests(wanted, cuts):
    parser = parse(cut(b"".join(data for data, _ in wanted), cuts))
    assert parser.refusal is None and not parser.is_mid_request
    # A head that comes again says what the first one said of its length; the body tells.
    assert without_lengths(read(parser)) == without_lengths([expected for _, expected in wanted])
    assert parser._budget.used == sum(len(r.body) for r in parser.requests)
    parser.end()


@given(requests())
@settings(deadline=None, max_examples=examples(30))
def test_byte_by_byte_is_a_split_too(wanted):
    data, expected = wanted
    assert read(parse([data[i : i + 1] for i in range(len(data))])) == [expected]


@given(
    st.lists(requests(), min_size=1, max_size=3),
    st.lists(st.tuples(st.integers(0, 2), st.booleans()), max_size=9),
    _cuts,
)
@settings(deadline=None)
def test_what_comes_again_is_read_as_it_was_the_first_time(wanted, order, cuts):
    """Known heads, some with a blank line behind them, one a read and cut anywhere; but for the length."""
    sequence = [(wanted[number % len(wanted)], b"\r\n" * is_blank) for number, is_blank in order]
    reads = [data + blank for (data, _), blank in sequence]
    for pieces in (reads, cut(b"".join(reads), cuts)):
        parser = parse(pieces)
        assert parser.refusal is None
        assert without_lengths(read(parser)) == without_lengths([expected for (_, expected), _ in sequence])
        assert parser._budget.used == sum(len(r.body) for r in parser.requests)


def test_behind_a_close_nothing_is_known_again():
    known = b"POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 1\r\n\r\nx"
    last = known.replace(b"Host: a", b"Host: a\r\nConnection: close")
    parser = parse([known, known, last[:20], last[20:], known])
    assert len(parser.requests) == 3 and parser.refusal is not None


def test_connections_of_one_address_share_heads_until_rights_change():
    judged: list[str] = []
    heads, data = KnownHeads[RequestHead](), b"POST / HTTP/1.1\r\nHost: a\r\nContent-Length: %d\r\n\r\n%s"

    def connect(peer: str, *, may_expire: bool = False) -> Parser:
        parser = Parser()
        parser.peer = peer
        tenant = Tenant(TenantId("t"), False, may_expire=may_expire)

        def authorize(*_: object) -> Caller:
            judged.append(peer)
            return Caller(tenant, "/", classify("POST", "/"))

        parser._authorize = authorize
        parser.heads = heads
        return parser

    first = connect("a")
    first.feed(data % (1, b"x"))
    for peer, body in (("a", b"xyz"), ("b", b""), ("a", b""), ("b", b"x")):
        parser = connect(peer)
        parser.feed(data % (len(body), body))
        assert [each.body for each in parser.requests] == [body]
    assert judged == ["a", "b"]
    first.forget_head()
    first.feed(data % (1, b"x"))
    for _ in range(2):
        connect("c", may_expire=True).feed(data % (1, b"x"))
    assert judged == ["a", "b", "a", "c", "c"], "a token or key with an end is proven on each connection"


@given(
    st.sampled_from([b"GET /", b"GET / HTTP/1.1\r\nX: ", b"GET / HTTP/1.1\r\nHost: a\r\n"]),
    st.integers(1, 700),
)
@settings(deadline=None, max_examples=examples(30))
def test_what_is_held_of_a_head_is_bounded(start, step):
    parser = parse([start])
    fed = 0
    while parser.refusal is None:
        parser.feed(b"y" * step)
        fed += step
        assert fed < 3000 + step
    assert not parser.requests and not parser._budget.used


TENANTS = [
    {"name": "alice", "key_hashes": [hash_key("key-a")]},
    {"name": "bob", "key_hashes": [hash_key("key-b")]},
]


async def test_a_key_is_judged_whenever_it_changes(start):
    bench = await start(tenants=TENANTS, limits={"drain_rejected_body_s": 0.1})
    client = await bench.connect()
    sessions = []
    for key in (b"key-a", b"key-a", b"key-b", b"key-b", b"key-a"):
        response = await client.ask(post(headers=b"Authorization: Bearer %s\r\nsession-id: s\r\n" % key))
        assert response.status == 200
        sessions.append(response.get(b"x-turnpike-session"))
    assert sessions[0] == sessions[1] == sessions[4] != sessions[2] == sessions[3]
    assert all(seen.get(b"authorization") is None for seen in bench.backend.seen)
    count = len(bench.backend.seen)
    assert (await client.ask(post(headers=b"Authorization: Bearer key-x\r\nsession-id: s\r\n"))).status == 401
    assert len(bench.backend.seen) == count


async def test_connections_know_nothing_of_each_other(start):
    bench = await start(tenants=TENANTS)
    first, second = await bench.connect(), await bench.connect()
    with_key = post(headers=b"Authorization: Bearer key-a\r\n")
    assert (await first.ask(with_key)).status == (await first.ask(with_key)).status == 200
    assert (await second.ask(post())).status == 401


async def apart(client, request, size=None):
    """As SDKs write it: first the head, then the body, or so much of it."""
    head, _, body = request.partition(b"\r\n\r\n")
    client.send(head + b"\r\n\r\n")
    await asyncio.sleep(0.02)
    client.send(body[:size])
    return await client.receive()


async def test_of_requests_in_one_go_none_is_taken_for_another(start):
    bench = await start(tenants=TENANTS)
    client = await bench.connect()
    keys = {key: post(headers=b"Authorization: Bearer %s\r\nsession-id: s\r\n" % key)
            for key in (b"key-a", b"key-b")}  # fmt: skip
    client.send(keys[b"key-a"] + keys[b"key-b"])
    sessions = [(await client.receive()).get(b"x-turnpike-session") for _ in range(2)]
    sessions += [(await client.ask(keys[each])).get(b"x-turnpike-session") for each in (b"key-a", b"key-b")]
    assert sessions[0] == sessions[2] != sessions[1] == sessions[3]


@pytest.mark.parametrize(
    ("limits", "status"),
    [({"max_body_bytes": 1000}, 413), ({"max_buffered_bytes": 1000}, 503), ({"body_stall_s": 0.1}, 408)],
)
async def test_the_limits_hold_for_bodies_that_come_apart(start, limits, status):
    bench = await start(limits={"drain_rejected_body_s": 0.1, **limits})
    client = await bench.connect()
    for _ in range(2):
        assert (await apart(client, post(path=b"/v1/messages"))).status == 200
    response = await apart(client, post(b'"%s"' % (b"x" * 2000), b"/v1/messages"), size=1500)
    assert response.status == status and b'"type":"error"' in response.body, "in the shape of its path"
    assert await client.rest() == (b"", "eof")


# --- and nobody waits for our books --------------------------------------------------------------


@pytest.mark.parametrize("kind", [BodyObserver, StreamObserver])
async def test_an_answer_is_on_its_way_before_it_is_looked_at(start, monkeypatch, kind):
    data = answer() if kind is BodyObserver else STREAM_HEAD + chunk(DELTA) + chunk(DONE) + b"0\r\n\r\n"
    bench = await start(script=sends(data))
    loop = asyncio.get_running_loop()
    arrived = []
    with socket.socket() as client:
        client.setblocking(False)
        await loop.sock_connect(client, ("127.0.0.1", bench.gateway.listener.port))
        feed = kind.feed

        def look(self, part):
            arrived.append(part.split(b"\n")[0] in client.recv(1 << 16, socket.MSG_PEEK))
            return feed(self, part)

        monkeypatch.setattr(kind, "feed", look)
        await loop.sock_sendall(client, post())
        await eventually(lambda: arrived)
    assert all(arrived)
