"""Two pickers before one Redis: a stream is answered by the one that has its session."""

import asyncio
import contextlib

import grpc
import grpc.aio
import pytest

from gateway.server.cluster import peer_heartbeats as direct_talk
from gateway.server.cluster import peers
from gateway.server.cluster.peer_auth import PASSED
from gateway.server.picker.messages import FULL_DUPLEX
from tests.server.bench import CHAT, CHAT_ANSWER, eventually
from tests.server.envoy_stream import ask, body, headers, leave, said, trailers
from tests.shared_state.servers import RedisServer

MINE = ("x-turnpike-session", "mine")


@pytest.fixture
def store_url(tmp_path):
    redis = RedisServer(tmp_path).start()
    yield redis.url
    redis.kill()


@pytest.fixture
async def two(request, store_url, begin, peer_tls, monkeypatch):
    for module, name in ((peers, "_GONE_AFTER_S"), (direct_talk, "LASTS_S")):
        monkeypatch.setattr(module, name, 20.0)  # on a busy machine both seem to be away for a moment
    speaks_tls = getattr(request, "param", False)
    shared = {"url": store_url, "deadline_ms": 1000, **(peer_tls if speaks_tls else {})}
    benches = [await begin(fleet_secret=b"s" * 32, shared=shared) for _ in range(2)]
    await eventually(lambda: all(len(each.gateway._peers.alive) == 1 for each in benches))
    async with placed(benches[0]) as stream:
        home = next(each for each in benches if each.brain.live)
        stream.cancel()
        await eventually(lambda: not home.brain.live)
    return home, next(each for each in benches if each is not home)


@contextlib.asynccontextmanager
async def placed(bench):
    async with bench.channel() as channel:
        stream = ask(channel)
        await said(stream, headers("request_headers", MINE))
        assert (await said(stream, body("request_body", CHAT))).request_body.response.clear_route_cache
        yield stream


@pytest.mark.parametrize("two", [False, True], indirect=True, ids=["clear", "tls"])
async def test_the_whole_stream_passes(two):
    home, other = two
    async with placed(other) as stream:
        assert home.brain.live and not other.brain.live and not other.gateway.listener.budget.used
        answered = (await said(stream, headers("response_headers"))).response_headers.response
        names = [each.header.key for each in answered.header_mutation.set_headers]
        assert b"x-turnpike-session" in names
        assert (await said(stream, body("response_body", CHAT_ANSWER))).HasField("response_body")
        await leave(stream)
        assert not home.brain.live


async def test_a_stream_of_both_directions_passes_with_its_trailers(two):
    home, other = two
    begin = headers("request_headers", MINE)
    begin.protocol_config.request_body_mode = begin.protocol_config.response_body_mode = FULL_DUPLEX
    async with other.channel() as channel:
        stream = ask(channel)
        for message in (begin, *(body("request_body", each, is_last=False) for each in (CHAT[:9], CHAT[9:]))):
            await stream.write(message)
        replies = [await said(stream, trailers()), *[await stream.read() for _ in range(2)]]
        assert [each.ListFields()[0][0].name for each in replies] == [
            "request_headers",
            "request_body",
            "request_trailers",
        ]
        piece = replies[1].request_body.response.body_mutation.streamed_response
        assert (piece.body, piece.end_of_stream) == (CHAT, False) and home.brain.live
        stream.cancel()
    await eventually(lambda: not home.brain.live)


async def test_who_leaves_has_left_where_it_is_decided(two):
    home, other = two
    async with placed(other) as stream:
        assert home.brain.live
        stream.cancel()
        await eventually(lambda: not home.brain.live)


async def test_without_the_other_it_is_decided_here(two):
    home, other = two
    await home.gateway._picker.stop(0.0)
    async with placed(other) as stream:
        assert other.brain.live and other.gateway._peers.unreached
        await leave(stream)


async def test_a_picker_that_stops_in_the_midst_cuts_what_is_passed_to_it(two):
    home, other = two
    async with placed(other) as stream:
        await home.gateway._picker.stop(0.0)
        assert await stream.code() is grpc.StatusCode.UNAVAILABLE


async def test_only_pickers_of_the_fleet_pass_on(two):
    home, other = two
    token = other.gateway._peers.passing.header(home.gateway._peers._origin, "10.0.0.9").decode()
    for passed, status in ((None, 403), ("wrong 10.0.0.9", 403), (token, None)):
        async with grpc.aio.insecure_channel(home.gateway._peers.picks_at) as channel:
            stream = ask(channel)
            more = [(PASSED.decode(), passed)] if passed is not None else []
            reply = await said(stream, headers("request_headers", MINE, *more))
            assert (reply.immediate_response.status.code or None) == status
            stream.cancel()
    async with home.channel() as channel:  # at Envoy's port the client is who is connected
        streams = [ask(channel) for _ in range(2)]
        for stream, more in zip(streams, ([], [(PASSED.decode(), token)]), strict=True):
            await said(stream, headers("request_headers", MINE, *more))
            await said(stream, body("request_body", CHAT))
        assert len({home.brain.live.get(each).tenant for each in home.brain.live}) == 1
        assert len(home.brain.live) == 2
        for stream in streams:
            stream.cancel()


async def test_what_is_not_its_own_goes_back(two):
    home, other = two
    other.gateway._peers.directory.is_in_doubt = True  # it may have been taken for gone
    token = home.gateway._peers.passing.header(other.gateway._peers._origin, "127.0.0.1").decode()
    async with grpc.aio.insecure_channel(other.gateway._peers.picks_at) as channel:
        stream = ask(channel)
        await said(stream, headers("request_headers", MINE, (PASSED.decode(), token)))
        await stream.write(body("request_body", CHAT))
        assert await asyncio.wait_for(stream.code(), 10.0) is grpc.StatusCode.ABORTED
