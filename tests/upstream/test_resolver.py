"""Which addresses a replica's name has, while DNS is slow or down."""

import asyncio
import socket

import pytest

from gateway.config.upstream import UpstreamConfig
from gateway.domain.ids import PoolId, ReplicaId
from gateway.upstream.errors import ConnectFailed, LocalFault
from gateway.upstream.replica import Address, Replica
from gateway.upstream.resolver import Resolver
from tests.server.bench import eventually
from tests.upstream.test_exchange import Server, ask, run


class Scripted(Resolver):
    """With a DNS whose faults can be had at will."""

    def __init__(self, port=0):
        super().__init__("gpu", port)
        self.answer: tuple[str, ...] = ("10.0.0.1", "10.0.0.2")
        self.fails = False
        self.asked = 0
        self.may_answer = asyncio.Event()
        self.may_answer.set()

    async def _look_up(self):
        self.asked += 1
        await self.may_answer.wait()
        if self.fails:
            raise socket.gaierror(socket.EAI_AGAIN, "down")
        return self.answer

    def grow_old(self):
        self._asked_at = -1e9


async def test_an_address_needs_no_dns():
    assert await Resolver("127.0.0.1", 1).addresses() == ("127.0.0.1",)
    assert await Resolver("::1", 1).addresses() == ("::1",)
    assert await Resolver("127.0.0.1", 1).others(("127.0.0.1",)) == ()


async def test_a_name_has_its_addresses_once_each():
    found = await Resolver("localhost", 1).addresses()
    assert found and len(set(found)) == len(found) and set(found) <= {"127.0.0.1", "::1"}


async def test_those_who_come_together_ask_once():
    dns = Scripted()
    dns.may_answer.clear()
    asking = [asyncio.ensure_future(dns.addresses()) for _ in range(20)]
    await asyncio.sleep(0)
    dns.may_answer.set()
    assert await asyncio.gather(*asking) == [dns.answer] * 20 and dns.asked == 1
    await dns.addresses()
    assert dns.asked == 1, "it is fresh"


async def test_what_is_known_is_used_while_dns_is_slow():
    dns = Scripted()
    before = await dns.addresses()
    dns.answer = ("10.0.0.3",)
    dns.may_answer.clear()
    dns.grow_old()
    assert await dns.addresses() == before
    assert await dns.addresses() == before
    dns.may_answer.set()
    assert await dns.others(before) == ("10.0.0.3",) and await dns.addresses() == ("10.0.0.3",)
    assert dns.asked == 2


async def test_what_is_known_is_used_while_dns_is_down():
    dns = Scripted()
    dns.fails = True
    with pytest.raises(OSError, match="down"):
        await dns.addresses()
    dns.fails = False
    known = await dns.addresses()
    dns.fails = True
    dns.grow_old()
    assert await dns.addresses() == known and await dns.others(known) == ()


def replica_at(port, dns, **config):
    address = Address.parse(f"http://gpu:{port}")
    settings = UpstreamConfig(**config)
    replica = Replica(ReplicaId("r"), PoolId("p"), address, config=settings, api_key=None, tls=None)
    replica._resolver = dns
    return replica


@pytest.mark.parametrize("is_slow", [False, True], ids=["down", "slow"])
async def test_no_dns_is_no_fault_of_the_replica(is_slow):
    dns = Scripted()
    dns.fails = not is_slow
    if is_slow:
        dns.may_answer.clear()
    replica = replica_at(9, dns, connect_timeout_s=0.01)
    with pytest.raises(LocalFault) as failed:
        await run(ask(replica))
    assert failed.value.kind == "dns" and replica.local_faults.counts["dns"] == 1
    replica.close()


async def test_a_replica_that_goes_while_its_name_is_looked_up_is_a_failed_connection_and_no_cancellation():
    dns = Scripted()
    dns.may_answer.clear()
    replica = replica_at(9, dns)
    asking = [asyncio.ensure_future(run(ask(replica))) for _ in range(3)]
    await eventually(lambda: dns.asked)
    replica.close()
    for each in await asyncio.gather(*asking, return_exceptions=True):
        assert isinstance(each, ConnectFailed)


async def test_a_replica_that_moved_is_found_at_once():
    """Its old address refuses, the new one is not known yet, and was asked for long ago."""
    async with Server() as server:
        port = server.replica.address.port
        dns = Scripted()
        dns.answer = ("127.0.0.2",)  # nobody listens there
        replica = replica_at(port, dns)
        with pytest.raises(ConnectFailed):
            await run(ask(replica))
        dns.answer = ("127.0.0.1",)
        dns.grow_old()
        await run(ask(replica))
        assert server.requests == 1
        replica.close()
