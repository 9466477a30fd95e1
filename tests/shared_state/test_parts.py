"""The breaker, the tables' bounds, URLs, and what the wheel holds."""

import tomllib
from fnmatch import fnmatch
from pathlib import Path

import pytest

from gateway.shared_state.breaker import FAILURES, FIRST_WAIT_S, LONGEST_WAIT_S, Breaker
from gateway.shared_state.memory import MemoryStore, Tables
from gateway.shared_state.opening import open_store
from gateway.shared_state.protocol import Entry

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


def test_calls_under_way_together_fail_once():
    breaker = closed()
    for _ in range(100):
        breaker.failed(began=1.0, now=2.0)
    assert breaker.is_closed


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


def test_tables_are_bounded_and_the_oldest_writes_go_first():
    tables = Tables(lambda: 0.0, max_entries=3)
    for number in range(5):
        tables.claim(b"%d" % number, b"x", 60.0)
    tables.claim(b"2", b"x", 60.0)
    tables.write([Entry(b"5", b"x", 60.0)])
    assert tables.find([b"%d" % number for number in range(6)]) == [None, None, b"x", None, b"x", b"x"]
    assert (len(tables), tables.pushed_out) == (3, 3)


def test_what_lapsed_goes_before_anything_else():
    now = 0.0
    tables = Tables(lambda: now, max_entries=3)
    tables.claim(b"long", b"x", 60.0)
    tables.claim(b"short", b"x", 1.0)
    tables.claim(b"longer", b"x", 90.0)
    now = 2.0
    tables.claim(b"new", b"x", 60.0)
    assert tables.find([b"long", b"short", b"longer", b"new"]) == [b"x", None, b"x", b"x"]
    assert tables.pushed_out == 0


def test_what_lapsed_does_not_pile_up():
    now = 0.0
    tables = Tables(lambda: now)
    for number in range(1000):
        now = float(number)
        tables.claim(b"%d" % number, b"x", 5.0)
    assert len(tables) <= 10


@pytest.mark.parametrize("url", ["http://a", "redis://", "unix://host/path", "unix://", "redis+tls://a", "a"])
async def test_other_urls_are_refused(url):
    with pytest.raises(ValueError, match="no store's URL"):
        await open_store(url, lambda: 0.0)


async def test_memory_is_opened():
    assert isinstance(await open_store("memory://", lambda: 0.0), MemoryStore)


def test_each_script_begins_with_its_keyspace_and_is_shipped():
    package = ROOT / "gateway/shared_state"
    scripts = list(package.glob("lua/*.lua"))
    settings = tomllib.loads((ROOT / "pyproject.toml").read_text())
    shipped = settings["tool"]["setuptools"]["package-data"]["gateway"]
    assert scripts
    for script in scripts:
        assert script.read_text().startswith("-- Keyspace: turnpike:1:"), script
        assert any(fnmatch(str(script.relative_to(ROOT / "gateway")), pattern) for pattern in shipped)
