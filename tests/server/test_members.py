"""Replicas come and go while gateways run, and the last word on one counts at all of them."""

import asyncio
import json
from collections.abc import Mapping
from typing import Any

import pytest

from gateway.core import events as ev
from gateway.domain.ids import ReplicaId
from gateway.server.cluster.drains import Drain, Drains
from tests.server.bench import Message, eventually, get, post
from tests.upstream.api_server import ApiServer, endpoint

DISCOVERY = {"registration": True, "ttl_s": 0.5}


def control(method: bytes, path: bytes, body: bytes = b"") -> bytes:
    return b"%s %s HTTP/1.1\r\nHost: gw\r\nContent-Length: %d\r\n\r\n%s" % (method, path, len(body), body)


def registration(url: str, **fields: str) -> bytes:
    more = "".join(f', "{name}": "{value}"' for name, value in fields.items())
    return control(b"POST", b"/turnpike/replicas", f'{{"url": "{url}"{more}}}'.encode())


def up(bench) -> set[str]:
    return {state.facts.id for state in bench.brain.fleet if state.is_up}


async def served_by(bench) -> set[bytes | None]:
    return {(await bench.ask(post())).get(b"x-turnpike-replica") for _ in range(6)}


async def test_a_replica_registers_is_used_and_leaves_when_it_is_not_heard_of(start):
    bench = await start(pools=[{"name": "default", "backends": 1, "discovery": DISCOVERY}])
    late = await bench.another()
    told: Message = await bench.control(registration(late.url, name="late"))
    assert told.status == 201 and told.json() == {"name": "late", "pool": "default", "ttl_s": 0.5}
    await eventually(lambda: up(bench) == {"default-0", "late"})
    assert b"late" in await served_by(bench)
    assert (await bench.control(registration(late.url))).status == 200
    await eventually(lambda: up(bench) == {"default-0"}, "it was not heard of")
    assert await served_by(bench) == {b"default-0"}
    await eventually(lambda: [s.facts.id for s in bench.brain.fleet] == ["default-0"])
    await eventually(lambda: not bench.gateway.replica_watch.members._leaving)


async def test_it_may_say_that_it_leaves(start):
    bench = await start(pools=[{"name": "default", "backends": 1, "discovery": {**DISCOVERY, "ttl_s": 60}}])
    late = await bench.another()
    await bench.control(registration(late.url, name="late"))
    await eventually(lambda: "late" in up(bench))
    assert (await bench.control(control(b"DELETE", b"/turnpike/replicas/late"))).status == 200
    assert up(bench) == {"default-0"}
    assert (await bench.control(control(b"DELETE", b"/turnpike/replicas/late"))).status == 404
    assert (await bench.control(control(b"DELETE", b"/turnpike/replicas/default-0"))).status == 404


async def test_what_cannot_register(start):
    bench = await start(pools=[{"name": "default", "backends": 1, "discovery": DISCOVERY}])
    for request, status in (
        (registration("gopher://x"), 400),
        (control(b"POST", b"/turnpike/replicas", b"nonsense"), 400),
        (registration("http://x:1", pool="other"), 409),
        (registration("http://x:1", name="default-0"), 409),
    ):
        assert (await bench.control(request)).status == status


async def test_nobody_registers_where_no_pool_takes_registrations(start):
    bench = await start()
    assert (await bench.control(registration("http://x:1"))).status == 409


async def test_a_drained_replica_gets_no_new_turns_until_it_is_wanted_back(start):
    bench = await start(replicas=2)
    drain = b"/turnpike/replicas/default-0/drain"
    assert (await bench.control(control(b"POST", drain))).json() == {"name": "default-0", "draining": True}
    assert await served_by(bench) == {b"default-1"}
    await bench.control(control(b"POST", drain, b'{"draining": false}'))
    assert b"default-0" in await served_by(bench)
    assert (await bench.control(control(b"POST", drain, b"[]"))).status == 400
    assert (await bench.control(control(b"POST", b"/turnpike/replicas/x/drain"))).status == 404


async def test_a_file_names_replicas(start, tmp_path):
    listing = tmp_path / "replicas"
    listing.write_text("")
    discovery = {"file": str(listing), "period_s": 0.05}
    bench = await start(pools=[{"name": "default", "backends": 1, "discovery": discovery}])
    listing.write_text((await bench.another()).url)
    await eventually(lambda: len(up(bench)) == 2)
    assert len(await served_by(bench)) == 2
    listing.write_text("")
    await eventually(lambda: len(up(bench)) == 1)
    assert (await bench.ask(get(b"/v1/models"))).status == 200
    await asyncio.sleep(0)


@pytest.mark.parametrize(("backends", "status"), [(1, 502), (2, 200)])
async def test_one_that_left_after_it_was_chosen_costs_its_request_another_attempt(
    start, monkeypatch, backends, status
):
    bench = await start(pools=[{"name": "default", "backends": backends}])
    handlers = bench.gateway.serving.handlers

    class OneHasLeft(dict):
        asked = 0

        def get(self, replica, default=None):
            self.asked += 1
            return None if self.asked == 1 else super().get(replica, default)

    monkeypatch.setattr(handlers.sender, "replicas", OneHasLeft(handlers.sender.replicas))
    assert (await bench.ask(post())).status == status
    assert handlers.sender.replicas.asked == backends


NAMES = ("", "a\r\nset-cookie: x=1", "a b", "gpü-1", "a\x00", "a/b", "-a", "a\n", "a" * 65, "\x1b[2J", "a:b")
URLS = (
    "http://a b:80",
    "http://gpu/a b",
    "http://gpu/\u00fc",
    "http://gpu\x00:80",
    "http://gpu\x7f:80",
    "http://gpu/\x0b",
    "http://" + "a" * 3000,
    "http://gpu/" + "a" * 3000,
    "http://[::1%25\x01]:80",
)


async def test_a_name_that_may_not_stand_in_a_header_and_such_a_url_are_not_registered(start):
    bench = await start(pools=[{"name": "default", "backends": 1, "discovery": DISCOVERY}])
    good = {"url": bench.backend.url + "1", "name": "late"}
    for wrong in (*({"name": name} for name in NAMES), *({"url": url} for url in URLS)):
        body = json.dumps(good | wrong).encode()
        told = await bench.control(control(b"POST", b"/turnpike/replicas", body))
        assert told.status == 400 and told.json()["error"], wrong
        assert "url" in wrong or "name" in told.json()["error"], wrong
    assert up(bench) == {"default-0"} and (await bench.ask(post())).status == 200


# --- in Kubernetes -------------------------------------------------------------------------------------


async def test_endpoints_of_a_service_join_drain_and_leave(start, tmp_path):
    def slice_of(port: int) -> dict[str, Any]:
        return {"ports": [{"name": "http", "port": port}]}

    (tmp_path / "token").write_text("t-1")
    async with ApiServer().running() as server:
        following = {
            "service": "vllm",
            "namespace": "models",
            "api": server.url,
            "token_file": str(tmp_path / "token"),
        }
        bench = await start(
            pools=[{"name": "default", "backends": 1, "discovery": {"kubernetes": following}}]
        )
        ports = [(await bench.another()).port for _ in range(2)]
        names = [f"default-127-0-0-1-{port}" for port in ports]
        server.put("a", endpoint("127.0.0.1"), **slice_of(ports[0]))
        await eventually(lambda: up(bench) == {"default-0", names[0]})
        await bench.control(control(b"POST", b"/turnpike/replicas/default-0/drain"))
        server.put("b", endpoint("127.0.0.1"), **slice_of(ports[1]))
        await eventually(lambda: up(bench) == {"default-0", *names})
        assert await served_by(bench) == {name.encode() for name in names}

        going = endpoint("127.0.0.1", ready=False, serving=True, terminating=True)
        server.put("a", going, **slice_of(ports[0]))
        await eventually(lambda: bench.brain.fleet.get(names[0]).is_draining)
        assert await served_by(bench) == {names[1].encode()}
        drain = f"/turnpike/replicas/{names[0]}/drain".encode()
        await bench.control(control(b"POST", drain, b'{"draining": false}'))
        assert await served_by(bench) == {names[1].encode()}, "it goes, whatever an operator says"

        server.put("a", endpoint("127.0.0.1"), **slice_of(ports[0]))
        await eventually(lambda: not bench.brain.fleet.get(names[0]).is_draining)
        await bench.control(control(b"POST", drain))
        server.put("a", going, **slice_of(ports[0]))
        server.put("a", endpoint("127.0.0.1"), **slice_of(ports[0]))
        server.put("c", endpoint("127.0.0.1", ready=False), **slice_of(1))
        await asyncio.sleep(0.1)
        assert await served_by(bench) == {names[1].encode()}, "an operator's word stays, too"
        assert bench.brain.fleet.get("default-127-0-0-1-1") is None, "who is not ready does not join"
        assert set(bench.gateway.replica_watch.members.replicas) == {"default-0", *names}

        server.delete("a")
        await eventually(lambda: up(bench) == {"default-0", names[1]})
    assert await served_by(bench) == {names[1].encode()}, "without the API server, too"


X, Y = ReplicaId("x"), ReplicaId("y")


class Gateways:
    """Some, and what stands in their store."""

    def __init__(self, count: int, members: tuple[ReplicaId, ...] = (X, Y)) -> None:
        self.store: dict[ReplicaId, Drain] = {}
        self.members = [set(members) for _ in range(count)]
        self.draining: list[dict[ReplicaId, bool]] = [{} for _ in range(count)]
        self.drains = [self._make(number) for number in range(count)]

    def _make(self, number: int) -> Drains:
        def take(event: ev.Event) -> None:
            assert isinstance(event, ev.ReplicaDrained)
            self.draining[number][event.replica] = event.is_draining

        return Drains(self.members[number], take)

    def tell(self, *numbers: int) -> None:
        for number in numbers:
            missing: Mapping[ReplicaId, Drain | None] = self.drains[number].merge_remote(dict(self.store))
            for replica, drain in missing.items():
                if drain is None:
                    del self.store[replica]
                else:
                    self.store[replica] = drain


def test_who_was_away_cannot_bring_back_what_was_lifted():
    many = Gateways(2)
    many.drains[0].set_local(X, is_draining=True)
    many.tell(0, 1)
    many.drains[1].set_local(X, is_draining=False)
    many.tell(1)
    many.tell(0)
    assert many.draining == [{X: False}] * 2 and many.store == {X: Drain(2, False)}


def test_a_store_that_lost_it_gets_it_again_and_one_that_went_back_is_put_right():
    many = Gateways(2)
    many.drains[0].set_local(X, is_draining=True)
    many.tell(0, 1)
    before = dict(many.store)
    many.drains[0].set_local(X, is_draining=False)
    many.tell(0, 1)
    for lost in ({}, before):
        many.store = dict(lost)
        many.tell(1, 0)
        assert many.store == {X: Drain(2, False)} and many.draining == [{X: False}] * 2


def test_of_two_words_at_once_the_drain_counts():
    many = Gateways(2)
    many.drains[0].set_local(X, is_draining=False)
    many.drains[1].set_local(X, is_draining=True)
    many.tell(0, 1, 0)
    assert many.draining == [{X: True}] * 2


def test_one_that_joins_later_is_drained_at_once():
    many = Gateways(2)
    many.drains[0].set_local(X, is_draining=True)
    many.members[1].discard(X)
    many.tell(0, 1)
    assert many.draining[1] == {}
    many.members[1].add(X)
    many.drains[1].joined(X)
    assert many.draining[1] == {X: True}


def test_one_that_left_all_gateways_is_forgotten():
    many = Gateways(2)
    many.drains[0].set_local(X, is_draining=True)
    many.tell(0, 1)
    many.members[0].discard(X)
    many.drains[0].left(X)
    many.tell(0, 1)
    assert many.store == {X: Drain(1, True)}, "it is a member at the other one"
    many.members[1].discard(X)
    many.drains[1].left(X)
    many.tell(1, 0)
    assert many.store == {}
    many.draining[0].clear()
    many.members[0].add(X)
    many.drains[0].joined(X)
    assert many.draining[0] == {}
