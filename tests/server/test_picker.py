"""A picker behind a real Envoy: the same decisions as the proxy's, and what happens when something breaks."""

import asyncio
import contextlib
import json
import re

import pytest

from tests.envoy import DESTINATION, envoy
from tests.server.bench import (
    CHAT,
    CHAT_ANSWER,
    DELTA,
    DONE,
    STREAM_HEAD,
    Bench,
    Client,
    answer,
    chunk,
    eventually,
    post,
    sends,
)

pytestmark = pytest.mark.slow
KEY = "tp-secret"


class PickerBench(Bench):
    """Clients come through Envoy."""

    is_picker = True
    port = 0

    async def connect(self, **options) -> Client:
        reader, writer = await asyncio.open_connection("127.0.0.1", self.port, limit=1 << 24, **options)
        client = Client(reader, writer)
        self._clients.append(client)
        return client


@pytest.fixture
async def picked(tmp_path):
    async with contextlib.AsyncExitStack() as open_things:

        async def start(*, replicas: int = 2, ways: dict | None = None, **settings) -> PickerBench:
            bench = PickerBench()
            await bench.start(replicas=replicas, picker={"listen": "127.0.0.1:0"}, **settings)
            open_things.push_async_callback(bench.finish)
            ports = [backend.port for backend in bench.backends]
            bench.port = await open_things.enter_async_context(
                envoy(tmp_path, bench.gateway.picker_port, ports, **(ways or {}))
            )
            return bench

        yield start


async def test_a_request_goes_where_the_brain_says(picked):
    bench = await picked()
    told = await bench.ask(post())
    assert told.status == 200 and told.body == CHAT_ANSWER
    name = told.get(b"x-turnpike-replica").decode()
    backend = bench.backends[int(name.rpartition("-")[2])]
    (seen,) = backend.seen
    assert seen.body == CHAT and seen.get(DESTINATION.encode()) == b"127.0.0.1:%d" % backend.port
    assert told.get(b"x-turnpike-source") == b"none" or told.get(b"x-turnpike-session")
