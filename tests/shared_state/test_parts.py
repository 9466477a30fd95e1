"""The store's parts: breaker, URLs, allowances, the fleet's secret, deadlines, what imports what."""

import asyncio
import contextlib
import socket
import subprocess
import sys
import threading
import time
import tomllib
from collections.abc import AsyncIterator, Callable
from fnmatch import fnmatch
from pathlib import Path
from typing import Any

import pytest
import uvloop

from gateway.config.load import ConfigError
from gateway.config.shared import SharedConfig
from gateway.domain.ids import TenantId
from gateway.shared_state import allowances as module
from gateway.shared_state.allowances import Allowances
from gateway.shared_state.breaker import FAILURES, FIRST_WAIT_S, LONGEST_WAIT_S, Breaker
from gateway.shared_state.fleet_secret import WORKERS_SECRET, Seal, SealedStore, derived, fleet_secret
from gateway.shared_state.opening import open_store
from gateway.shared_state.protocol import Entry, StoreUnavailable
from gateway.shared_state.remote import DEADLINE_S, RemoteStore
from lab.evaluation.memory_store import MemoryStore

ROOT = Path(__file__).resolve().parents[2]


def closed() -> Breaker:
    breaker = Breaker()
    breaker.probed(works=True)
    breaker.worked()
    return breaker


def test_a_breaker_opens_after_failures_in_a_row():
    breaker = closed()
    for now in range(FAILURES - 1):
        assert not breaker.failed(began=now, now=now + 0.5)
    breaker.worked()
    for now in range(10, 10 + FAILURES - 1):
        assert not breaker.failed(began=now, now=now + 0.5)
    assert breaker.is_closed
    assert breaker.failed(began=20, now=20.5)
    assert not breaker.is_closed
    assert not breaker.failed(began=21, now=21.5)


def test_probes_wait_longer_and_longer_until_calls_work():
    breaker = closed()
    waits = []
    for _ in range(8):
        waits.append(breaker.wait_s)
        breaker.probed(works=False)
    assert waits[:3] == [FIRST_WAIT_S, 2 * FIRST_WAIT_S, 4 * FIRST_WAIT_S]
    assert max(waits) == LONGEST_WAIT_S
    breaker.probed(works=True)
    assert breaker.is_closed and breaker.wait_s == LONGEST_WAIT_S  # a probe that works is not yet a call
    breaker.worked()
    assert breaker.wait_s == FIRST_WAIT_S


@pytest.mark.parametrize("url", ["http://a", "redis://", "unix:///path", "memory://", "redis+tls://a", "a"])
async def test_other_urls_are_refused(url):
    with pytest.raises(ValueError, match="no store's URL"):
        await open_store(url)


def test_each_script_begins_with_its_keyspace_and_is_shipped():
    package = ROOT / "gateway/shared_state"
    scripts = list(package.glob("lua/*.lua"))
    settings = tomllib.loads((ROOT / "pyproject.toml").read_text())
    shipped = settings["tool"]["setuptools"]["package-data"]["gateway"]
    assert scripts
    for script in scripts:
        assert script.read_text().startswith("-- Keyspace: turnpike:1:"), script
        assert any(fnmatch(str(script.relative_to(ROOT / "gateway")), pattern) for pattern in shipped)


@pytest.mark.slow
def test_without_a_redis_its_library_is_not_imported():
    said = "import sys, gateway.__main__, gateway.server.app; sys.exit('redis' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", said]).returncode == 0


GREEDY, MODEST = TenantId("greedy"), TenantId("modest")
MOST, STAYS_S = 1000.0, 100.0


class Clock:
    now_s = 0.0

    def __call__(self) -> float:
        return self.now_s


@pytest.mark.parametrize("ttl_s", [STAYS_S, 24 * STAYS_S])
def test_of_a_tenant_twice_its_part_stands_at_most_and_its_part_on_the_whole(ttl_s):
    clock = Clock()
    allowances = Allowances(MOST, stays_s=STAYS_S, now=clock)
    written: list[tuple[float, float]] = []
    stood = []
    for step in range(10_000):
        clock.now_s = step / 2
        if allowances.take(GREEDY, 10.0 * ttl_s):
            written.append((clock.now_s, 10.0))
        if step % 50 == 0:
            stood.append(sum(size for at_s, size in written if at_s > clock.now_s - ttl_s))
    assert max(stood) <= 2 * MOST
    assert min(stood[100:]) >= 0.9 * MOST


def test_what_one_takes_is_nothing_to_another():
    allowances = Allowances(MOST, stays_s=STAYS_S, now=Clock())
    assert allowances.take(GREEDY, MOST * STAYS_S) and not allowances.take(GREEDY, 1.0)
    assert allowances.take(MODEST, MOST * STAYS_S)


def test_tenants_are_bounded(monkeypatch):
    monkeypatch.setattr(module, "_MAX_TENANTS", 10)
    allowances = Allowances(MOST, stays_s=STAYS_S, now=Clock())
    for number in range(100):
        assert allowances.take(TenantId(f"t-{number}"), 1.0)
    assert len(allowances._left) == 10


SECRET = b"s" * 32


@pytest.mark.parametrize(
    ("settings", "environ", "why"),
    [
        ({"secret_file": "%s/none"}, {}, "No such file"),
        ({"secret_file": "%s/short"}, {}, "32 characters or more"),
        ({"secret_env": "MINE"}, {}, "environment variable MINE: .* 32 characters"),
        ({}, {}, "need shared.secret_file or shared.secret_env"),
        ({}, {WORKERS_SECRET: "short"}, "32 characters or more"),
    ],
)
def test_a_secret_that_is_missing_or_short_is_refused(tmp_path, settings, environ, why):
    (tmp_path / "short").write_text("hunter2\n")
    config = SharedConfig(**{name: value.replace("%s", str(tmp_path)) for name, value in settings.items()})
    with pytest.raises(ConfigError, match=why):
        fleet_secret(config, environ)


def test_it_is_read_from_where_the_settings_say(tmp_path):
    (tmp_path / "secret").write_text("f" * 32 + "\n")
    environ = {"MINE": "e" * 32, WORKERS_SECRET: "w" * 32}
    settings = [
        SharedConfig(secret_file=str(tmp_path / "secret")),
        SharedConfig(secret_env="MINE"),
        SharedConfig(),
    ]
    assert [fleet_secret(each, environ)[:1] for each in settings] == [b"f", b"e", b"w"]
    assert derived(SECRET, "one") != derived(SECRET, "other") != SECRET


async def test_only_the_fleet_is_read_and_under_the_name_that_it_wrote_to():
    there = MemoryStore(lambda: 0.0)
    ours, strangers = SealedStore(there, SECRET), SealedStore(there, b"t" * 32)
    ours.publish([Entry(b"a", b"1", 9.0), Entry(b"b", b"2", 9.0)])
    assert await ours.find([b"a", b"b", b"c"]) == [b"1", b"2", None]
    sealed = await there.find([ours.name(b"a"), ours.name(b"b")])
    assert b"a" not in there._entries and await strangers.find([b"a"]) == [None]
    for forged in (b"", b"1", sealed[1], Seal(b"t" * 32, "entries").put(b"a", b"1")):
        there.publish([Entry(ours.name(b"a"), forged, 9.0)])
        assert await ours.find([b"a"]) == [None]
        assert await ours.claim(b"a", b"3", 9.0) == b"3" and await ours.find([b"a"]) == [b"3"]
    assert await SealedStore(there, SECRET).claim(b"a", b"4", 9.0) == b"3"


async def test_who_writes_over_another_gateway_hears_of_it_and_not_of_a_forgery():
    there, heard = MemoryStore(lambda: 0.0), []
    ours = SealedStore(there, SECRET)
    ours.on_replaced.append(lambda entry, value: heard.append((entry.key, entry.value, value)))
    there.publish([Entry(ours.name(b"n"), b"forged", 9.0)])
    for value in (b"1", b"1", b"2"):
        ours.publish([Entry(b"n", value, 9.0, True)])
        await ours.flush()
    assert heard == [(b"n", b"2", b"1")]
    ours.publish([Entry(b"n", None, 9.0)])
    assert await ours.find([b"n"]) == [None]


class EchoStore(RemoteStore):
    """A thread answers it at once, also while the event loop stands still; or nobody does."""

    def __init__(self, *, is_dead: bool = False) -> None:
        super().__init__("echo")
        self._ours, self._theirs = socket.socketpair()
        self._answers = threading.Thread(target=self._answer, daemon=True)
        self._is_dead, self._is_connected = is_dead, False

    async def _connect(self) -> None:
        if self._is_connected:
            return
        self._is_connected = True
        self._incoming, self._outgoing = await asyncio.open_connection(sock=self._ours)
        if not self._is_dead:
            self._answers.start()

    def _answer(self) -> None:
        with self._theirs:
            while asked := self._theirs.recv(100):
                self._theirs.sendall(asked)

    async def _ping(self) -> None:
        if not self._is_dead:
            await self._find([b"ping"])

    async def find(self, keys: Any) -> list[bytes | None]:
        return await self._bounded(self._find(keys))

    async def _find(self, keys: Any) -> list[bytes | None]:
        self._outgoing.write(keys[0])
        return [await self._incoming.readexactly(len(keys[0]))]

    async def _disconnect(self) -> None:
        self._outgoing.close()
        await self._outgoing.wait_closed()
        if self._is_dead:
            self._theirs.close()
        else:
            self._answers.join(20)

    _write = None  # type: ignore[assignment]


@contextlib.asynccontextmanager
async def opened(*, is_dead: bool = False) -> AsyncIterator[EchoStore]:
    store = EchoStore(is_dead=is_dead)
    await store.open()
    assert store.is_up
    try:
        yield store
    finally:
        await store.aclose()


async def stall_during_calls() -> None:
    async with opened() as store:
        for _ in range(2 * FAILURES):
            call = asyncio.ensure_future(store.find([b"key"]))
            await asyncio.sleep(0)
            time.sleep(1.25 * DEADLINE_S)
            assert await call == [b"key"]
        assert store.is_up and not store.counters.timeouts


async def call_the_dead() -> None:
    async with opened(is_dead=True) as store:
        for number in range(FAILURES):
            assert store.is_up
            began = time.monotonic()
            with pytest.raises(StoreUnavailable):
                await store.find([b"key"])
            assert time.monotonic() - began >= 0.9 * DEADLINE_S
            assert store.counters.timeouts == number + 1
        assert not store.is_up


@pytest.mark.parametrize("run", [asyncio.run, uvloop.run], ids=["asyncio", "uvloop"])
@pytest.mark.parametrize("play", [stall_during_calls, call_the_dead])
def test_a_stall_of_the_loop_is_not_blamed_on_the_store_and_silence_is(run: Callable, play: Callable) -> None:
    run(play())
