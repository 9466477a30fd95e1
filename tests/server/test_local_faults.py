"""The gateway's machine has no descriptor left: that is not its replicas' fault."""

import contextlib
import os
import resource

import pytest

from gateway.upstream import local_faults
from tests.server.bench import eventually, get, post

# No connection is kept, so each request needs a new one; checks are left out, as they would reconnect.
NONE_KEPT = {"max_idle_connections": 0, "health_period_s": 3600}


@contextlib.contextmanager
def no_descriptors():
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    lowest_free = os.dup(0)
    os.close(lowest_free)
    resource.setrlimit(resource.RLIMIT_NOFILE, (lowest_free, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


async def served(bench):
    client = await bench.send(post())
    assert (await client.receive()).status == 200
    return client


@pytest.mark.parametrize("path", [b"/v1/chat/completions", b"/v1/messages", b"/v1/responses"])
async def test_want_of_descriptors_is_a_503_and_leaves_the_replica_up(start, path):
    bench = await start(upstream=NONE_KEPT)
    client = await served(bench)
    sent = len(bench.backend.seen)
    for _ in range(4):
        with no_descriptors():
            client.send(post(path=path))
            response = await client.receive()
        assert response.status == 503 and int(response.get(b"retry-after") or 0) > 0
        error = response.json()["error"]
        assert error.get("code", "local_fault") == "local_fault"
        assert error["type"] == ("overloaded_error" if path == b"/v1/messages" else "server_error")
    assert len(bench.backend.seen) == sent
    (replica,) = bench.brain.fleet
    assert replica.is_up and bench.brain.fleet.health.all_up, "it is not blamed"
    client.send(post())
    assert (await client.receive()).status == 200
    metrics = (await bench.control(get(b"/metrics"))).body
    assert b'turnpike_local_faults_total{kind="file_descriptors"} 12.0' in metrics


async def test_a_session_stays_where_its_kv_cache_is(start):
    bench = await start(replicas=2, upstream=NONE_KEPT)
    named = post(headers=b"x-turnpike-session: s\r\n")
    client = await bench.send(named)
    home = (await client.receive()).get(b"x-turnpike-replica")
    with no_descriptors():
        client.send(named)
        assert (await client.receive()).status == 503
    client.send(named)
    response = await client.receive()
    assert response.get(b"x-turnpike-replica") == home
    assert response.get(b"x-turnpike-reason") == b"session_lives_there"


async def test_a_want_that_lasts_is_named_by_readiness(start, monkeypatch):
    monkeypatch.setattr(local_faults, "LASTING_S", 60.0)
    bench = await start(upstream=NONE_KEPT)
    client = await served(bench)
    with no_descriptors():
        client.send(post())
        await client.receive()
    assert (await bench.control(get(b"/turnpike/readyz"))).json()["failing"] == []
    faults = bench.gateway.observation._local_faults
    first, last = faults._spells["file_descriptors"]
    faults._spells["file_descriptors"] = (first - 60.0, last)
    told = (await bench.control(get(b"/turnpike/readyz"))).json()
    assert told["failing"] == ["connections to replicas (file_descriptors)"]
    client.send(post())
    await client.receive()
    assert (await bench.control(get(b"/turnpike/readyz"))).json()["failing"] == []


async def test_a_check_that_finds_no_descriptor_leaves_the_replica_up(start):
    bench = await start(upstream={**NONE_KEPT, "failures_until_down": 1})
    health = bench.gateway.replica_watch.health
    assert health._session is not None
    (replica,) = bench.gateway.replica_watch.replicas.values()
    await health._session.close()
    health.open()  # without connections
    with no_descriptors():
        await health._check(replica)
    assert [state.is_up for state in bench.brain.fleet] == [True]
    assert (await bench.ask(post())).status == 200
    await bench.backend.close()
    await health._check(replica)
    await eventually(lambda: not any(state.is_up for state in bench.brain.fleet))
