"""A WebSocket among other things: TLS, tenants of their own, several gateways, metrics."""

import ssl

import aiohttp
import trustme

from gateway.domain import records as rec
from tests.server.bench import eventually, get
from tests.server.test_several_gateways import several
from tests.server.test_tls_acceptor import tls
from tests.server.test_websocket import connect, refused, speaker_of
from tests.server.websocket_bench import CALL, RESULT, Caller, Speaker, create, events, records_of

__all__ = ["connect", "several", "tls"]


async def test_over_tls_on_both_sides(start, tls, tmp_path):
    server, trust = tls
    authority = trustme.CA()
    authority.cert_pem.write_to_path(str(tmp_path / "ca.pem"))
    backend_tls = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    authority.issue_cert("localhost").configure_cert(backend_tls)
    bench = await start(
        backend=Speaker,
        backend_tls=backend_tls,
        server=server,
        upstream={"ca_file": str(tmp_path / "ca.pem")},
    )
    async with aiohttp.ClientSession() as session:
        url = f"wss://127.0.0.1:{bench.gateway.listener.port}/v1/responses"
        client = Caller(await session.ws_connect(url, ssl=trust, max_msg_size=0))
        assert (await client.ask(text="x" * 500_000))[-1]["type"] == "response.completed"
        assert len(await client.ask(previous_response_id="resp_1", input=[RESULT])) == len(
            events("resp_2", text="Twelve.")
        )
        await client.socket.close()
    await eventually(lambda: speaker_of(bench).sockets[0].closed)


async def test_a_session_goes_on_at_another_gateway(several, connect):
    """As by HTTP, when its own is gone. While that lives, turns of a connection are decided where it is."""
    gateways = await several(backend=Speaker)
    one, two = gateways
    for each in gateways:
        speaker_of(each).said.add("resp_1")
    speaker_of(two).asked.append({})  # its responses have other names
    first = await connect(one)
    records = [records_of(each) for each in gateways]
    await first.ask()
    elsewhere = await connect(two)
    assert (await elsewhere.ask(previous_response_id="resp_1", input=[RESULT]))[-1]["type"] == (
        "response.completed"
    )
    for client in (first, elsewhere):
        await client.socket.close()
    await one.gateway._peers.leave()
    await eventually(lambda: not two.gateway._peers.alive)
    later = await connect(two)
    await later.ask(previous_response_id="resp_1", input=[RESULT])
    [opened] = [each for each in records[0] if isinstance(each, rec.TurnArrived)]
    there = [each for each in records[1] if isinstance(each, rec.TurnArrived)]
    assert there[0].session != opened.session == there[1].session
    await later.socket.close()


async def test_it_is_counted(start, connect):
    bench = await start(backend=Speaker)
    clients = [await connect(bench) for _ in range(2)]
    speaker_of(bench).status = 503
    await refused(bench, connect)
    await clients[0].socket.send_json(create())
    assert (await clients[0].turn()) == events("resp_1", {**CALL, "arguments": '{"item":"pear"}'})
    told = (await bench.control(get(b"/metrics"))).body.decode()
    assert "turnpike_websockets 2.0" in told
    assert 'turnpike_websocket_upgrades_total{outcome="opened"} 2.0' in told
    assert 'turnpike_websocket_upgrades_total{outcome="refused"} 1.0' in told
    for client in clients:
        await client.socket.close()
