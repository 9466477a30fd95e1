"""The index of an engine's blocks, whatever batches come; and what discovery says of files and DNS."""

import asyncio
import contextlib
from collections.abc import AsyncIterator

import msgspec
import pytest
from zmq.asyncio import Context
from zmq.constants import SocketType

from gateway.config.upstream import DiscoveryConfig, KvEventsConfig, PoolConfig
from gateway.domain.ids import ReplicaId
from gateway.server.replicas.replica_discovery import Discovery
from gateway.upstream import kv_events, kv_feed
from gateway.upstream.kv_events import (
    AllBlocksCleared,
    BlockRemoved,
    BlockStored,
    KvIndex,
    decode_batch,
    number_of,
)
from gateway.upstream.kv_feed import KvFeed
from tests.server.bench import eventually


def stored(*hashes, session="s1", **fields):
    return BlockStored(block_hashes=list(hashes), block_size=32, session_id=session, **fields)


def removed(*hashes, **fields):
    return BlockRemoved(block_hashes=list(hashes), **fields)


def test_a_session_holds_what_was_stored_for_it_and_not_removed():
    index = KvIndex()
    index.apply(0, [stored(1, 2, 3), stored(9, session="s2"), stored(8, session=None)])
    assert index.tokens == {"s1": 96, "s2": 32}
    index.apply(1, [removed(2, 8, 77), stored(1)])
    assert index.tokens == {"s1": 64, "s2": 32}
    index.apply(2, [removed(9)])
    assert index.tokens == {"s1": 64}
    index.apply(3, [AllBlocksCleared()])
    assert not index.tokens and not index._blocks


def test_what_sessions_share_counts_for_each():
    index = KvIndex()
    index.apply(0, [stored(1), stored(1, 2, session="s2")])
    assert index.tokens == {"s1": 32, "s2": 64}
    index.apply(1, [removed(1)])
    assert index.tokens == {"s2": 32}


def test_other_tiers_and_groups_do_not_count():
    index = KvIndex()
    index.apply(0, [stored(1, medium="CPU"), stored(2, group_idx=1), stored(3, medium="GPU", group_idx=0)])
    assert index.tokens == {"s1": 32}
    index.apply(1, [removed(3, medium="CPU"), removed(3, group_idx=1)])
    assert index.tokens == {"s1": 32}


def test_memory_is_bounded(monkeypatch):
    monkeypatch.setattr(kv_events, "_MAX_BLOCKS", 3)
    index = KvIndex()
    index.apply(0, [stored(*range(10))])
    assert len(index._blocks) == 3 and index.tokens == {"s1": 96}
    index.restart()
    index.apply(0, [stored(1, session=f"s{n}") for n in range(20)])
    assert len(index.tokens) == 8


def test_batches_are_read_as_they_are_published():
    event = {
        "type": "BlockStored",
        "block_hashes": [b"x"],
        "block_size": 16,
        "token_ids": [1],
        "lora_id": None,
    }
    payload = msgspec.msgpack.encode([1.5, [event, {"type": "AllBlocksCleared"}]])
    batch = decode_batch(payload)
    assert batch.events == [BlockStored(block_hashes=[b"x"], block_size=16), AllBlocksCleared()]
    with pytest.raises(msgspec.MsgspecError):
        decode_batch(b"nonsense")
    assert number_of((7).to_bytes(8, "big")) == 7 and number_of((-1).to_bytes(8, "big", signed=True)) == -1


def test_what_was_applied_before_changes_nothing():
    index = KvIndex()
    index.apply(0, [stored(1)])
    index.apply(1, [stored(2)])
    index.apply(0, [stored(3)])
    assert index.tokens == {"s1": 64} and index.next == 2


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


@contextlib.asynccontextmanager
async def looking(**settings):
    said = []
    config = msgspec.convert({"period_s": 0.01, **settings}, DiscoveryConfig)
    discovery = Discovery(PoolConfig(name="p", discovery=config), config, lambda *told: said.append(told))
    task = asyncio.create_task(discovery.run())
    try:
        yield said
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


async def test_a_file_is_read_again_and_again(tmp_path, caplog):
    listing = tmp_path / "replicas"
    listing.write_text("# ours\nhttp://a:1\n\nhttp://b:1  # the new one\n")
    async with looking(file=str(listing)) as said:
        await eventually(lambda: said)
        assert said[-1] == ("p", "file", ["http://a:1", "http://b:1"])
        listing.unlink()
        await eventually(lambda: caplog.records)
        told = len(said)
        await asyncio.sleep(0.05)
        assert len(said) == told and len(caplog.records) == 1, "it says nothing, and that is told once"
        listing.write_text("gopher://a:1")
        await eventually(lambda: len(caplog.records) == 2)
        listing.write_text("http://c:1")
        await eventually(lambda: said[-1][2] == ["http://c:1"])


async def test_every_address_of_a_name_is_a_replica():
    async with looking(dns="localhost:8000") as said:
        await eventually(lambda: said)
    assert "http://127.0.0.1:8000" in said[0][2] and said[0][1] == "dns"


async def test_a_name_may_say_its_scheme_and_may_not_resolve(caplog):
    assert DiscoveryConfig(dns="https://vllm.svc:443").address() == ("https", "vllm.svc", 443)
    async with looking(dns="does-not-resolve.invalid:1") as said:
        await eventually(lambda: caplog.records)
    assert not said


def test_a_pool_has_replicas_or_finds_some():
    with pytest.raises(msgspec.ValidationError, match="needs replicas"):
        msgspec.convert({"name": "p"}, PoolConfig)
