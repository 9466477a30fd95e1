"""The secret of a fleet: gateways that start agree on one, also when the store has lost it."""

import asyncio

import pytest

from gateway.config.shared import SharedConfig
from gateway.shared_state import fleet_secret as module
from gateway.shared_state.fleet_secret import fleet_secret, keep, standing
from gateway.shared_state.opening import open_shared
from gateway.shared_state.protocol import StoreUnavailable

pytestmark = pytest.mark.slow


def clock() -> float:
    return asyncio.get_running_loop().time()


@pytest.fixture
def config(redis_servers) -> SharedConfig:
    server = redis_servers("plain")
    with server.admin() as admin:
        admin.flushall()
    return SharedConfig(url=server.url, deadline_ms=1000)


async def test_the_first_to_start_agree_on_one(config, monkeypatch):
    monkeypatch.setattr(module, "SETTLES_S", 0.2)
    first, second = await asyncio.gather(*(fleet_secret(config, {}, clock) for _ in range(2)))
    assert first == second and len(first) == 32
    assert await fleet_secret(config, {}, clock) == first


async def test_who_starts_before_the_others_have_reached_an_empty_store_gets_their_secret(config):
    starting = asyncio.ensure_future(fleet_secret(config, {}, clock))
    await asyncio.sleep(2.1)  # by then they ask the store again
    assert not starting.done()
    store = await open_shared(config, {})
    assert await keep(store, b"s" * 32) == b"s" * 32
    assert await starting == b"s" * 32
    assert await keep(store, b"t" * 32) == await standing(store) == b"s" * 32
    await store.aclose()


async def test_without_a_store_there_is_none(monkeypatch):
    monkeypatch.setattr(module, "_PATIENCE_S", 0.3)
    with pytest.raises(StoreUnavailable):
        await fleet_secret(SharedConfig(url="redis://127.0.0.1:1"), {}, clock)
