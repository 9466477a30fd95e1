"""The picker's connections, asked by gRPC's own client."""

import asyncio
import contextlib
from typing import Any

import grpc
import grpc.aio

from gateway.server.picker.http2 import Http2Connection
from tests.server.echoing import Echo


@contextlib.asynccontextmanager
async def channel(server: Echo):
    listening = await asyncio.get_running_loop().create_server(
        lambda: Http2Connection(server), "127.0.0.1", 0
    )
    port = listening.sockets[0].getsockname()[1]
    options = [("grpc.max_receive_message_length", -1), ("grpc.max_send_message_length", -1)]
    async with grpc.aio.insecure_channel(f"127.0.0.1:{port}", options=options) as opened:
        yield opened
    listening.close()
    for connection in list(server.connections):
        connection.transport.abort()


def method(opened: Any, name: str = "/echo") -> Any:
    return opened.stream_stream(name, request_serializer=bytes, response_deserializer=bytes)


async def test_messages_of_all_sizes_go_there_and_back():
    server = Echo()
    async with channel(server) as opened:
        for size in (0, 1, 16_379, 16_380, 70_000, 5_000_000):
            stream = method(opened)()
            for byte in (b"a", b"b"):
                await stream.write(byte * size)
                assert await stream.read() == byte * size
            await stream.done_writing()
            assert await stream.read() is grpc.aio.EOF and await stream.code() is grpc.StatusCode.OK
    assert server.running == 0


async def test_many_calls_at_a_time_keep_apart():
    server = Echo()
    async with channel(server) as opened:

        async def ask(number: int) -> None:
            stream = method(opened)()
            for turn in range(5):
                told = b"%d" % number * (number * 997 % 4000) + b"-%d" % turn
                await stream.write(told)
                assert await stream.read() == told
            await stream.done_writing()
            assert await stream.code() is grpc.StatusCode.OK

        await asyncio.gather(*map(ask, range(50)))  # the client has no more than four open
    assert server.running == 0


async def test_a_client_that_cancels_is_seen_to_leave():
    server = Echo()
    async with channel(server) as opened:
        stream = method(opened)()
        await stream.write(b"x")
        await stream.read()
        stream.cancel()
        for _ in range(200):
            if server.left:
                break
            await asyncio.sleep(0.01)
    assert (server.left, server.running) == (1, 0)


async def test_an_unknown_method_and_a_large_message_are_refused():
    server = Echo()
    server.limit = 100_000
    async with channel(server) as opened:
        stream = method(opened, "/other")()
        assert await stream.code() is grpc.StatusCode.UNIMPLEMENTED
        stream = method(opened)()
        with contextlib.suppress(grpc.aio.AioRpcError, asyncio.InvalidStateError):
            await stream.write(bytes(200_000))
        assert await stream.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
        assert (await stream.details()) == "200000"
    assert server.running == 0
