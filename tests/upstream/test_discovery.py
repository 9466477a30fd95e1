"""Discovery: what a file and DNS say, and what they say when they say nothing."""

import asyncio
import contextlib

import msgspec
import pytest

from gateway.config.upstream import DiscoveryConfig, PoolConfig
from gateway.upstream.discovery import Discovery
from tests.server.bench import eventually


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
