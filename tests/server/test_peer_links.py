"""To whom requests are passed on in clear, and what becomes of a link that is over."""

import asyncio
from typing import Any

import pytest

from gateway.config.load import load_config
from gateway.server.peer_door import Passing
from gateway.server.peer_links import PeerLinks
from gateway.upstream.errors import ConnectFailed, UpstreamError
from gateway.upstream.moments import in_task
from gateway.upstream.replica import Replica
from tests.server.bench import Backend, answer, get

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
