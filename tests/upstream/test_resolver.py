"""Which addresses a name has, while DNS is slow or down; when a want of this machine's is told."""

import asyncio
import errno
import socket

import pytest

from gateway.config.upstream import UpstreamConfig
from gateway.domain.ids import PoolId, ReplicaId
from gateway.upstream.errors import LOCAL_KINDS, ConnectFailed, LocalFault, local_kind, lookup_error
from gateway.upstream.local_faults import LASTING_S, LocalFaults
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
        self._resolved_at = -1e9


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
    replica = Replica(ReplicaId("r"), PoolId("p"), address, config=settings, api_key=None)
    replica._resolver = dns
    return replica


@pytest.mark.parametrize("is_slow", [False, True], ids=["down", "slow"])
async def test_no_dns_is_no_fault_of_the_replica(is_slow):
    dns = Scripted()
    dns.fails = not is_slow
    if is_slow:
        dns.may_answer.clear()
    replica = replica_at(9, dns, connect_timeout_s=0.01)
    with pytest.raises(LocalFault):
        await run(ask(replica))
    assert replica.local_faults.counts["dns"] == 1
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


def test_a_want_that_lasts_is_told_until_a_connection_is_made():
    faults = LocalFaults()
    assert dict(faults.counts) == dict.fromkeys(LOCAL_KINDS, 0)
    for now in (0.0, LASTING_S / 2, LASTING_S):
        assert faults.lasting(now=now) == []
        faults.saw("dns", now=now)
    assert faults.lasting(now=LASTING_S) == ["dns"] and faults.counts["dns"] == 3
    assert faults.lasting(now=2.1 * LASTING_S) == [], "nobody has tried for a while"
    faults.connected()
    assert faults.lasting(now=LASTING_S) == []


def test_two_faults_with_nothing_between_them_are_no_lasting_want():
    faults = LocalFaults()
    faults.saw("memory", now=0.0)
    faults.saw("memory", now=100 * LASTING_S)
    assert faults.lasting(now=100 * LASTING_S) == []


@pytest.mark.parametrize(
    ("error", "kind"),
    [
        (OSError(errno.EMFILE, ""), "file_descriptors"),
        (OSError(errno.ENFILE, ""), "file_descriptors"),
        (OSError(errno.EADDRNOTAVAIL, ""), "local_ports"),
        (OSError(errno.ENOBUFS, ""), "memory"),
        (OSError(errno.ENOMEM, ""), "memory"),
        (socket.gaierror(socket.EAI_AGAIN, ""), "dns"),
        (socket.gaierror(socket.EAI_FAIL, ""), "dns"),
        (socket.gaierror(socket.EAI_NONAME, ""), None),
        (ConnectionRefusedError(errno.ECONNREFUSED, ""), None),
        (OSError(errno.EHOSTUNREACH, ""), None),
        (OSError("Multiple exceptions"), None),
        (ValueError(), None),
        (None, None),
    ],
)
def test_what_is_a_want_of_this_machine(error, kind):
    assert local_kind(error) == kind


@pytest.mark.parametrize(
    ("error", "kind"),
    [
        (OSError(errno.EMFILE, ""), "file_descriptors"),
        (OSError(errno.EBUSY, ""), "dns"),
        (ConnectionRefusedError(errno.ECONNREFUSED, ""), "dns"),
        (socket.gaierror(socket.EAI_AGAIN, ""), "dns"),
        (socket.gaierror(socket.EAI_NONAME, ""), None),
    ],
)
def test_a_name_look_up_without_an_answer_is_a_want_of_this_machine_whatever_its_errno(error, kind):
    assert local_kind(lookup_error(error)) == kind
