"""A picker asked by gRPC's own client, without Envoy: what it holds, when it refuses, how it goes."""

import asyncio
import contextlib
import sys

import grpc
import grpc.aio
import pytest
import trustme

from gateway.config.load import ConfigError, load_config
from gateway.core import refusals
from gateway.server.admin.loaded_references import check_references
from gateway.server.picker.checking import check_picker
from tests.server.bench import CHAT, CHAT_ANSWER, eventually
from tests.server.envoy_stream import ask, body, headers, leave, place, said

_CHECK = "/grpc.health.v1.Health/Check"


async def test_bodies_that_wait_take_room(begin):
    limits = {"max_body_bytes": 8 << 20, "max_buffered_bytes": 8 << 20}
    bench = await begin(limits=limits, admission={"max_running_per_replica": 1})
    budget, large = bench.gateway.listener.budget, body("request_body", b"x" * (3 << 20))
    async with bench.channel() as channel:
        streams = [ask(channel) for _ in range(3)]
        for stream in streams:
            await said(stream, headers("request_headers"))
        assert (await said(streams[0], large)).HasField("request_body")
        waiting = asyncio.create_task(said(streams[1], large))
        await eventually(lambda: budget.used == 3 << 20)
        assert (await said(streams[2], large)).immediate_response.status.code == 503
        await leave(streams[2])
        streams[0].cancel()
        assert (await waiting).HasField("request_body")
        streams[1].cancel()
    await eventually(bench.is_quiet)


async def test_a_message_beyond_all_limits_ends_its_stream(begin):
    bench = await begin(limits={"max_body_bytes": 1000})
    async with bench.channel() as channel:
        stream = ask(channel)
        await said(stream, headers("request_headers"))
        refused = await said(stream, body("request_body", b"x" * 5000))
        assert refused.immediate_response.status.code == 413
        await leave(stream)
        stream = ask(channel)
        with contextlib.suppress(grpc.aio.AioRpcError, asyncio.InvalidStateError):
            await said(stream, body("request_body", b"x" * (2 << 20)))
        assert await stream.code() is grpc.StatusCode.RESOURCE_EXHAUSTED


@pytest.mark.parametrize(
    "messages",
    [
        [b"\xff\xff\xff"],
        [b"\x12\x7f\x0a"],  # cut within the headers
        [body("request_body", CHAT)],
        [headers("request_headers"), headers("request_headers")],
        [headers("request_headers"), body("request_body", CHAT), body("request_body", CHAT)],
    ],
)
async def test_what_cannot_be_read_or_comes_out_of_order_ends_its_stream_alone(begin, messages):
    bench = await begin()
    async with bench.channel() as channel:
        broken, sound = ask(channel), ask(channel)
        await said(sound, headers("request_headers"))
        for message in messages[:-1]:
            await said(broken, message)
        await broken.write(messages[-1])
        assert await broken.code() is grpc.StatusCode.INVALID_ARGUMENT and not bench._logs.lines
        assert (await said(sound, body("request_body", CHAT))).HasField("request_body")
        sound.cancel()
    await eventually(bench.is_quiet)


async def test_a_session_that_is_stopped_before_its_answer_begins_is_cut(begin):
    bench = await begin()
    async with bench.channel() as channel:
        stream = ask(channel)
        await place(stream)
        (ticket,) = bench.gateway.driver.tickets.values()
        ticket.on_cancel(None, refusals.internal())
        assert (await stream.read()).immediate_response.status.code == 500
        assert await stream.code() is grpc.StatusCode.OK
    await eventually(bench.is_quiet)


async def test_no_more_streams_than_there_may_be(begin):
    bench = await begin(picker={"max_streams": 1})
    async with bench.channel() as one, bench.channel() as other:
        first = ask(one)
        await place(first)
        second = ask(other)
        assert await second.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
        await leave(first)
        third = ask(other)
        await place(third)
        await leave(third)


async def test_who_stops_says_so_and_lets_streams_end(begin):
    bench = await begin()
    async with bench.channel() as channel, bench.channel() as late:
        check = channel.unary_unary(_CHECK, request_serializer=bytes, response_deserializer=bytes)
        assert await check(b"") == b"\x08\x01"
        stream = ask(channel)
        await place(stream)
        bench.gateway._picker.retire()
        assert await check(b"") == b"\x08\x02"
        stopping = asyncio.create_task(bench.gateway._picker.stop(30.0))
        await asyncio.sleep(0.2)
        assert not stopping.done()
        with pytest.raises(grpc.aio.AioRpcError, match="UNAVAILABLE"):
            await late.unary_unary(_CHECK, request_serializer=bytes, response_deserializer=bytes)(b"")
        await said(stream, headers("response_headers"))
        assert (await said(stream, body("response_body", CHAT_ANSWER))).HasField("response_body")
        await leave(stream)
        await asyncio.wait_for(stopping, 10.0)


async def test_who_stops_at_once_cuts_streams(begin):
    bench = await begin()
    async with bench.channel() as channel:
        stream = ask(channel)
        await place(stream)
        await bench.gateway._picker.stop(0.0)
        assert await stream.code() is grpc.StatusCode.UNAVAILABLE
        assert bench.is_quiet()


# --- TLS --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("are_clients_known", [False, True])
async def test_envoy_connects_by_tls_and_where_that_is_set_with_a_certificate(
    begin, certificates, are_clients_known
):
    authority, picker = certificates
    if not are_clients_known:
        del picker["tls_client_ca"]
    bench = await begin(picker=picker)
    root, own, other = (
        authority.cert_pem.bytes(),
        authority.issue_cert("envoy"),
        trustme.CA().issue_cert("envoy"),
    )

    def channel(certificate=None):
        pair = (
            [certificate.private_key_pem.bytes(), certificate.cert_chain_pems[0].bytes()]
            if certificate
            else []
        )
        credentials = grpc.ssl_channel_credentials(root, *pair)
        return grpc.aio.secure_channel(f"127.0.0.1:{bench.gateway.picker_port}", credentials)

    async with channel(own) as known, channel() as unknown, channel(other) as wrong, bench.channel() as plain:
        stream = ask(known)
        await place(stream)
        stream.cancel()
        assert await ask(plain).code() is grpc.StatusCode.UNAVAILABLE
        for each in (unknown, wrong) if are_clients_known else ():
            assert await ask(each).code() is grpc.StatusCode.UNAVAILABLE
    await eventually(bench.is_quiet)


@pytest.mark.parametrize("name", ["tls_certificate", "tls_key", "tls_client_ca"])
def test_files_that_are_no_certificates_are_found_before_it_starts(certificates, name, tmp_path):
    _, picker = certificates
    (tmp_path / "wrong").write_text("no certificate")
    picker[name] = str(tmp_path / "wrong")
    lines = "".join(f'{key} = "{value}"\n' for key, value in picker.items())
    config = load_config(
        None, {}, {}, text=f'[[pools]]\nreplicas = [{{ url = "http://a:1" }}]\n[picker]\n{lines}'
    )
    with pytest.raises((OSError, ConfigError), match=r"PEM|SSL|X509"):
        check_references(config, {})


def test_without_grpc_it_says_what_to_install(monkeypatch):
    config = load_config(None, {}, {}, text='[[pools]]\nreplicas = [{ url = "http://a:1" }]\n')
    monkeypatch.setitem(sys.modules, "grpc", None)
    with pytest.raises(ConfigError, match=r"pip install 'turnpike-gateway\[picker\]'"):
        check_picker(config)
