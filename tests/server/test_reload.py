"""Settings that change while one process serves: taken up whole or not at all, and nothing is forgotten."""

import asyncio
import copy
import gc
import json
import logging
import os

import pytest

from gateway.server.auth.client_keys import hash_key
from gateway.server.http.listener import Listener
from gateway.upstream.health_probes import HealthChecks
from tests.server.bench import answer, bearer, eventually, get, listing, pauses, post, sends
from tests.wire.shapes import assistant, result, user

A, B = "tp-team-a", "tp-team-b"
RELOAD, DIFF = b"/turnpike/settings/reload", b"/turnpike/settings/diff"


def tenant(name: str, *keys: str, **more) -> dict:
    return {"name": name, "key_hashes": [hash_key(key) for key in keys], **more}


def ask_control(path: bytes, body: bytes = b"", headers: bytes = b"") -> bytes:
    head = b"POST %s HTTP/1.1\r\nHost: gw\r\n" % path
    return b"%s%sContent-Length: %d\r\n\r\n%s" % (head, headers, len(body), body)


async def reload(bench, status: int = 200, headers: bytes = b""):
    told = await bench.control(ask_control(RELOAD, headers=headers))
    assert told.status == status, told.body
    return told.json()


async def test_tenants_and_keys_come_and_go_at_once_also_on_open_connections(start):
    bench = await start(tenants=[tenant("a", A)])
    client, stranger = await bench.connect(), await bench.connect()
    assert (await client.ask(post(headers=bearer(A)))).status == 200
    assert (await stranger.ask(post(headers=bearer(B)))).status == 401
    bench.settings["tenants"] = [tenant("b", B)]
    told = await reload(bench)
    assert {each["key"] for each in told["changes"]} >= {"tenants", "tenants[b].key_hashes"}
    assert (await client.ask(post(headers=bearer(A)))).status == 401
    again, late = await bench.connect(), await bench.connect()
    assert (await again.ask(post(headers=bearer(B)))).status == 200
    assert (await late.ask(post(headers=bearer(A)))).status == 401, "known from another connection"


async def test_sessions_are_kept(start):
    message = assistant("call_f81d4fae7dec11d0a765", text=None)
    choice = {"index": 0, "message": message, "finish_reason": "tool_calls"}
    bench = await start(script=sends(answer(json.dumps({"id": "1", "choices": [choice]}).encode())))
    first = await bench.ask(post())
    bench.settings["server"]["shutdown_delay_s"] = 0.0
    bench.settings["pools"][0]["models"] = ["m"]
    await reload(bench)
    told = [user("hi"), message, result("call_f81d4fae7dec11d0a765")]
    second = await bench.ask(post(json.dumps({"model": "m", "messages": told}).encode()))
    assert second.get(b"x-turnpike-session") == first.get(b"x-turnpike-session") is not None
    assert bench.gateway._config.server.shutdown_delay_s == 0.0


async def test_replicas_come_and_go_while_a_request_runs(start):
    may_end = asyncio.Event()
    bench = await start(replicas=2, script=pauses(b"", may_end, answer()))
    late = await bench.another()
    asking = asyncio.ensure_future(bench.ask(post()))
    await eventually(lambda: bench.backends[0].seen or bench.backends[1].seen)
    pool = bench.settings["pools"][0]
    pool["replicas"] = [{"url": late.url, "name": "late"}]
    await reload(bench)
    await eventually(lambda: "late" in {s.facts.id for s in bench.brain.fleet if s.is_up})
    assert (await bench.ask(post(b'{"model":"m","messages":[{"role":"user","content":"other"}]}'))).get(
        b"x-turnpike-replica"
    ) == b"late"
    may_end.set()
    assert (await asking).status == 200
    await eventually(lambda: [s.facts.id for s in bench.brain.fleet] == ["late"])


async def test_a_replica_that_moves_under_its_name_is_another_one(start):
    bench = await start(upstream={"health_period_s": 30.0})
    late = await bench.another()
    late.version, late.models = b'{"version":"0.9.0"}', bench.backend.models
    bench.settings["pools"][0]["replicas"] = [{"url": late.url, "name": "default-0"}]
    await reload(bench)
    await eventually(lambda: all(s.is_up for s in bench.brain.fleet) and len(bench.brain.fleet) == 1)
    assert (await bench.ask(post())).status == 200
    assert late.seen and not bench.backend.seen
    await eventually(lambda: bench.brain.fleet.get("default-0").facts.abilities.version == "0.9.0")
    there = bench.brain.fleet.get("default-0")
    bench.settings["pools"][0]["replicas"] = [{"url": f"{late.url}/v1", "name": "default-0"}]
    await reload(bench)
    assert bench.brain.fleet.get("default-0") is there, "/v1 at the end is left out: it is the same one"


async def test_a_pool_comes_with_its_models_and_goes(start):
    bench = await start(pools=[{"name": "one", "backends": 1, "models": ["m"]}])
    late = await bench.another()
    late.models = listing("n")
    before = copy.deepcopy(bench.settings["pools"])
    bench.settings["pools"] = [*before, {"name": "two", "models": ["n"], "replicas": [{"url": late.url}]}]
    bench.settings["models"] = [{"name": "alias", "targets": [{"model": "n", "pool": "two"}]}]
    await reload(bench)
    await eventually(lambda: len(bench.brain.fleet) == 2 and all(s.is_up for s in bench.brain.fleet))
    for model in (b"n", b"alias"):
        asked = post(b'{"model":"%s","messages":[{"role":"user","content":"hi"}]}' % model)
        assert (await bench.ask(asked)).get(b"x-turnpike-replica") == b"two-0"
    listed = {each["id"] for each in (await bench.ask(get(b"/v1/models"))).json()["data"]}
    assert listed == {"m", "n", "alias"}
    bench.settings["pools"], bench.settings["models"] = before, []
    await reload(bench)
    await eventually(lambda: len(bench.brain.fleet) == 1)
    asked = post(b'{"model":"n","messages":[{"role":"user","content":"hi"}]}')
    assert (await bench.ask(asked)).get(b"x-turnpike-replica") == b"one-0", "the only pool judges itself"


async def test_quotas_and_trust(start):
    bench = await start(tenants=[tenant("a", A, permissions=["scheduling"])])
    bench.settings["tenants"] = [tenant("a", A, quota={"tokens_per_minute": 1})]
    await reload(bench)
    assert bench.brain.sessions.trusted == frozenset()
    statuses = [(await bench.ask(post(headers=bearer(A)))).status for _ in range(3)]
    assert 429 in statuses
    bench.settings["tenants"] = [tenant("a", A)]
    await reload(bench)
    assert (await bench.ask(post(headers=bearer(A)))).status == 200


async def test_limits_receipts_keys_and_what_is_logged(start):
    bench = await start()
    assert (await bench.ask(post())).get(b"x-turnpike-session") is not None
    write = "tp-write"
    bench.settings["server"] |= {
        "debug_headers": False,
        "log_level": "warning",
        "control_key_hashes": [hash_key(write)],
        "limits": {"max_body_bytes": 70},
    }
    await reload(bench)
    logger = logging.getLogger("gateway")
    try:
        assert not logger.isEnabledFor(logging.INFO)
        bench.settings["server"]["log_level"] = "info"
        await reload(bench, 401)
        await reload(bench, headers=bearer(write))
        assert logger.isEnabledFor(logging.INFO)
    finally:
        logger.setLevel(logging.NOTSET)
    assert (await bench.ask(post())).get(b"x-turnpike-session") is None
    assert (
        await bench.ask(post(b'{"model":"m","messages":[{"role":"user","content":"%s"}]}' % (b"x" * 99)))
    ).status == 413


@pytest.mark.parametrize(
    ("section", "wrong", "complaint"),
    [
        ("server", {"debug_headers": 5}, "server.debug_headers"),
        ("server", {"recipts": False}, "server.recipts"),
        ("server", {"listen": "127.0.0.1:1"}, "server.listen: needs a restart"),
        ("shared", {"url": "redis://r"}, "shared.url: needs a restart"),
        ("tenants", [], "tenants: needs a restart"),
        ("pools", [{"replicas": [{"url": "http://a", "api_key_env": "NOT_SET"}]}], "NOT_SET"),
        ("pools", [{"replicas": [{"url": "http://a", "profile": "/nowhere.toml"}]}], "/nowhere.toml"),
        ("pools", [{"replicas": [{"url": "http://a b"}]}], "http://a b"),
        (
            "pools",
            [{"name": "other", "replicas": [{"url": "http://a", "name": "default-0"}]}],
            "default-0 changes its pool",
        ),
    ],
)
async def test_what_is_wrong_changes_nothing_and_is_named(start, section, wrong, complaint):
    bench = await start(tenants=[tenant("a", A)])
    good = copy.deepcopy(bench.settings)
    also = {"server": {**good["server"], "debug_headers": False}, "tenants": [tenant("b", B)]}
    there = good.get(section, {})
    bench.settings |= {**also, section: wrong if isinstance(wrong, list) else {**there, **wrong}}
    assert complaint in (await reload(bench, 409))["error"]
    answered = await bench.ask(post(headers=bearer(A)))
    assert answered.status == 200 and answered.get(b"x-turnpike-session") is not None
    bench.settings.clear()
    bench.settings |= good
    assert (await reload(bench))["changes"] == []


@pytest.mark.parametrize("failing", [(HealthChecks, "apply_config"), (Listener, "apply_config")])
async def test_a_failure_of_ours_is_undone_whole(start, monkeypatch, failing):
    bench = await start(tenants=[tenant("a", A)])
    bench.may_log_errors = True
    kind, name = failing
    real, calls = getattr(kind, name), []

    def fails_once(*arguments, **more):
        calls.append(1)
        if len(calls) == 1:
            raise RuntimeError("a bug")
        return real(*arguments, **more)

    monkeypatch.setattr(kind, name, fails_once)
    bench.settings |= {
        "tenants": [tenant("b", B, quota={"weight": 3.0})],
        "models": [{"name": "alias", "targets": [{"model": "m"}]}],
    }
    assert "a bug" in (await reload(bench, 409))["error"]
    assert (await bench.ask(post(headers=bearer(A)))).status == 200
    assert (await bench.ask(post(headers=bearer(B)))).status == 401
    assert not bench.brain.models.named and bench.brain.admission._weights == {"a": 1.0}
    assert (await reload(bench))["changes"], "and the next time it works"
    assert (await bench.ask(post(headers=bearer(B)))).status == 200


async def test_the_difference_is_shown_and_nothing_changes(start):
    bench = await start()
    pool = f'[[pools]]\nreplicas = [{{ url = "{bench.backend.url}" }}]\n'
    text = f"[server]\ndebug_headers = false\nreuse_port = true\n{pool}"
    told = await bench.control(ask_control(DIFF, text.encode()))
    found = {each["key"]: each for each in told.json()["changes"]}
    assert found["server.debug_headers"] == {
        "key": "server.debug_headers",
        "before": "true",
        "after": "false",
        "needs_restart": False,
    }
    assert found["server.reuse_port"]["needs_restart"] and found["server.listen"]["needs_restart"]
    assert bench.gateway._config.server.debug_headers
    wrong = await bench.control(ask_control(DIFF, b"[server]\nrecipts = false\n"))
    assert wrong.status == 400
    wrong = await bench.control(ask_control(DIFF, (text + "[tenants]\n").encode()))
    assert wrong.status == 400 and "tenants" in wrong.json()["error"]
    assert (await bench.control(ask_control(DIFF))).json()["changes"] == []


async def test_who_did_what_is_recorded_without_secrets(start):
    read, write = "tp-read", "tp-write"
    bench = await start(
        server={"control_key_hashes": [hash_key(write)], "control_read_key_hashes": [hash_key(read)]}
    )
    drain = b"/turnpike/replicas/default-0/drain"
    await bench.control(ask_control(drain, headers=bearer(write)))
    await bench.control(ask_control(drain, b'{"draining": false}', bearer(write)))
    await bench.control(ask_control(RELOAD, headers=bearer(read)))
    await bench.control(ask_control(RELOAD))
    bench.settings["server"]["debug_headers"] = 5
    await reload(bench, 409, bearer(write))
    bench.gateway._on_hangup(bench.gateway.settings)
    reader = bearer(read)
    kept: list = []

    async def has_all() -> bool:
        snapshot = await bench.control(get(b"/turnpike/snapshot", reader))
        assert snapshot.status == 200
        ring = bench.gateway.telemetry._ring
        kept[:] = [json.loads(line) for line in ring.lines_behind(0, 1000) if b'"control"' in line]
        return len(kept) == 6

    async with asyncio.timeout(10):
        while not await has_all():
            await asyncio.sleep(0.01)
    key = hash_key(write)[:19]
    assert [(each["who"], each["what"].rpartition("/")[2], each["outcome"]) for each in kept] == [
        (f"key {key}", "drain", 200),
        (f"key {key}", "drain", 200),
        (f"key {hash_key(read)[:19]}", "reload", 403),
        ("no key", "reload", 401),
        (f"key {key}", "reload", 409),
        ("SIGHUP", "reload", 409),
    ]
    assert all(each["at_s"] > 1e9 for each in kept)
    assert write not in json.dumps(kept) and read not in json.dumps(kept)
    bench.may_log_errors = True


async def held(bench, may_ask: asyncio.Event) -> tuple[int, int]:
    """Descriptors and tasks while nobody asks, less those of the health checks' connections: how many of them
    are kept is by chance. Each is two descriptors and a task here, where both ends are."""
    may_ask.clear()
    replicas = bench.gateway.replica_watch.replicas
    await eventually(lambda: not any(each._idle or each._busy for each in replicas.values()))
    await asyncio.sleep(0.3)
    gc.collect()
    kept = sum(len(backend._writers) for backend in bench.backends)
    found = len(os.listdir("/proc/self/fd")) - 2 * kept, len(asyncio.all_tasks()) - kept
    assert kept <= 2 * len(bench.backends), "a replica's health and its models may be asked side by side"
    may_ask.set()
    return found


@pytest.mark.parametrize("times", [40])
@pytest.mark.slow
async def test_reloads_under_load_fail_no_request_and_leave_nothing_behind(start, times):
    bench = await start(replicas=2, core={"no_replica_wait_s": 10.0}, upstream={"idle_connection_s": 0.2})
    extra = await bench.another()
    pool = bench.settings["pools"][0]
    pool["replicas"] = [{**each, "name": f"set-{n}"} for n, each in enumerate(pool["replicas"])]
    await reload(bench)
    both, statuses, is_over, may_ask = list(pool["replicas"]), [], asyncio.Event(), asyncio.Event()
    may_ask.set()

    async def ask_again_and_again():
        client = await bench.connect()
        while not is_over.is_set():
            await may_ask.wait()
            statuses.append((await client.ask(post())).status)
            await asyncio.sleep(0)

    async def settled() -> tuple[int, int]:
        pool["replicas"] = both
        await reload(bench)
        members = bench.gateway.replica_watch.members
        await eventually(lambda: len(bench.brain.fleet) == 2 and not members._leaving)
        return await held(bench, may_ask)

    asking = asyncio.gather(*(ask_again_and_again() for _ in range(4)))
    try:
        await asyncio.sleep(0.1)
        before = await settled()
        for number in range(times):
            late = {"url": extra.url, "name": f"late-{number}"}
            pool["replicas"] = [*both, late] if number % 2 else both[:1]
            bench.settings["server"]["drain_s"] = float(number)
            await reload(bench)
        after = await settled()
    finally:
        is_over.set()
        may_ask.set()
        await asking
    assert set(statuses) == {200} and len(statuses) > times
    assert after[0] <= before[0] + 3 and after[1] <= before[1] + 1, (before, after)
    health = bench.gateway.replica_watch.health
    assert set(health._wake) == {"set-0", "set-1"} and set(health._facts) == {"set-0", "set-1"}
    assert set(bench.brain.forecasts._replicas) <= {"set-0", "set-1"}
