"""Views and streams of several gateways as one, and what the control plane asks a history."""

import asyncio
import itertools
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import msgspec
import orjson
import pytest
from aiohttp import web

from gateway.config.load import ConfigError
from gateway.config.telemetry import HistoryConfig
from gateway.core.snapshot import ReplicaView
from gateway.domain.ids import PoolId, ReplicaId
from gateway.server.admin import history_proxy
from gateway.server.admin.history_proxy import HistoryProxy
from gateway.server.aggregator.merged_api import AggregatedControl
from gateway.server.aggregator.merged_events import Positions
from gateway.server.aggregator.merged_views import merge_graphs, merge_snapshots
from gateway.server.auth.client_keys import hash_key
from tests.server.bench import CHAT, get, post


def replica(**values):
    told = {
        "id": "r",
        "pool": "p",
        "is_up": True,
        "running": 0,
        "engine": "vllm",
        "version": None,
        "models": (),
    }
    return ReplicaView(**{**told, "id": ReplicaId("r"), "pool": PoolId("p"), **values})


def snapshot(**values):
    row = {"id": "p", "window": 4.0, "admitted": 2, "gpu_pressure": 0.5, "updates": [{"at_s": 1.0}]}
    tenant = {"id": "t", "pool": "p", "weight": 2.0, "admitted": 1, "lately": 0.5, "waiting": 1}
    views = msgspec.to_builtins([replica(running=1, sessions=2, kv_used=0.2)])
    return {
        "at_s": 5.0, "began_s": 1.0, "seq": 7, "version": "1", "session_count": 1,
        "waiting_by": {"reactive": 1},
        "replicas": views, "pools": [row], "tenants": [tenant], "sessions": [],
        "bounds": [{"bound": "b", "tenant": "t", "used": 0.2}], **values,
    }  # fmt: skip


def test_snapshots_become_one():
    one = snapshot(sessions=[{"id": "a", "last_seen_s": 1.0}, {"id": "both", "last_seen_s": 0.0}])
    other = snapshot(
        at_s=6.0,
        waiting_by={"none": 2},
        bounds=[{"bound": "b", "tenant": "t", "used": 0.3}],
        replicas=msgspec.to_builtins([replica(is_up=False, kv_used=0.3)]),
        sessions=[{"id": "both", "last_seen_s": 4.0}, {"id": "b", "last_seen_s": 3.0}],
        pools=[{**snapshot()["pools"][0], "gpu_pressure": 0.9, "updates": [{"at_s": 0.5}]}],
    )
    told = merge_snapshots([one, other], began_s=0.5, seq="1-7.2-7")
    assert (told["at_s"], told["began_s"], told["seq"]) == (6.0, 0.5, "1-7.2-7")
    assert told["session_count"] == 2 and told["waiting_by"] == {"reactive": 1, "none": 2}
    (there,) = told["replicas"]
    assert there["is_up"] is True and (there["running"], there["sessions"], there["kv_used"]) == (1, 2, 0.3)
    (pool,) = told["pools"]
    assert (pool["window"], pool["admitted"], pool["gpu_pressure"]) == (8.0, 4, 0.9)
    assert [each["at_s"] for each in pool["updates"]] == [0.5, 1.0]
    assert told["bounds"] == [{"bound": "b", "tenant": "t", "used": 0.3}], "each knows the sum"
    assert told["tenants"][0]["admitted"] == 2
    assert [(each["id"], each["last_seen_s"]) for each in told["sessions"]] == [
        ("both", 4.0), ("b", 3.0), ("a", 1.0)
    ]  # fmt: skip
    assert orjson.loads(orjson.dumps(told)) == msgspec.json.decode(msgspec.json.encode(told))


def test_what_came_of_it_is_added_up():
    views = [snapshot(outcome={"sessions": count, "cached_tokens": 5}) for count in (2, 3)]
    told = merge_snapshots(views, began_s=0.0, seq="")
    assert told["outcome"] == {"sessions": 5, "cached_tokens": 10}


def test_no_limit_for_one_is_no_limit():
    rows = [{**snapshot()["pools"][0], "window": window} for window in (4.0, None)]
    told = merge_snapshots([snapshot(pools=[row]) for row in rows], began_s=0.0, seq="")
    assert told["pools"][0]["window"] is None


def test_of_a_graph_the_gateway_that_saw_most_is_shown():
    few, many, other = ({"id": i, "steps": steps} for i, steps in (("a", 2), ("a", 9), ("b", 1)))
    assert merge_graphs([[few, other], [many]]) == [many, other]


def test_positions_are_read_as_they_are_written():
    assert str(Positions.parse("12-0.3-99")) == "3-99.12-0"
    for wrong in ("", "7", "1-2.", "a-1", "1-2,3-4", "²-1", "1-" + "9" * 19):
        with pytest.raises(ValueError, match="after"):
            Positions.parse(wrong)


def test_each_record_has_the_reader_s_position_at_all():
    positions = Positions({1: 120, 2: 88})
    blocks = b"id: 121\nevent: a\ndata: id: 7\n\nid: 122\n\n"
    assert positions.renumbered(1, blocks) == (b"id: 1-121.2-88\nevent: a\ndata: id: 7\n\nid: 1-122.2-88\n\n")
    assert positions.renumbered(2, b"id: 0\nevent: gap\ndata: {}\n\n").startswith(b"id: 1-122.2-0\n")
    assert positions.renumbered(2, b": turnpike\n\n") == b": turnpike\n\n"


async def test_every_path_of_a_gateway_is_answered_for_all(start):
    bench = await start()
    own = set()
    for route in bench.gateway._control.app.router.routes():
        path = route.resource.canonical
        if path == "/turnpike/static":
            path = "/turnpike/static/{file}"
        if route.method != "HEAD":
            own.add((route.method, path))
    routes = AggregatedControl.ROUTES
    assert own == {(method, path.replace(":.*", "")) for method, path, _ in routes}
    assert not [a for a, b in itertools.combinations(routes, 2) if a[:2] == b[:2]]


class FakeHistory:
    def __init__(self) -> None:
        self.status = 200
        self.body = b'{"from": "history"}'
        self.hangs = False
        self.is_released = asyncio.Event()
        self.asked: list[tuple[str, str | None]] = []
        self.url = ""

    async def answer(self, request: web.Request) -> web.Response:
        self.asked.append((request.raw_path, request.headers.get("Authorization")))
        if self.hangs:
            await self.is_released.wait()
        return web.Response(status=self.status, body=self.body, content_type="application/json")


@asynccontextmanager
async def running() -> AsyncIterator[FakeHistory]:
    fake, app = FakeHistory(), web.Application()
    app.router.add_get("/{path:.*}", fake.answer)
    runner = web.AppRunner(app, shutdown_timeout=0.1)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    fake.url = f"http://127.0.0.1:{runner.addresses[0][1]}"
    try:
        yield fake
    finally:
        await runner.cleanup()


@pytest.fixture
async def fake():
    async with running() as fake:
        yield fake


async def asked(bench, path: str):
    return await bench.control(get(path.encode()))


async def served(bench) -> str:
    answer = await bench.ask(post(CHAT))
    assert answer.status == 200
    return answer.get(b"x-turnpike-request").decode()


async def test_questions_are_passed_on_as_they_are(start, fake):
    environ = {"HISTORY_KEY": "tp-history"}
    bench = await start(history={"url": fake.url + "/", "key_env": "HISTORY_KEY"}, environ=environ)
    paths = [
        "/turnpike/history?tenant=a%2Fb&limit=5",
        "/turnpike/turns/r-1",
        "/turnpike/sessions/s%20x%2Fy?before_s=1.5",
    ]
    for path in paths:
        answer = await asked(bench, path)
        assert answer.status == 200 and answer.json() == {"from": "history"}
    assert fake.asked == [(path, "Bearer tp-history") for path in paths]
    fake.status, fake.body = 400, b'{"error": "limit"}'
    assert [(await asked(bench, path)).status for path in paths] == [400] * 3


async def test_what_the_history_does_not_know_memory_may(start, fake):
    bench = await start(history={"url": fake.url})
    turn = await served(bench)
    fake.status, fake.body = 404, b'{"error": "nothing is known"}'
    found = (await asked(bench, f"/turnpike/turns/{turn}")).json()
    assert found["became"]["outcome"] == "finished"
    page = (await asked(bench, f"/turnpike/sessions/{found['known']['session']}")).json()
    assert [each["turn"] for each in page["turns"]] == [turn]
    assert (await asked(bench, "/turnpike/turns/r-none")).status == 404
    assert (await asked(bench, "/turnpike/history")).status == 404


@pytest.mark.parametrize("how", ["hangs", "gone", "fails", "too long"])
async def test_a_history_that_does_not_answer_costs_its_own_answer_alone(start, fake, how, monkeypatch):
    url = "http://127.0.0.1:1" if how == "gone" else fake.url
    bench = await start(history={"url": url, "timeout_s": 0.2})
    fake.hangs, fake.status = how == "hangs", 500 if how == "fails" else 200
    if how == "too long":
        monkeypatch.setattr(history_proxy, "_MAX_BYTES", 5)
    turn = await served(bench)
    answer = await asked(bench, "/turnpike/history")
    assert answer.status == 503 and "error" in answer.json()
    assert (await asked(bench, f"/turnpike/turns/{turn}")).json()["became"]["outcome"] == "finished"
    fake.is_released.set()


async def test_so_many_questions_at_a_time_and_no_more(start, fake):
    bench = await start(history={"url": fake.url, "timeout_s": 5.0})
    fake.hangs = True
    waiting = [asyncio.create_task(asked(bench, "/turnpike/history")) for _ in range(4)]
    async with asyncio.timeout(5):
        while len(fake.asked) < 4:
            await asyncio.sleep(0.01)
    answer = await asked(bench, "/turnpike/history")
    assert answer.status == 503 and b"too many" in answer.body and len(fake.asked) == 4
    await served(bench)
    fake.is_released.set()
    assert [answer.status for answer in await asyncio.gather(*waiting)] == [200] * 4


async def test_without_a_history_memory_answers_for_a_session(start):
    bench = await start()
    turn = await served(bench)
    session = (await asked(bench, f"/turnpike/turns/{turn}")).json()["known"]["session"]
    page = (await asked(bench, f"/turnpike/sessions/{session}")).json()
    assert [each["turn"] for each in page["turns"]] == [turn] and page["session"]["turns"] == 1
    answer = await asked(bench, "/turnpike/history")
    assert answer.status == 404 and b"history.url is not set" in answer.body


async def test_only_who_may_look_may_look_back(start, fake):
    keys = {"control_key_hashes": [hash_key("tp-write")], "control_read_key_hashes": [hash_key("tp-read")]}
    tenants = [{"name": "t", "key_hashes": [hash_key("tp-tenant")]}]
    bench = await start(history={"url": fake.url}, server=keys, tenants=tenants)
    for path in (b"/turnpike/history", b"/turnpike/sessions/s-1"):
        for key in (b"", b"Authorization: Bearer tp-tenant\r\n", b"Authorization: Bearer wrong\r\n"):
            assert (await bench.control(get(path, key))).status == 401
        assert not fake.asked
        answer = await bench.control(get(path, b"Authorization: Bearer tp-read\r\n"))
        assert answer.status == 200 and fake.asked.pop() == (path.decode(), None), "keys are not passed on"


def test_a_key_that_is_not_there_is_named():
    with pytest.raises(ConfigError, match="NOT_SET"):
        HistoryProxy(HistoryConfig(url="http://127.0.0.1:1", key_env="NOT_SET"), {})
