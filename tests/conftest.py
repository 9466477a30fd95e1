"""What every test may use: the shared real engines; and what holds for every run of tests."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import settings
from xdist.scheduler import LoadFileScheduling

from gateway.wire.hashing import hash_secret, seed_hashes
from scripted_engine.guardian import guard

pytest_plugins = ["tests.hangs", "tests.no_skips", "tests.engines", "tests.command"]

# How long an example takes is the machine's affair; one that hangs meets the test's own limit.
settings.register_profile("turnpike", deadline=None)
settings.load_profile("turnpike")
# `make check` takes it by name; see also tests/examples.py.
settings.register_profile("fast", deadline=None, max_examples=settings().max_examples // 5)


def pytest_configure() -> None:
    guard()  # engines, gateways, browsers and agents end with the run, whatever ends that


@pytest.fixture(autouse=True)
def plain_hashes() -> Iterator[None]:
    """A recorder keys the hashes of its process; the next test has those of seed 0 again."""
    yield
    if hash_secret() is not None:
        seed_hashes(0)


_WITH_ENGINES_S = 400
"""The first test that uses the engines waits until they are up: minutes, on a busy machine."""


class ByEngines(LoadFileScheduling):  # type: ignore[misc] # xdist has no types
    """A file's tests run on one worker; those of all files that start real engines, too, and first."""

    def _split_scope(self, nodeid: str) -> str:
        file = str(super()._split_scope(nodeid))
        return "engines" if _starts_engines(file) else file


def _starts_engines(file: str) -> bool:
    text = Path(file).read_text()
    return "from tests.engines import" in text or "from scripted_engine.process import" in text


def pytest_xdist_make_scheduler(config: pytest.Config, log: object) -> ByEngines | None:
    return ByEngines(config, log) if config.option.dist == "loadfile" else None


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """What takes long begins first, so that no worker is left with it at the end."""
    weights = {item.path: 0 for item in items}
    for item in items:
        if item.get_closest_marker("engine") is not None and item.get_closest_marker("timeout") is None:
            item.add_marker(pytest.mark.timeout(_WITH_ENGINES_S))
        weights[item.path] += 100 * (item.get_closest_marker("engine") is not None) + 1
    shared = {path for path in weights if _starts_engines(str(path))}
    items.sort(key=lambda item: (item.path not in shared, -weights[item.path]))
