"""What goes wrong with Redis, and what each store makes of it."""

import asyncio
import contextlib
import signal
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from functools import partial
from typing import Any

import pytest

from gateway.shared_state import remote
from gateway.shared_state.protocol import Entry, Store, StoreUnavailable
from gateway.shared_state.redis_store import PREFIX, RedisStore
from gateway.shared_state.remote import BATCH, GATHER_S
from tests.shared_state.conftest import PATIENCE_S, up
from tests.shared_state.servers import RedisServer

pytestmark = pytest.mark.slow

DEADLINE_S = 0.05
Call = Callable[[], Awaitable[object]]


ALONE_AND_CLUSTER = pytest.mark.parametrize("server", ["plain", "cluster"], indirect=True)


@pytest.fixture
def server(request, tmp_path, redis_servers) -> Iterator[RedisServer]:
    """One of the test's own, but for a cluster, which needs two seconds to start."""
    if getattr(request, "param", "plain") == "cluster":
        server = redis_servers("cluster")
        with server.admin() as admin:
            admin.flushall()
        yield server
        server.send(signal.SIGCONT)
        return
    server = RedisServer(tmp_path).start()
    yield server
    server.kill()


@pytest.fixture
async def store(server) -> AsyncIterator[RedisStore]:
    """Its deadline is the tests' patience until one sets another."""
    store = RedisStore(server.url, deadline_s=PATIENCE_S)
    await store.open()
    await up(store)
    yield store
    await store.aclose()


def every_call(store: Store) -> list[Call]:
    return [
        lambda: store.find([b"a", b"b"]),
        lambda: store.claim(b"a", b"1", 60.0),
        lambda: store.exchange("a", b"1", 60.0),
    ]


async def failed_in_s(call: Call) -> float:
    began = time.monotonic()
    with pytest.raises(StoreUnavailable):
        await call()
    return time.monotonic() - began


async def until_up(store: Store) -> None:
    async with asyncio.timeout(20):
        while not store.is_up:
            await asyncio.sleep(0.01)


@ALONE_AND_CLUSTER
async def test_a_hung_server_costs_a_deadline_then_nothing(server, store):
    store._deadline_s = DEADLINE_S
    server.send(signal.SIGSTOP)
    calls = every_call(store)
    for number, call in enumerate(calls):
        assert await failed_in_s(call) < 1.0
        store._breaker._failures = 0  # so that each call meets the hung server itself
        assert store.counters.timeouts == number + 1
    for _ in range(3):
        assert store.is_up
        await failed_in_s(calls[0])
    assert not store.is_up
    for call in calls:
        await failed_in_s(call)
    assert store.counters.not_tried == len(calls)
    store._deadline_s = PATIENCE_S
    server.send(signal.SIGCONT)
    await until_up(store)
    for call in calls:
        await call()


async def test_calls_that_wait_together_count_as_one_failure(server, store):
    store._deadline_s = DEADLINE_S
    server.send(signal.SIGSTOP)
    took = await asyncio.gather(*[failed_in_s(lambda: store.find([b"a"])) for _ in range(100)])
    assert max(took) < 1.0
    assert store.is_up and store.counters.timeouts == 100
    server.send(signal.SIGCONT)


async def test_writes_for_a_hung_server_are_bounded_and_those_that_wait_are_written(
    server, store, monkeypatch
):
    monkeypatch.setattr(remote, "MAX_WAITING", 300)
    store._deadline_s = DEADLINE_S
    server.send(signal.SIGSTOP)
    store.publish([Entry(b"lost", b"1", 60.0)])
    async with asyncio.timeout(20):
        while store.is_up:
            with contextlib.suppress(StoreUnavailable):
                await store.find([b"a"])
        while store.counters.dropped_writes < 1:
            await asyncio.sleep(0.01)
    store.publish([Entry(b"%d" % number, b"1", 60.0) for number in range(299)])
    store.publish([Entry(b"short", b"1", 0.01), Entry(b"one more", b"1", 60.0)])
    assert store.counters.dropped_writes == 2
    await asyncio.sleep(0.1)
    store._deadline_s = PATIENCE_S
    server.send(signal.SIGCONT)
    await until_up(store)
    await store.flush()
    assert await store.find([b"0", b"298", b"short", b"one more"]) == [b"1", b"1", None, None]
    assert store.counters.dropped_writes == 3
    with server.admin() as admin:
        assert 30.0 < admin.pttl(PREFIX + b"e:0") / 1e3 < 59.95


@ALONE_AND_CLUSTER
async def test_a_server_that_was_killed_comes_back_empty(server, store):
    await store.claim(b"a", b"1", 60.0)
    server.kill()
    for call in every_call(store):
        assert await failed_in_s(call) < 1.0
    assert not store.is_up
    server.start()
    await until_up(store)
    assert await store.find([b"a"]) == [None]
    for call in every_call(store):
        await call()


async def test_a_server_that_is_not_there_at_first(tmp_path):
    server = RedisServer(tmp_path)
    store = RedisStore(server.url, deadline_s=PATIENCE_S)
    try:
        await store.open()
        assert not store.is_up
        await failed_in_s(lambda: store.find([b"a"]))
        store.publish([Entry(b"a", b"1", 60.0)])
        server.start()
        await until_up(store)
        await store.flush()
        assert await store.find([b"a"]) == [b"1"]
    finally:
        await store.aclose()
        server.kill()


async def test_a_full_server_refuses_writes_and_is_still_read(server, store):
    await store.claim(b"a", b"1", 60.0)
    with server.admin() as admin:
        admin.config_set("maxmemory", "1")
    for call in every_call(store)[1:]:
        assert await failed_in_s(call) < 1.0
    store.publish([Entry(b"b", b"1", 60.0), Entry(b"c", b"1", 60.0)])
    await store.flush()
    assert store.counters.dropped_writes == 2
    assert store.is_up
    assert await store.find([b"a", b"b"]) == [b"1", None]
    with server.admin() as admin:
        admin.config_set("maxmemory", "0")
    for call in every_call(store):
        await call()


async def test_a_server_that_became_a_replica_refuses_writes(server, store):
    await store.claim(b"a", b"1", 60.0)
    with server.admin() as admin:
        admin.replicaof("127.0.0.1", "1")
        await failed_in_s(lambda: store.claim(b"b", b"1", 60.0))
        assert await store.find([b"a"]) == [b"1"]
        before = {client["id"] for client in admin.client_list()} - {str(admin.client_id())}
        store.publish([Entry(b"b", b"1", 60.0)])
        await store.flush()
        assert store.counters.dropped_writes == 1
        assert await store.find([b"b"]) == [None]
        after = {client["id"] for client in admin.client_list()}
        assert not before & after  # it looks anew for who is the primary
        admin.replicaof("NO", "ONE")
    assert await store.claim(b"b", b"1", 60.0) == b"1"


@ALONE_AND_CLUSTER
async def test_scripts_that_are_gone_are_sent_again(server, store):
    with server.admin() as admin:
        for call in every_call(store):
            admin.script_flush()
            await call()
        admin.script_flush()
        await store.claim(b"b", b"1", 60.0)
        sent_whole = admin.info("commandstats")["cmdstat_eval"]["calls"]
        await store.claim(b"b", b"1", 60.0)
        assert admin.info("commandstats")["cmdstat_eval"]["calls"] == sent_whole
    assert store.counters.failures == store.counters.dropped_writes == 0


async def test_no_clock_of_a_client_matters(server, store, monkeypatch):
    """Both clients' clocks are wrong by hours; the server's counts."""
    await store.exchange("a", b"1", 60.0)
    await store.claim(b"a", b"1", 60.0)
    for shift_s in (-7200.0, 7200.0):
        right = time.time
        monkeypatch.setattr(time, "time", lambda right=right, shift_s=shift_s: right() + shift_s)
        other = RedisStore(server.url, deadline_s=PATIENCE_S)
        await other.open()
        assert (await other.exchange("b", b"2", 60.0))["a"] == b"1"
        assert await other.claim(b"a", b"2", 60.0) == b"1"
        assert (await store.exchange("a", b"1", 60.0))["b"] == b"2"
        await other.aclose()
        monkeypatch.undo()


async def test_values_of_another_version_are_absent(server, store):
    with server.admin() as admin:
        admin.set(PREFIX + b"e:a", b"\x02" + b"x" * 30, px=60_000)
        admin.hset((PREFIX + b"g").decode(), "old", b"\x02" + b"\0\0\0\0\0\0\xf0\x7f" + b"gauges")
        no_name: Any = b"\xff"
        admin.hset((PREFIX + b"g").decode(), no_name, b"\x01" + b"\0\0\0\0\0\0\xf0\x7f" + b"gauges")
    assert await store.find([b"a", b"b"]) == [None, None]
    assert await store.claim(b"a", b"1", 60.0) == b"1"
    assert await store.exchange("a", b"1", 60.0) == {}


async def test_every_key_lapses(server, store):
    for call in every_call(store):
        await call()
    store.publish([Entry(b"p", b"1", 60.0)])
    await store.flush()
    with server.admin() as admin:
        keys = admin.keys("*")
        assert {key.split(b":")[2] for key in keys} == {b"e", b"g"}
        assert all(key.startswith(PREFIX) and admin.pttl(key) > 0 for key in keys)


async def test_a_wrong_password_is_no_store(redis_servers):
    server = redis_servers("secure")
    store = RedisStore(server.url, password="wrong", deadline_s=PATIENCE_S)
    await store.open()
    assert not store.is_up
    await store.aclose()


async def test_a_password_may_stand_in_the_url_and_the_other_goes_before_it(redis_servers):
    server = redis_servers("secure")
    for in_url, password in (("p%3Aa%2Fs%40s", None), ("wrong", server.password)):
        url = server.url.replace("turnpike@", f"turnpike:{in_url}@")
        store = RedisStore(url, password=password, deadline_s=PATIENCE_S)
        await store.open()
        await up(store)
        await store.aclose()


async def test_of_a_cluster_that_lost_a_node_the_others_are_asked(redis_cluster):
    cluster = redis_cluster()
    store = RedisStore(cluster.url, deadline_s=PATIENCE_S)
    await store.open()
    keys = [b"%d" % number for number in range(30)]
    store.publish([Entry(key, b"1", 60.0) for key in keys])
    await store.flush()
    assert store.counters.dropped_writes == 0
    with cluster.admin() as admin:
        nodes = {key: admin.get_node_from_key((PREFIX + b"e:" + key).decode()).port for key in keys}
    assert len(set(nodes.values())) == 3
    gone = cluster.nodes[2]
    gone.kill()
    for key in keys:
        if nodes[key] == gone.port:
            await failed_in_s(partial(store.find, [key]))
        else:
            await until_up(store)
            assert await store.find([key]) == [b"1"]
    gone.start()
    async with asyncio.timeout(20):
        while (await found_by(store, keys)).count(b"1") < sum(port != gone.port for port in nodes.values()):
            await asyncio.sleep(0.1)
    store.publish([Entry(key, b"2", 60.0) for key in keys])
    await store.flush()
    assert await store.find(keys) == [b"2"] * len(keys)
    await store.aclose()


async def found_by(store: Store, keys: list[bytes]) -> list[bytes | None]:
    try:
        return await store.find(keys)
    except StoreUnavailable:
        return []


async def test_a_store_that_is_slow_does_not_hold_up_who_ends(server, store, monkeypatch):
    monkeypatch.setattr(remote, "CLOSES_WITHIN_S", 0.5)
    store.publish([Entry(b"%d" % number, b"1", 60.0) for number in range(1_000)])
    server.send(signal.SIGSTOP)
    began = time.monotonic()
    await store.aclose()
    server.send(signal.SIGCONT)
    assert time.monotonic() - began < PATIENCE_S
    assert store.counters.dropped_writes > 0


async def test_writes_go_together_also_while_others_are_under_way(store):
    began, calls, many = time.monotonic(), store.counters.calls, 5_000
    for number in range(many):
        store.publish([Entry(b"%d" % number, b"1", 60.0)])
        await asyncio.sleep(0)
    full = many / BATCH  # such batches wait for nothing
    assert store.counters.calls - calls <= (time.monotonic() - began) / GATHER_S + full
    await store.flush()
    assert await store.find([b"0", b"%d" % (many - 1)]) == [b"1", b"1"]


async def test_what_is_written_makes_room(store, monkeypatch):
    monkeypatch.setattr(remote, "MAX_WAITING_BYTES", 10)
    for _ in range(3):
        store.publish([Entry(b"a", b"1" * 9, 60.0), Entry(b"b", b"1", 60.0)])
        await store.flush()
    assert (store.counters.writes, store.counters.dropped_writes) == (3, 3)


async def test_what_comes_while_others_are_under_way_follows_them(store):
    calls = store.counters.calls
    store.publish([Entry(b"a", b"1", 60.0)])
    async with asyncio.timeout(20):
        while store.counters.calls == calls:
            await asyncio.sleep(0)
        store.publish([Entry(b"b", b"1", 60.0)])
        assert store._writer is not None
        while await store.find([b"b"]) != [b"1"]:
            await asyncio.sleep(GATHER_S)
