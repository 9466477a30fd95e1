"""Background work goes on whatever fails; no secret gets out, and nobody passes for another client."""

import asyncio
import logging

import pytest

from gateway.server.auth.client_address import TrustedProxies
from gateway.server.auth.client_keys import hash_key
from gateway.server.runtime import tasks as module
from gateway.server.runtime.tasks import FIRST_PAUSE_S, LONGEST_PAUSE_S, TaskGroup, check_each, pause_s
from gateway.upstream import health_probes as health
from tests.server.bench import eventually, get, post

NESTED = b'{"data":' + b"[" * 200_000
LARGE = b'{"data":[' + b'"%s",' % (b"x" * 1000) * 2000 + b"0]}"


@pytest.mark.parametrize("listing", [NESTED, LARGE], ids=["nested", "large"])
async def test_a_replica_whose_models_cannot_be_read_is_down_and_its_checks_go_on(start, listing):
    bench = await start(upstream={"health_period_s": 0.02, "failures_until_down": 1})
    [state] = bench.brain.fleet
    good, bench.backend.models = bench.backend.models, listing
    await eventually(lambda: not state.is_up, "an unreadable list of models is no failure")
    bench.backend.models = good
    await eventually(lambda: state.is_up, "the checks have ended")
    assert bench.gateway._tasks.failing() == []


async def test_what_is_no_model_is_not_listed(start):
    bench = await start(pools=[{"name": "a", "backends": 1, "models": ["m"]}, {"name": "b", "backends": 1}])
    assert bench.gateway.replica_watch.health.merged_models()["data"] == [{"id": "m", "object": "model"}]
    odd = [{"id": ["m"]}, {"id": "x" * 2000}, {}, 7]
    assert not any(map(health._is_model, odd))


async def test_a_loop_that_fails_is_named_by_readiness_and_counted(start, monkeypatch):
    bench = await start(upstream={"health_period_s": 0.02, "failures_until_down": 1})
    bench.may_log_errors = True

    async def fails(*_: object) -> None:
        raise KeyError("a bug")

    with monkeypatch.context() as patch:
        patch.setattr(bench.gateway.replica_watch.health, "_check", fails)
        await eventually(bench.gateway._tasks.failing)
    ready = await bench.control(get(b"/turnpike/readyz"))
    assert ready.status == 200
    assert ready.json() == {
        "ready": True,
        "failing": ["health checks of default-0"],
        "down": {},
        "ejected": {},
    }
    metrics = await bench.control(get(b"/metrics"))
    lines = metrics.body.decode().splitlines()
    counted = 'turnpike_background_restarts_total{loop="health checks"} '
    [line] = [each for each in lines if each.startswith(counted)]
    assert float(line.removeprefix(counted)) >= 1
    assert 'turnpike_background_restarts_total{loop="client timeouts"} 0.0' in lines
    await bench.backend.close()
    [state] = bench.brain.fleet
    await eventually(lambda: not state.is_up, "the checks were not started again")


def test_pauses_double_up_to_a_bound():
    assert [pause_s(n) for n in (1, 2, 3)] == [FIRST_PAUSE_S, 2 * FIRST_PAUSE_S, 4 * FIRST_PAUSE_S]
    assert pause_s(10_000) == LONGEST_PAUSE_S


class Loop:
    """Fails so many times, then runs on."""

    def __init__(self, failures: int) -> None:
        self.failures, self.runs = failures, 0
        self.is_running = asyncio.Event()

    async def run(self) -> None:
        self.runs += 1
        if self.runs <= self.failures:
            raise RecursionError("deep")
        self.is_running.set()
        await asyncio.Event().wait()


async def test_a_loop_that_fails_is_started_again_and_told_of_once(monkeypatch, caplog):
    monkeypatch.setattr(module, "FIRST_PAUSE_S", 0.001)
    group, loop = TaskGroup(), Loop(failures=3)
    with caplog.at_level(logging.ERROR):
        group.supervise("health checks", loop.run, of="a")
        await asyncio.wait_for(loop.is_running.wait(), 10)
    assert loop.runs == 4 and group.restarts == {"health checks": 3}
    assert [record.message for record in caplog.records] == ["health checks of a failed and is started again"]
    assert caplog.records[0].exc_info is not None
    assert group.failing() == ["health checks of a"]
    await group.cancel()
    assert group.failing() == [] and not len(group)


async def test_a_loop_that_ran_for_long_enough_is_well_and_is_told_of_anew(monkeypatch, caplog):
    monkeypatch.setattr(module, "FIRST_PAUSE_S", 0.0)
    monkeypatch.setattr(module, "CALM_S", 0.0)
    group, loop = TaskGroup(), Loop(failures=2)
    group.supervise("sweep", loop.run)
    await asyncio.wait_for(loop.is_running.wait(), 10)
    assert group.failing() == [] and len(caplog.records) == 2
    await group.cancel()


async def test_a_loop_that_returns_or_is_cancelled_is_over():
    group = TaskGroup()

    async def ends() -> None:
        pass

    await asyncio.wait_for(group.supervise("watch", ends), 10)
    assert group.restarts == {"watch": 0}
    endless = Loop(failures=0)
    task = group.supervise("watch", endless.run)
    await asyncio.wait_for(endless.is_running.wait(), 10)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert endless.runs == 1


def test_an_item_whose_check_raises_is_cut_and_the_others_are_checked(caplog):
    checked, cut = [], []

    def check(item: int) -> None:
        checked.append(item)
        if item == 2:
            raise ValueError("bad")

    def cut_off(item: int) -> None:
        cut.append(item)
        raise OSError("gone already")

    check_each("connection", [1, 2, 3], check, cut_off)
    assert checked == [1, 2, 3] and cut == [2]
    assert [record.message for record in caplog.records] == ["the check of a connection failed"]


CANARY = "canary"


async def test_no_secret_is_in_anything_that_comes_out(start, tmp_path, caplog):
    key_file = tmp_path / "key"
    key_file.write_text(f"{CANARY}-in-a-file")
    found = tmp_path / "replicas"
    found.write_text(f"http://user:{CANARY}-password@gpu:8000/?key={CANARY}-query\n")
    tenant_key, control_key = f"{CANARY}-tenant", f"{CANARY}-control"
    with caplog.at_level(logging.DEBUG):
        bench = await start(
            pools=[
                {"name": "a", "backends": 1, "replica": {"api_key_env": "REPLICA_KEY"}, "models": ["m"]},
                {"name": "b", "backends": 1, "replica": {"api_key_file": str(key_file)}},
                {"name": "c", "backends": 0, "discovery": {"file": str(found), "period_s": 0.01}},
            ],
            tenants=[{"name": "t", "key_hashes": [hash_key(tenant_key)]}],
            server={"control_key_hashes": [hash_key(control_key)]},
            hints={"cache_salt_secret": f"{CANARY}-salt-of-16-bytes"},
            otel={
                "endpoint": "http://127.0.0.1:9/v1/traces",
                "headers": {"x-key": f"{CANARY}-header"},
                "authorization_env": "COLLECTOR_KEY",
            },
            stream={"path": str(tmp_path / "stream")},
            environ={"REPLICA_KEY": f"{CANARY}-replica", "COLLECTOR_KEY": f"{CANARY}-collector"},
        )
        await eventually(lambda: "discovery_failed pool=c" in caplog.text)
        key = f"Authorization: Bearer {tenant_key}\r\n".encode()
        assert (await bench.ask(post(headers=key))).status == 200
        await bench.backends[1].close()
        control = f"Authorization: Bearer {control_key}\r\n".encode()
        told = b""
        for path in (b"/metrics", b"/turnpike/snapshot", b"/turnpike/readyz", b"/turnpike/graphs"):
            told += (await bench.control(get(path, control))).body
        await bench.gateway.stop()
    written = b"".join(path.read_bytes() for path in tmp_path.iterdir() if path not in (key_file, found))
    secrets = [
        CANARY,
        hash_key(tenant_key).removeprefix("sha256:"),
        hash_key(control_key).removeprefix("sha256:"),
    ]
    for secret in secrets:
        assert secret not in caplog.text
        assert secret.encode() not in told + written
    assert b'"type":"gpu_end"' in written and b"turnpike_turns_total" in told
    assert bench.backend.seen[0].get(b"authorization") == f"Bearer {CANARY}-replica".encode()


PROXIES = TrustedProxies(["10.0.0.0/8", "fd00::/8", "192.0.2.1/32"])


def client(peer: str, *values: str, name: bytes = b"X-Forwarded-For") -> str:
    return PROXIES.client_of([(name, value.encode("latin-1")) for value in values], peer)


@pytest.mark.parametrize(
    ("peer", "values", "found"),
    [
        ("10.0.0.1", ["203.0.113.9"], "203.0.113.9"),
        ("10.0.0.1", ["1.2.3.4, 203.0.113.9"], "203.0.113.9"),  # the client's own word is left of its address
        ("10.0.0.1", ["1.2.3.4", "203.0.113.9, 10.9.9.9"], "203.0.113.9"),
        ("10.0.0.1", ["203.0.113.9:4711"], "203.0.113.9"),
        ("10.0.0.1", ["[2001:DB8::1]:4711"], "2001:db8::1"),
        ("::ffff:10.0.0.1", ["203.0.113.9"], "203.0.113.9"),
        ("fd00::1", ["2001:db8::1"], "2001:db8::1"),
        ("10.0.0.1", ["10.2.2.2, 10.3.3.3"], "10.2.2.2"),  # all of them trusted: the farthest
        ("10.0.0.1", ["1.2.3.4, nonsense, 10.3.3.3"], "10.3.3.3"),
        ("10.0.0.1", ["x" * 100_000], "10.0.0.1"),
        ("10.0.0.1", [], "10.0.0.1"),
        ("203.0.113.5", ["1.2.3.4"], "203.0.113.5"),  # not trusted: its word does not count
        ("local", ["1.2.3.4"], "local"),
    ],
)
def test_the_first_address_from_the_right_that_is_no_proxys(peer, values, found):
    assert client(peer, *values) == found


def test_forwarded_counts_where_the_other_header_is_not_there():
    value = 'for=1.2.3.4;proto=http, for="[2001:db8::1]:47011";by=10.0.0.2'
    assert client("10.0.0.1", value, name=b"Forwarded") == "2001:db8::1"
    assert client("10.0.0.1", "for=unknown", name=b"forwarded") == "10.0.0.1"


@pytest.mark.parametrize(("second", "found"), [(b"5.6.7.8, 10.0.0.3", "5.6.7.8"), (b"1.2.3.4", "10.0.0.1")])
def test_of_two_headers_that_disagree_the_client_wrote_one(second, found):
    both = [(b"Forwarded", b"for=5.6.7.8"), (b"x-forwarded-for", second)]
    assert PROXIES.client_of(both, "10.0.0.1") == found


def test_a_long_chain_is_not_walked_to_its_end():
    assert client("10.0.0.1", ", ".join(["203.0.113.9", *["10.0.0.2"] * 100])) == "10.0.0.2"


def test_without_trusted_proxies_nothing_counts():
    none = TrustedProxies([])
    assert none.client_of([(b"X-Forwarded-For", b"1.2.3.4")], "10.0.0.1") == "10.0.0.1"


def test_what_is_no_network():
    with pytest.raises(ValueError, match="host bits"):
        TrustedProxies(["10.0.0.1/8"])
