"""Small parts of the server: its clock, names, sockets, tenants, buffers, probes of hosts and replicas."""

import asyncio
import contextlib
import json
import socket
import time
import urllib.error
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gateway.cli.host_probe import look, send_report
from gateway.domain.engine import HostSignals
from gateway.domain.ids import ReplicaId, TenantId
from gateway.server.auth.client_keys import ClientKeys, hash_key
from gateway.server.http.body_limits import BufferBudget
from gateway.server.http.listening import listening_sockets
from gateway.server.picker import answers
from gateway.server.runtime.clock import SteadyClock
from tests.examples import examples
from tests.server.bench import Exchange, answer, eventually, get, post
from tests.server.test_members import control, registration, up


def test_a_step_of_the_systems_time_moves_nothing(monkeypatch):
    clock = SteadyClock()
    before = clock()
    assert abs(before - time.time()) < 60
    for step_s in (-7200, 7200):
        monkeypatch.setattr(time, "time", lambda step_s=step_s: before + step_s)
        assert before <= clock() < before + 60


async def test_the_names_of_sessions_cannot_be_guessed_from_one_another(start):
    bench = await start()
    names = []
    for number in range(8):
        body = b'{"model":"m","messages":[{"role":"user","content":"task %d"}]}' % number
        answer = await bench.ask(post(body=body))
        names.append(answer.all(b"x-turnpike-session")[0].decode())
    assert len(set(names)) == 8 and all(len(name) == 18 for name in names)
    assert all(len({name[place] for name in names}) > 1 for place in range(2, 18)), "no part is a prefix"


@pytest.mark.parametrize(
    ("one", "other", "is_same"),
    [
        ("10.0.0.1", "10.0.0.1", True),
        ("10.0.0.1", "10.0.0.2", False),
        ("2001:db8::1", "2001:db8::ffff:1:2:3", True),
        ("2001:db8::1", "2001:db8:0:1::1", False),
        ("::ffff:10.0.0.1", "10.0.0.1", True),
        ("::ffff:10.0.0.1", "::ffff:10.0.0.2", False),
        ("fe80::1%eth0", "fe80::2%eth0", True),
        ("not:an:address", "not:an:address", True),
    ],
)
def test_who_has_a_network_is_one_tenant(one, other, is_same):
    tenants = ClientKeys(())
    assert (tenants.authenticate([], one) == tenants.authenticate([], other)) is is_same


async def test_a_probe_tells_the_gateway(start):
    bench = await start()
    url = f"http://127.0.0.1:{bench.gateway.control_port}"
    await asyncio.to_thread(send_report, url, "tools 1", HostSignals(cores=4, runnable=12), key=None)
    reading = bench.brain.admission._cpu.read(now=0.0)
    assert reading.host_load == 3.0 and reading.cores == 4
    assert look().stat


@pytest.mark.parametrize(
    "signals", [{"cores": 0, "runnable": 1}, {"cores": 1}, [], {"cores": 1, "runnable": "x"}]
)
async def test_what_is_no_report_is_refused(start, signals):
    bench = await start()
    url = f"http://127.0.0.1:{bench.gateway.control_port}"
    with pytest.raises(urllib.error.HTTPError, match="400"):
        await asyncio.to_thread(send_report, url, "h", json.loads(json.dumps(signals)), key=None)
    assert bench.brain.admission._cpu.read(now=0.0).cores == 0


def options(transport):
    found = transport.get_extra_info("socket")
    return [
        bool(found.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE)),
        found.getsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE),
        found.getsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPINTVL),
        found.getsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPCNT),
    ]


@pytest.mark.parametrize("is_tls", [False, True])
async def test_both_sides_are_kept_alive(start, tls, tls_upstream, is_tls):
    server, trust = tls
    settings: dict[str, Any] = {"limits": {"tcp_keepalive_s": 40}}
    if is_tls:
        settings |= {"server": server, **tls_upstream}
    bench = await start(**settings)
    client = await bench.connect(ssl=trust if is_tls else None)
    assert (await client.ask(post())).status == 200
    (accepted,) = bench.gateway.listener._connections
    (opened,) = bench.gateway.replica_watch.replicas["default-0"]._idle
    assert options(accepted.transport) == [True, 40, 10, 4]
    assert options(opened.transport) == [True, 40, 10, 4]


@settings(max_examples=examples(40))
@given(size=st.integers(0, 200_000), is_last=st.booleans())
def test_a_body_in_pieces(size, is_last):
    body = bytes(range(256)) * (size // 256) + bytes(size % 256)
    made = answers.pieces(answers.RESPONSE_BODY, body, is_last=is_last)
    sent = [each.response_body.response.body_mutation.streamed_response for each in made]
    assert b"".join(each.body for each in sent) == body
    assert [each.end_of_stream for each in sent] == [False] * (len(sent) - 1) + [is_last]
    assert all(len(each.body) < 1 << 16 for each in sent)


def test_only_what_is_different_is_sent():
    head: Any = SimpleNamespace(
        headers=[(b"X-Same", b"1"), (b"x-changed", b"1"), (b"x-gone", b"1"), (b"Host", b"h")]
    )
    replica: Any = SimpleNamespace(address=SimpleNamespace(prefix=b""))
    lines = (
        b"POST /p/v1/x HTTP/1.1\r\nHost: other\r\nx-same: 1\r\nX-Changed: 2\r\nx-new: a: b\r\nConnection: x"
    )
    change = answers.following(head, lines, replica)
    assert change == ([(b"x-changed", b"2"), (b"x-new", b"a: b")], [b"x-gone"])
    replica.address.prefix = b"/p"
    assert (b":path", b"/p/v1/x") in answers.following(head, lines, replica).added


LATE = ReplicaId("late")


async def test_who_has_left_is_neither_watched_nor_known_any_more(start):
    found = {"registration": True, "ttl_s": 60}
    bench = await start(pools=[{"name": "default", "backends": 1, "discovery": found}])
    watch, late = bench.gateway.replica_watch, await bench.another()
    await bench.control(registration(late.url, name=LATE))
    await eventually(lambda: LATE in up(bench))
    watchers = watch._watchers[LATE]
    assert len(watchers) == 2 and LATE in watch.health._facts
    await bench.control(control(b"DELETE", b"/turnpike/replicas/late"))
    await eventually(lambda: all(each.cancelled() for each in watchers))
    known = (watch._watchers, watch.health._facts, watch.health._wake)
    assert not any(LATE in each for each in known)


@pytest.mark.slow
async def test_who_goes_down_is_asked_for_no_signals_and_shown_with_none(start):
    bench = await start(upstream={"engine_period_s": 0.05, "health_period_s": 0.05})
    bench.backend.metrics = b'vllm:num_requests_running{engine="0"} 3.0\n'
    signals = bench.gateway.telemetry.signals
    await eventually(lambda: "default-0" in signals)
    await bench.backend.close()
    await eventually(lambda: not up(bench))
    assert "default-0" not in signals
    await bench.backend.open()
    await eventually(lambda: up(bench) and "default-0" in signals)
    assert (await bench.control(get(b"/turnpike/readyz"))).status == 200


async def test_gateways_that_all_say_so_share_a_port():
    (first,) = await listening_sockets("127.0.0.1", 0, reuse_port=True)
    address = first.getsockname()
    with first, contextlib.ExitStack() as opened:
        with pytest.raises(OSError, match="in use"):
            await listening_sockets(*address)
        (second,) = await listening_sockets(*address, reuse_port=True)
        opened.enter_context(second)
        for _ in range(200):
            opened.enter_context(socket.create_connection(address))
        assert min(accepted(first), accepted(second)) > 50
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection(address)


async def test_a_port_that_is_taken_is_not_shared():
    (first,) = await listening_sockets("127.0.0.1", 0)
    with first, pytest.raises(OSError, match="in use"):
        await listening_sockets(*first.getsockname(), reuse_port=True)


def accepted(listening: socket.socket) -> int:
    count = 0
    with contextlib.suppress(BlockingIOError):
        while True:
            listening.accept()[0].close()
            count += 1
    return count


@given(st.lists(st.tuples(st.sampled_from("abcdef"), st.integers(0, 4_000), st.booleans()), max_size=60))
def test_what_is_held_is_what_was_taken(steps):
    budget, held = BufferBudget(10_000), dict[str, int]()
    for name, size, gives in steps:
        if gives:
            budget.give_back(TenantId(name), held.pop(name, 0))
        elif budget.take(TenantId(name), size):
            held[name] = held.get(name, 0) + size
        assert budget.used == sum(held.values()) <= 10_000
        assert budget._held == {name: size for name, size in held.items() if size}
        share = 10_000 // (len(budget._held) + 2)
        if budget.used + share <= 10_000:
            assert budget.take(TenantId("newcomer"), share)
            budget.give_back(TenantId("newcomer"), share)


async def test_a_tenant_that_uploads_much_leaves_room_for_others(start):
    tenants = [{"name": name, "key_hashes": [hash_key(f"key-{name}")]} for name in ("flood", "light")]
    bench = await start(limits={"max_buffered_bytes": 100_000, "drain_rejected_body_s": 0.1}, tenants=tenants)
    flood, light = (b"Authorization: Bearer key-%s\r\n" % name for name in (b"flood", b"light"))
    clients = [await bench.connect() for _ in range(20)]
    for client in clients:
        client.send(post(b"x" * 9_000, headers=flood)[:-1])  # never the last byte
    await eventually(lambda: bench.gateway.listener.budget.used > 40_000)

    async def script(exchange: Exchange) -> None:
        await exchange.send(answer())

    bench.backend.script = script
    assert (await bench.ask(post(b"y" * 20_000, headers=light))).status == 200
    assert bench.gateway.listener.budget.used <= 50_000
