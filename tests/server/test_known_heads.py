"""Requests that begin like the last one on their connection are not parsed again; nobody can tell."""

import asyncio
import socket

import pytest

from gateway.server.tenants import hash_key
from gateway.wire.observer import BodyObserver, StreamObserver
from tests.server.bench import (
    DELTA,
    DONE,
    STREAM_HEAD,
    answer,
    chunk,
    eventually,
    post,
    sends,
)

TENANTS = [
    {"name": "alice", "key_hashes": [hash_key("key-a")]},
    {"name": "bob", "key_hashes": [hash_key("key-b")]},
]


async def test_a_key_is_judged_whenever_it_changes(start):
    bench = await start(tenants=TENANTS, limits={"linger_s": 0.1})
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
    bench = await start(limits={"linger_s": 0.1, **limits})
    client = await bench.connect()
    for _ in range(2):
        assert (await apart(client, post(path=b"/v1/messages"))).status == 200
    response = await apart(client, post(b'"%s"' % (b"x" * 2000), b"/v1/messages"), size=1500)
    assert response.status == status and b'"type":"error"' in response.body, "in the shape of its path"
    assert await client.rest() == (b"", "eof")


# --- and nobody waits for our books --------------------------------------------------------------


@pytest.mark.parametrize("kind", [BodyObserver, StreamObserver])
async def test_an_answer_is_on_its_way_before_it_is_looked_at(start, monkeypatch, kind):
    bench = await start()
    data = answer() if kind is BodyObserver else STREAM_HEAD + chunk(DELTA) + chunk(DONE) + b"0\r\n\r\n"
    bench.backend.script = sends(data)
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
