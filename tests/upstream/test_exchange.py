"""How often one exchange sends its request, and which connections it takes for that."""

import asyncio
import contextlib
import gc
import weakref

import pytest

from gateway.config.upstream import UpstreamConfig
from gateway.domain.ids import PoolId, ReplicaId
from gateway.upstream import replica
from gateway.upstream.connection import UpstreamConnection
from gateway.upstream.errors import AnswerMissing, UpstreamError
from gateway.upstream.moments import Run
from gateway.upstream.replica import Address, Replica

OK = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok"
GET = b"GET / HTTP/1.1\r\nHost: x\r\n\r\n"


class Server:
    """Answers, until it is told to close the connection on each request instead."""

    def __init__(self):
        self.breaks = False
        self.requests = 0
        self.together = 1
        """Requests that wait for each other, so that each has a connection of its own."""
        self._writers = set()
        self._arrived = 0
        self._all_there = asyncio.Event()

    async def __aenter__(self):
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        port = self._server.sockets[0].getsockname()[1]
        address = Address.parse(f"http://127.0.0.1:{port}")
        self.replica = Replica(
            ReplicaId("r"), PoolId("p"), address, config=UpstreamConfig(), api_key=None, tls=None
        )
        return self

    async def __aexit__(self, *_):
        self.replica.close()
        self._server.close()
        for writer in self._writers:
            writer.transport.abort()

    async def _serve(self, reader, writer):
        self._writers.add(writer)
        try:
            while True:
                await reader.readuntil(b"\r\n\r\n")
                self.requests += 1
                if self.breaks:
                    break
                self._arrived += 1
                if self._arrived == self.together:
                    self._all_there.set()
                await self._all_there.wait()
                writer.write(OK)
        except (asyncio.IncompleteReadError, ConnectionError):
            pass
        finally:
            writer.close()


async def run(coroutine):
    result = asyncio.get_running_loop().create_future()

    async def work():
        try:
            result.set_result(await coroutine)
        except UpstreamError as error:
            result.set_exception(error)

    Run(work(), lambda: None).go_on()
    return await result


async def ask(replica, *, may_repeat=True):
    connection = await replica.exchange([GET], is_head_request=False, may_repeat=may_repeat)
    whole = connection.take_whole()
    replica.release(connection, reuse=whole is not None)


async def fail(replica):
    with contextlib.suppress(AnswerMissing):
        await ask(replica)
        raise AssertionError("it was answered")


async def keep(server, connections):
    server.together = connections
    await asyncio.gather(*[run(ask(server.replica)) for _ in range(connections)])
    assert len(server.replica._idle) == connections
    server.requests = 0


async def test_an_exchange_sends_its_request_at_most_twice():
    async with Server() as server:
        await keep(server, 30)
        server.breaks = True
        with pytest.raises(AnswerMissing) as failed:
            await run(ask(server.replica))
        assert server.requests == 2
        assert failed.value.resends == 1, "who asked is told that it was sent twice"


async def test_a_backend_that_closes_every_connection_gets_each_request_once():
    async with Server() as server:
        server.breaks = True
        for number in range(1, 4):
            with pytest.raises(AnswerMissing) as failed:
                await run(ask(server.replica))
            assert server.requests == number and failed.value.resends == 0


async def test_connections_that_the_backend_closed_are_not_used():
    async with Server() as server:
        await keep(server, 5)
        kept = list(server.replica._idle)
        for writer in server._writers:
            writer.close()
        while any(connection.is_reusable for connection in kept):
            await asyncio.sleep(0)
        await run(ask(server.replica))
        assert server.requests == 1
        assert not set(kept) & set(server.replica._idle), "they are dropped"


@pytest.mark.parametrize("is_kept_first", [False, True])
async def test_a_closed_connection_is_freed_without_the_collector(monkeypatch, is_kept_first):
    made = []

    class Watched(UpstreamConnection):
        def __init__(self):
            super().__init__()
            made.append(weakref.ref(self))

    monkeypatch.setattr(replica, "UpstreamConnection", Watched)
    gc.collect()
    gc.disable()
    try:
        async with Server() as server:
            for _ in range(3):
                await run(ask(server.replica))
            if is_kept_first:
                server.breaks = True
                await run(fail(server.replica))
            server.replica.close()
            for _ in range(20):
                await asyncio.sleep(0)
            assert made and all(ref() is None for ref in made)
    finally:
        gc.enable()
