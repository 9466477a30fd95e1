"""Stores of every kind, on what really serves them."""

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator

import pytest

from gateway.shared_state.opening import open_store
from gateway.shared_state.protocol import Store
from lab.evaluation.memory_store import MemoryStore
from tests.shared_state.servers import RedisCluster, RedisServer

PATIENCE_S = 5.0
"""A deadline where the test is not about it: the machine may be busy."""

OpenStore = Callable[[], Awaitable[Store]]


@pytest.fixture(scope="session")
def redis_servers(tmp_path_factory) -> Iterator[Callable[[str], RedisServer]]:
    servers: dict[str, RedisServer] = {}

    def server(kind: str) -> RedisServer:
        if kind not in servers:
            servers[kind] = RedisServer(tmp_path_factory.mktemp(kind), kind=kind).start()
        return servers[kind]

    yield server
    for each in servers.values():
        each.kill()


@pytest.fixture(scope="session")
def redis_cluster(tmp_path_factory) -> Iterator[Callable[[], RedisCluster]]:
    started: list[RedisCluster] = []

    def cluster() -> RedisCluster:
        if not started:
            started.append(RedisCluster(tmp_path_factory.mktemp("three")).start())
        return started[0]

    yield cluster
    for each in started:
        each.kill()


@pytest.fixture(
    params=[
        "memory",
        pytest.param("plain", marks=pytest.mark.slow),
        pytest.param("three", marks=pytest.mark.slow),
        pytest.param("secure", marks=pytest.mark.slow),
    ]
)
async def open_another(request, redis_servers, redis_cluster) -> AsyncIterator[OpenStore]:
    opened: list[Store] = []
    memory = MemoryStore(time.monotonic)
    password = None
    if request.param != "memory":
        server = redis_cluster() if request.param == "three" else redis_servers(request.param)
        with server.admin() as admin:
            admin.flushall()
        url, password = server.url, server.password

    async def another() -> Store:
        if request.param == "memory":
            return memory
        opened.append(await open_store(url, password=password, deadline_s=PATIENCE_S))
        return await up(opened[-1])

    yield another
    for store in opened:
        await store.aclose()


async def up(store: Store) -> Store:
    """On a busy machine the first connection can outlast a probe."""
    async with asyncio.timeout(PATIENCE_S):
        while not store.is_up:
            await asyncio.sleep(0.01)
    return store


@pytest.fixture
async def store(open_another) -> Store:
    return await open_another()
