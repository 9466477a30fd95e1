"""KV events of a publisher that loses batches, or dies and comes back with numbers from 0."""

import asyncio
import contextlib
from collections.abc import AsyncIterator

import msgspec
import pytest
from zmq.asyncio import Context
from zmq.constants import SocketType

from gateway.config.upstream import KvEventsConfig
from gateway.domain.ids import ReplicaId
from gateway.upstream import kv_feed
from gateway.upstream.kv_feed import KvFeed
from tests.server.bench import eventually

BLOCK = 16


class Publisher:
    """Frames as vLLM's `ZmqEventPublisher` sends them; the last `buffer` can be replayed."""

    def __init__(self, config: KvEventsConfig, *, buffer: int = 10_000) -> None:
        self._context = Context()
        self._live = self._context.socket(SocketType.PUB)
        self._live.bind(config.endpoint)
        self._router = self._context.socket(SocketType.ROUTER)
        self._router.set_hwm(0)
        if config.replay is not None:
            self._router.bind(config.replay)
        self._buffer = buffer
        self._sent: list[list[bytes]] = []
        self._task = asyncio.create_task(self._replay())

    async def publish(self, session: str, *, is_lost: bool = False) -> None:
        number = len(self._sent)
        stored = {
            "type": "BlockStored", "block_hashes": [number], "block_size": BLOCK, "session_id": session,
        }  # fmt: skip
        frames = [number.to_bytes(8, "big"), msgspec.msgpack.encode([1.0, [stored]])]
        self._sent.append(frames)
        if not is_lost:
            await self._live.send_multipart([b"", *frames])

    def renumber(self) -> None:
        self._sent.clear()

    async def _replay(self) -> None:
        while True:
            client, _, first = await self._router.recv_multipart()
            oldest = max(int.from_bytes(first, "big"), len(self._sent) - self._buffer)
            for frames in self._sent[oldest:]:
                await self._router.send_multipart([client, b"", b"", *frames])
            end = (-1).to_bytes(8, "big", signed=True)
            await self._router.send_multipart([client, b"", b"", end, b""])

    async def close(self) -> None:
        self._task.cancel()
        await asyncio.gather(self._task, return_exceptions=True)
        self._context.destroy(linger=0)


@pytest.fixture
def config(tmp_path) -> KvEventsConfig:
    return KvEventsConfig(endpoint=f"ipc://{tmp_path}/events", replay=f"ipc://{tmp_path}/replay")


@contextlib.asynccontextmanager
async def reports(config: KvEventsConfig, monkeypatch) -> AsyncIterator[list[dict[str, float]]]:
    monkeypatch.setattr(kv_feed, "_REPORT_EVERY_S", 0.02)
    seen: list[dict[str, float]] = []
    feed = KvFeed(
        ReplicaId("a"),
        config,
        lambda _, tokens: seen.append({str(name): each for name, each in tokens.items()}),
    )
    task = asyncio.create_task(feed.run())
    try:
        yield seen
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


async def subscribed(publisher: Publisher, seen: list[dict[str, float]]) -> None:
    before = len(seen)
    while len(seen) == before:
        await publisher.publish("first")
        await asyncio.sleep(0.05)


@pytest.mark.parametrize("has_replay", [True, False])
async def test_an_engine_that_restarts_is_believed_anew(config, monkeypatch, has_replay):
    config = config if has_replay else msgspec.structs.replace(config, replay=None)
    async with reports(config, monkeypatch) as seen:
        publisher = Publisher(config)
        await subscribed(publisher, seen)
        for _ in range(20):
            await publisher.publish("old")
        await eventually(lambda: seen[-1].get("old") == 20 * BLOCK)
        await publisher.close()
        await eventually(lambda: seen[-1] == {})
        count = len(seen)
        publisher = Publisher(config)
        await publisher.publish("new")
        await subscribed(publisher, seen)
        await publisher.publish("new")
        await eventually(lambda: seen[-1].get("new") == (2 if has_replay else 1) * BLOCK)
        assert not any("old" in each for each in seen[count:]), "what the dead engine held"
        await publisher.close()


async def test_numbers_that_begin_anew_on_one_connection_are_another_engine(config, monkeypatch):
    async with reports(config, monkeypatch) as seen:
        publisher = Publisher(config)
        await subscribed(publisher, seen)
        await publisher.publish("old")
        await eventually(lambda: "old" in seen[-1])
        publisher.renumber()
        await publisher.publish("new")
        await eventually(lambda: seen[-1] == {"new": BLOCK})
        await publisher.close()


async def test_lost_batches_are_replayed_and_the_live_one_is_never_dropped(config, monkeypatch):
    async with reports(config, monkeypatch) as seen:
        publisher = Publisher(config, buffer=1500)
        await subscribed(publisher, seen)
        for _ in range(2000):
            await publisher.publish("lost", is_lost=True)
        await publisher.publish("last")
        await eventually(lambda: "last" in seen[-1])
        assert seen[-1] == {"lost": 1499 * BLOCK, "last": BLOCK}, "the newest 1,500 can still be had"
        await publisher.publish("last")
        await eventually(lambda: seen[-1] == {"lost": 1499 * BLOCK, "last": 2 * BLOCK})
        await publisher.close()


async def test_without_replay_nothing_is_believed_behind_a_gap(config, monkeypatch):
    config = msgspec.structs.replace(config, replay=None)
    async with reports(config, monkeypatch) as seen:
        publisher = Publisher(config)
        await subscribed(publisher, seen)
        await publisher.publish("lost", is_lost=True)
        await publisher.publish("last")
        await eventually(lambda: seen[-1] == {"last": BLOCK})
        await publisher.close()
