"""The breaker, URLs, and what the wheel holds."""

import tomllib
from fnmatch import fnmatch
from pathlib import Path

import pytest

from gateway.shared_state.breaker import FAILURES, FIRST_WAIT_S, LONGEST_WAIT_S, Breaker
from gateway.shared_state.opening import open_store

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
