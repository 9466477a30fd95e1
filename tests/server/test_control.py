"""The control plane: what it tells, to whom by which keys, and what it costs those who are served."""

import asyncio
import base64
import json
import re
from typing import Any

import pytest

from gateway.dashboard.views import Views
from gateway.server.admin import api as control
from gateway.server.admin import events
from gateway.server.admin.access import is_own_host
from gateway.server.auth.client_keys import hash_key
from gateway.telemetry.metrics import Metrics
from tests.server.bench import CHAT, answer, bearer, eventually, get, post, sends
from tests.telemetry.sse import read_events
from tools import metrics_reference

READ, WRITE = "tp-read", "tp-write"
KEYS = {"control_key_hashes": [hash_key(WRITE)], "control_read_key_hashes": [hash_key(READ)]}
FINISH = b"POST /turnpike/sessions/s-none/finish HTTP/1.1\r\nHost: c\r\n%sContent-Length: 0\r\n\r\n"
TOLD = [b"/turnpike/snapshot", b"/metrics", b"/turnpike/graphs", b"/turnpike/turns/r-1", b"/turnpike/"]


@pytest.fixture(autouse=True)
def quick(monkeypatch):
    monkeypatch.setattr(events, "TICK_S", 0.02)


def basic(key: str) -> bytes:
    return b"Authorization: Basic %s\r\n" % base64.b64encode(f"anybody:{key}".encode())


class Listener:
    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader, self.writer = reader, writer
        self.data = b""
        self.head = b""

    @classmethod
    async def open(cls, port: int, query: bytes = b"", headers: bytes = b"") -> "Listener":
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        self = cls(reader, writer)
        writer.write(get(b"/turnpike/events" + query, headers))
        self.head = await reader.readuntil(b"\r\n\r\n")
        return self

    async def until(self, count: int) -> list:
        async with asyncio.timeout(10):
            while len(found := read_events(self.data)) < count:
                size = int(await self.reader.readuntil(b"\r\n"), 16)
                assert size, "the stream ended"
                self.data += (await self.reader.readexactly(size + 2))[:-2]
        return found

    def close(self) -> None:
        self.writer.close()


async def test_read_keys_look_and_write_keys_act(start):
    bench = await start(server=KEYS)
    for path in TOLD:
        assert (await bench.control(get(path))).status == 401
        assert (await bench.control(get(path, basic("wrong")))).status == 401
        for allowed in (bearer(READ), bearer(WRITE), basic(READ)):
            assert (await bench.control(get(path, allowed))).status in (200, 404)
    challenge = (await bench.control(get(b"/turnpike/"))).get(b"www-authenticate")
    assert challenge and challenge.startswith(b"Basic"), "so that a browser asks for the key"
    assert (await bench.control(FINISH % bearer(READ))).status == 403
    assert (await bench.control(FINISH % bearer(WRITE))).status == 404
    assert (await bench.control(FINISH % b"")).status == 401
    for header in (b"Basic !!!", b"Basic /w==", b"Digest x", b"", b"Bearer", b"Bearer \xff", b"tp-read"):
        assert (await bench.control(get(b"/metrics", b"Authorization: %s\r\n" % header))).status == 401
    for path in (b"/turnpike/healthz", b"/turnpike/readyz"):
        assert (await bench.control(get(path))).status == 200, "probes have no keys"


async def test_a_page_of_another_origin_changes_nothing(start):
    bench = await start()
    for of_another in (
        b"Origin: http://evil.example\r\n",
        b"Origin: null\r\n",
        b"Sec-Fetch-Site: cross-site\r\n",
    ):
        assert (await bench.control(FINISH % of_another)).status == 403
    for of_ours in (b"Origin: http://c\r\n", b"Origin: http://c\r\nSec-Fetch-Site: same-origin\r\n", b""):
        assert (await bench.control(FINISH % of_ours)).status == 404, "there is no such session"
    page = await bench.control(get(b"/turnpike/snapshot"))
    assert b"default-src 'self'" in (page.get(b"content-security-policy") or b"")


async def test_events_are_told_live_and_again(start, tmp_path):
    path = tmp_path / "stream.jsonl"
    bench = await start(stream={"path": str(path)})
    listener = await Listener.open(bench.gateway.control_port)
    assert b"text/event-stream" in listener.head
    response = await bench.ask(post())
    turn = (response.get(b"x-turnpike-request") or b"").decode()
    await eventually(lambda: bench.gateway.telemetry._ring.last >= 6)
    last = bench.gateway.telemetry._ring.last
    kept = last - bench.gateway.telemetry._ring.first + 1
    again = await Listener.open(bench.gateway.control_port, b"?after=0")
    told = (await again.until(kept))[:kept]  # more may have come meanwhile
    assert [event.id for event in told] == [str(number) for number in range(1, last + 1)]
    live = await listener.until(5)
    assert [json.loads(e.data)["type"] for e in live] == [e.type for e in live]
    behind = await Listener.open(bench.gateway.control_port, b"", b"Last-Event-ID: %d\r\n" % (last - 2))
    assert (await behind.until(2))[:2] == told[-2:]
    only = await Listener.open(bench.gateway.control_port, b"?after=0&types=routing,gpu_end")
    assert [event.type for event in await only.until(2)] == ["routing", "gpu_end"]
    session = json.loads(told[-1].data)["session"]
    of_it = await Listener.open(bench.gateway.control_port, b"?after=0&session=" + session.encode())
    assert {json.loads(e.data)["session"] for e in await of_it.until(4)} == {session}
    explained = (await bench.control(get(b"/turnpike/turns/" + turn.encode()))).json()
    assert explained["decided"]["outcome"] == "dispatched" and explained["why"]
    assert explained["records"][0]["type"] == "turn_arrive"
    for each in (listener, again, behind, only, of_it):
        each.close()
    await eventually(lambda: bench.gateway.telemetry._events._readers == 0)
    await bench.gateway.stop()
    lines = path.read_bytes().splitlines()
    assert [line.decode() for line in lines[: len(told)]] == [event.data for event in told], "as in the file"


async def test_what_is_not_kept_is_a_gap(start):
    bench = await start(stream={"ring_records": 4})
    for _ in range(3):
        await bench.ask(post())
    listener = await Listener.open(bench.gateway.control_port, b"?after=1")
    ring = bench.gateway.telemetry._ring
    [gap, *rest] = await listener.until(5)
    assert (gap.type, json.loads(gap.data)) == ("gap", {"from": 2, "to": ring.last - 4})
    assert [int(event.id) for event in rest] == list(range(ring.first, ring.last + 1))
    listener.close()


async def test_without_a_ring_nothing_is_kept(start):
    bench = await start(stream={"ring_records": 0})
    await bench.ask(post())
    assert (await bench.control(get(b"/turnpike/events"))).status == 404
    assert (await bench.control(get(b"/turnpike/turns/r-1"))).status == 404
    snapshot = (await bench.control(get(b"/turnpike/snapshot"))).json()
    assert snapshot["seq"] == 0 and snapshot["sessions"][0]["last_turns"] == []


async def test_the_page_of_metrics_has_all_that_a_gateway_exports(start):
    bench = await start()
    await bench.ask(post())
    text = (await bench.control(get(b"/metrics"))).body.decode()
    exported = set(re.findall(r"^# TYPE (turnpike_\S+)", text, re.MULTILINE))
    explained = {row.name for row in metrics_reference.gateway_rows()}
    assert len(exported) > 60
    assert exported - explained == set()


@pytest.mark.parametrize("path", [b"/metrics", b"/turnpike/snapshot?sessions=0"])
@pytest.mark.parametrize(("max_age_s", "made"), [(3600.0, 1), (0.0, 5)])
async def test_what_was_made_for_one_is_given_to_all_who_ask_soon_after(
    start, monkeypatch, path, max_age_s, made
):
    monkeypatch.setattr(control, "_MAX_AGE_S", max_age_s)
    calls: list[str] = []

    def count(kind: type, name: str) -> None:
        make = getattr(kind, name)

        def counted(self: Any) -> bytes:
            calls.append(name)
            return make(self)

        monkeypatch.setattr(kind, name, counted)

    count(Metrics, "render")
    count(Views, "gauges")
    bench = await start(server=KEYS)
    answers = await asyncio.gather(*(bench.control(get(path, bearer(READ))) for _ in range(5)))
    assert [answer.status for answer in answers] == [200] * 5 and len(calls) == made
    assert (await bench.control(get(path))).status == 401, "also while there is a copy"
    assert len(calls) == made


async def test_what_is_asked_wrongly_is_refused(start):
    bench = await start()
    for query in (b"?after=x", b"?after=-1", b"?after=" + b"9" * 30):
        assert (await bench.control(get(b"/turnpike/events" + query))).status == 400


async def test_the_snapshot_tells_turns_replicas_pools_and_tenants(start):
    bench = await start()
    await bench.ask(post(CHAT, headers=b"x-turnpike-session: one\r\n"))
    snapshot = (await bench.control(get(b"/turnpike/snapshot"))).json()
    [session] = snapshot["sessions"]
    assert (session["state"], session["class"], session["turns"]) == ("idle", "reactive", 1)
    [turn] = session["last_turns"]
    assert (turn["outcome"], turn["status"], turn["prompt_tokens"]) == ("finished", 200, 3)
    assert turn["arrived_s"] <= turn["submitted_s"] <= turn["ended_s"]
    assert session["replica"] == turn["replica"] == snapshot["replicas"][0]["id"]
    assert (session["prompt_tokens"], session["output_tokens"]) == (3, 1)
    [pool] = snapshot["pools"]
    assert (pool["id"], pool["admitted"], pool["window"]) == ("default", 1, None)
    [tenant] = snapshot["tenants"]
    assert (tenant["id"], tenant["admitted"], tenant["weight"]) == (session["tenant"], 1, 1.0)
    assert snapshot["seq"] == bench.gateway.telemetry._ring.last
    assert snapshot["outcome"]["sessions"] == 0
    metrics = (await bench.control(get(b"/metrics"))).body.decode()
    assert 'turnpike_ttft_seconds_count{pool="default",class="reactive"} 1.0' in metrics
    assert 'turnpike_slo_turns_total{class="reactive",met="unknown",pool="default"} 1.0' in metrics


async def test_who_does_not_read_holds_up_nobody(start):
    bench = await start(stream={"ring_records": 64})
    idle = [await Listener.open(bench.gateway.control_port) for _ in range(5)]
    client = await bench.connect()
    for _ in range(300):
        assert (await client.ask(post())).status == 200
    for each in idle:
        found = await each.until(1)
        assert found[0].type in ("gap", "session_start", "turn_arrive")
        each.close()


async def test_a_reader_does_not_hold_up_the_end(start):
    bench = await start()
    listener = await Listener.open(bench.gateway.control_port)
    async with asyncio.timeout(5):
        await bench.gateway.stop()
    rest = await listener.reader.read()
    assert rest.endswith(b"0\r\n\r\n"), "it is ended, not cut"
    listener.close()
    await listener.writer.wait_closed()


async def test_a_replica_that_is_ejected_is_seen_with_its_cause_and_until_when(start):
    bench = await start(replicas=2, health={"ejection_s": 60.0, "failures_until_out": 2})
    bench.backends[0].script = sends(answer(b"{}", b"500 Oops"))
    for number in range(12):
        await bench.ask(post(b'{"model":"m","messages":[{"role":"user","content":"%d"}]}' % number))
    told = (await bench.control(get(b"/turnpike/readyz"))).json()
    assert told["ready"] is True and told["down"] == {}
    assert re.fullmatch(r"fails: 500; tried again in (5\d|60) s", told["ejected"].pop("default-0"))
    assert not told["ejected"]
    snapshot = (await bench.control(get(b"/turnpike/snapshot"))).json()
    bad, good = snapshot["replicas"]
    assert bad["is_up"] and bad["ejected"] == "fails: 500"
    assert 50.0 < bad["ejected_until_s"] - snapshot["at_s"] <= 60.0
    assert good["ejected"] is None and good["ejected_until_s"] is None
    for failing, sent in (
        ([], answer(b"{}", b"500 Oops")),
        (["default-1 fails: 500"], answer()),
        ([], answer()),
    ):
        bench.backends[1].script = sends(sent)
        told = (await bench.control(get(b"/turnpike/readyz"))).json()
        snapshot = (await bench.control(get(b"/turnpike/snapshot?sessions=0"))).json()
        assert told["failing"] == failing and told["ready"] is True, "nobody else may take its turns"
        await bench.ask(post())
        await bench.ask(post())


OWN = "localhost LOCALHOST:8081 a.localhost 127.0.0.1:1 [::1]:8081 10.0.0.7 gateway. gateway:80".split()
OF_OTHERS = "gateway.evil.example localhost.evil.example 127.0.0.1.evil.example:8081 [::1 :80".split()


@pytest.mark.parametrize("host", ["", *OWN])
def test_hosts_that_are_our_own(host):
    assert is_own_host(host, {"gateway"})


@pytest.mark.parametrize("host", ["evil.example", "a b", *OF_OTHERS])
def test_hosts_that_anybody_may_have_chosen(host):
    assert not is_own_host(host, {"gateway"})


def asked(path: bytes, *, host: bytes, more: bytes = b"", method: bytes = b"GET") -> bytes:
    return b"%s %s HTTP/1.1\r\nHost: %s\r\nContent-Length: 0\r\n%s\r\n" % (method, path, host, more)


async def test_a_page_whose_name_was_rebound_reads_and_changes_nothing(start):
    bench = await start(server={"control_hosts": ["gateway.internal"]})
    drain = b"/turnpike/replicas/default-0/drain"
    reads = b"/turnpike/snapshot /turnpike/events /metrics /turnpike/ /turnpike/static/main.js".split()
    for method, path in (*((b"GET", path) for path in reads), (b"POST", drain)):
        response = await bench.control(asked(path, host=b"evil.example:8081", method=method))
        assert response.status == 421 and "server.control_hosts" in response.json()["error"], path
    assert [state.is_draining for state in bench.brain.fleet] == [False]
    for host in (b"gateway.internal:8081", b"127.0.0.1", b"localhost:1"):
        assert (await bench.control(asked(b"/turnpike/snapshot", host=host))).status == 200
    assert (await bench.control(asked(b"/turnpike/readyz", host=b"10-0-0-7.pod"))).status == 200


async def test_with_keys_it_is_for_browsers_alone(start):
    bench = await start(server={"control_key_hashes": [hash_key("key")]})
    key = b"Authorization: Bearer key\r\n"
    assert (await bench.control(asked(b"/metrics", host=b"any.name", more=key))).status == 200
    for browser in (b"Sec-Fetch-Site: same-origin\r\n", b"Origin: http://any.name\r\n"):
        assert (await bench.control(asked(b"/metrics", host=b"any.name", more=key + browser))).status == 421
