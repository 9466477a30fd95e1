"""Whose announcements count, who is asked, and to whom requests are passed on in clear."""

import asyncio
import contextlib
from collections.abc import AsyncIterator
from typing import Any

import pytest

from gateway.config.load import load_config
from gateway.domain.shares import Share
from gateway.server.cluster.peer_auth import Passing
from gateway.server.cluster.peer_client import PeerLinks
from gateway.server.cluster.peer_heartbeats import LASTS_S, DirectTalk, PeerHeartbeat
from gateway.upstream.errors import ConnectFailed, UpstreamError
from gateway.upstream.one_shot import in_task
from gateway.upstream.replica import Replica
from tests.server.bench import Backend, answer, get

SECRET, URL = b"s" * 32, "http://127.0.0.1:1"


class Gateways:
    """Two of one fleet, and one of another."""

    def __init__(self) -> None:
        self.now = 0.0
        self.one, self.other = self.made("one", SECRET), self.made("other", SECRET)
        self.stranger = self.made("one", b"t" * 32)

    def made(self, origin: str, secret: bytes) -> DirectTalk:
        passing, tree = Passing(secret), {"pools": [{"replicas": [{"url": "http://a"}]}]}
        links = PeerLinks(load_config(None, {}, tree), passing, None)
        return DirectTalk(origin, secret, lambda: self.now, links)


def told(number: int) -> PeerHeartbeat:
    return PeerHeartbeat(URL, False, False, Share(), number=number)


def test_an_announcement_counts_once_its_gateway_has_proved_itself_and_until_there_is_no_news():
    gateways = Gateways()
    one, other = gateways.one, gateways.other
    announced = [one.announce(told(number)) for number in range(4)]
    other.record_peer("one", announced[1])
    assert other.unproven() == {"one": URL} and not other.recent()
    other._proven["one"] = URL
    news = ((1, 0.9, 1), (1, LASTS_S, None), (0, LASTS_S, None), (2, 2.0, 2), (1, 3.0, None))
    for number, at_s, counts in news:
        gateways.now = at_s
        other.record_peer("one", announced[number])
        assert [each.number for each in other.recent().values()] == ([] if counts is None else [counts])
    gateways.now = 30.0
    assert not other.recent() and not other.unproven()
    other.record_peer("one", announced[3])
    assert not other.recent() and other.unproven(), "it has to prove itself anew"


def test_what_others_wrote_or_of_others_is_not_heard():
    gateways = Gateways()
    announced = gateways.one.announce(told(1))
    forged = gateways.stranger.announce(told(1))
    for origin, said in (("one", forged), ("third", announced), ("one", b""), ("one", announced[:-1])):
        gateways.other.record_peer(origin, said)
    gateways.one.record_peer("one", announced)
    assert not gateways.other.unproven() and not gateways.one.unproven()
    assert gateways.other.answer(b"no message", b"") == b""


async def test_who_stood_still_while_it_asked_has_heard_nothing_of_who_did_not_answer():
    gateways = Gateways()
    for stood_s, has_verdict in ((0.0, True), (2.0, False)):

        async def ask(*_: object, stood_s: float = stood_s) -> None:
            gateways.now += stood_s

        gateways.now += 1.0
        gateways.one._exchange_with = ask  # type: ignore[method-assign,assignment]
        assert await gateways.one.exchange({"other": URL}, b"") is has_verdict
    await gateways.one.close()


class Listener:
    """Answers everything with the same bytes, perhaps again and again."""

    def __init__(self, *answer: bytes) -> None:
        self._answer = answer
        self.got, self.sent = b"", 0

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.closing(writer), contextlib.suppress(OSError):
            self.got += await reader.read(1 << 16)
            for piece in self._answer:
                writer.write(piece)
                await writer.drain()
                self.sent += len(piece)

    @contextlib.asynccontextmanager
    async def listening(self, host: str = "127.0.0.1") -> AsyncIterator[str]:
        async with await asyncio.start_server(self.serve, host, 0) as server:
            yield f"http://{host}:{server.sockets[0].getsockname()[1]}"


@pytest.mark.parametrize("status", [301, 302, 303, 307, 308])
async def test_nobody_is_asked_where_a_redirect_leads(status):
    talk, internal = Gateways().one, Listener(b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n")
    async with internal.listening() as url:
        head = b"HTTP/1.1 %d Go\r\nLocation: %s/latest/meta-data\r\nContent-Length: 0\r\n\r\n"
        peer = Listener(head % (status, url.encode()))
        async with peer.listening() as asked:
            await talk.exchange({"other": asked}, b"")
            await asyncio.sleep(0.05)
    assert peer.got.startswith(b"POST /turnpike/peer") and not internal.got
    await talk.close()


async def test_of_an_answer_no_more_is_read_than_a_gateway_says():
    talk, piece = Gateways().one, b"x" * (1 << 20)
    peer = Listener(b"HTTP/1.1 200 OK\r\n\r\n", *[piece] * 64)
    async with peer.listening() as url:
        await talk.exchange({"other": url}, b"")
        await asyncio.sleep(0.05)
    assert peer.sent < 32 << 20
    await talk.close()


@pytest.mark.parametrize("host", ["127.0.0.1", "localhost"])
async def test_in_clear_nobody_is_asked_but_where_that_is_allowed(host, monkeypatch):
    talk, peer = Gateways().one, Listener(b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n")
    monkeypatch.setattr(talk._links, "is_allowed", lambda address: not address.startswith("127."))
    async with peer.listening() as url:
        await talk.exchange({"one": url.replace("127.0.0.1", host), "two": "https://127.0.0.1:1"}, b"")
    assert not peer.got
    await talk.close()


NAMED = {"peer_plaintext_networks": ["10.0.0.0/8", "fd00::/8"]}


@pytest.fixture
async def backend():
    backend = Backend()
    await backend.open()
    yield backend
    await backend.close()


@pytest.fixture
async def links():
    tree = {"pools": [{"replicas": [{"url": "http://a"}]}], "shared": NAMED}
    links = PeerLinks(load_config(None, {}, tree), Passing(b"s" * 32), None)
    yield links
    links.close()


async def ask(link: Replica) -> Any:
    return await in_task(link.exchange([get(b"/")], is_head_request=False, may_repeat=False))


async def test_in_clear_only_loopback_and_what_the_operator_named_is_reached(links):
    named = ["127.0.0.1", "::1", "10.9.9.9", "fd00::9"]
    assert all(map(links.is_allowed, named))
    assert not any(map(links.is_allowed, ["11.0.0.1", "192.168.0.1", "fe80::1%eth0", "2001::1"]))
    assert not links.connect("o", "https://127.0.0.1:1") and not links.connect("o", "ftp://x")


async def test_nothing_is_sent_where_a_name_leads_elsewhere(links, backend, monkeypatch):
    monkeypatch.setattr(links, "is_allowed", lambda address: address == "10.0.0.1")
    assert links.connect("o", f"http://localhost:{backend.port}")
    with pytest.raises(ConnectFailed, match="in clear"):
        await ask(links.get("o"))
    assert not backend.connections


@pytest.mark.parametrize("way", ["elsewhere", "gone"])
async def test_a_link_that_is_over_is_closed_once_its_last_answer_has_ended(links, backend, way):
    never = asyncio.Event()

    async def script(exchange: Any) -> None:
        await (never.wait() if len(backend.seen) > 1 else exchange.send(answer()))

    backend.script = script
    assert links.connect("o", backend.url)
    link = links.get("o")
    begun, unanswered = await ask(link), asyncio.ensure_future(ask(link))
    while len(backend.seen) < 2:
        await asyncio.sleep(0.01)
    if way == "gone":
        links.keep(())
    else:
        assert links.connect("o", f"http://127.0.0.1:{backend.port}")
    with pytest.raises(UpstreamError):
        await unanswered
    with pytest.raises(ConnectFailed):
        await ask(link)
    assert links.get("o") is not link and not begun.transport.is_closing()
    link.release(begun, reuse=True)
    assert begun.transport.is_closing()
    never.set()
