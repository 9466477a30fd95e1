"""What engines say of themselves is asked for, and never needed."""

import asyncio
import contextlib

import msgspec
from aiohttp import web

from gateway.config.upstream import UpstreamConfig
from gateway.domain.engine import EngineSignals, SessionKv
from gateway.domain.fleet import Abilities, ReplicaFacts
from gateway.domain.ids import PoolId, ReplicaId, SessionId
from gateway.upstream.engine_watch import EngineWatch
from gateway.upstream.replica import Address, Replica
from tests.server.bench import eventually

A = ReplicaId("a")
VLLM = ReplicaFacts(id=A, pool=PoolId("pool"), abilities=Abilities(engine="vllm"))
OTHER = ReplicaFacts(id=A, pool=PoolId("pool"))
CONFIG = UpstreamConfig(engine_period_s=0.01, health_timeout_s=0.5)


class Engine:
    """Answers `/metrics` and `/turnpike/kv`."""

    def __init__(self) -> None:
        self.status, self.asked, self.delay_s = 200, 0, 0.0
        self.headers: dict[str, str] = {}
        self.asked_for_sessions = 0
        self.holdings = "{}"

    async def metrics(self, request: web.Request) -> web.Response:
        self.asked += 1
        self.headers = dict(request.headers)
        await asyncio.sleep(self.delay_s)
        return web.Response(text="vllm:num_requests_waiting 4\n", status=self.status)

    async def kv(self, request: web.Request) -> web.Response:
        self.asked_for_sessions += 1
        return web.Response(text=self.holdings)


@contextlib.asynccontextmanager
async def watched(engine: Engine, *, key=None, **asked):
    app = web.Application()
    app.router.add_get("/metrics", engine.metrics)
    app.router.add_get("/turnpike/kv", engine.kv)
    runner = web.AppRunner(app)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    port = runner.addresses[0][1]
    replica = Replica(
        A,
        PoolId("pool"),
        Address.parse(f"http://127.0.0.1:{port}"),
        config=CONFIG,
        api_key=key,
        tls=None,
    )
    told: list[tuple[ReplicaId, EngineSignals]] = []
    watch = EngineWatch({replica.id: replica}, CONFIG, on_report=lambda *report: told.append(report), **asked)
    await watch.close()  # before it began
    watch.open()
    tasks = [asyncio.create_task(watch.watch(replica))]
    try:
        yield watch, told, runner
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await watch.close()
        await runner.cleanup()


async def test_a_vllm_that_is_up_is_asked_again_and_again():
    engine = Engine()
    async with watched(engine, key="secret") as (watch, told, _):
        await asyncio.sleep(0.05)
        assert engine.asked == 0
        watch.came_up(VLLM)
        await eventually(lambda: len(told) >= 2)
        assert told[0] == (A, EngineSignals(waiting=4))
        assert engine.headers["Authorization"] == "Bearer secret"
        watch.went_down(A)
        await asyncio.sleep(0.05)
        before = len(told)
        await asyncio.sleep(0.1)
        assert len(told) == before


async def test_others_are_not_asked():
    engine = Engine()
    async with watched(engine) as (watch, told, _):
        watch.came_up(VLLM)
        watch.came_up(OTHER)
        await asyncio.sleep(0.1)
        assert engine.asked == 0 and not told


async def test_one_that_does_not_answer_is_asked_again_later():
    engine = Engine()
    engine.status = 404
    async with watched(engine) as (watch, told, runner):
        watch.came_up(VLLM)
        await eventually(lambda: engine.asked == 1)
        engine.status = 200
        await asyncio.sleep(0.1)
        assert engine.asked == 1 and not told
        await eventually(lambda: bool(told))
        await runner.cleanup()
        await asyncio.sleep(0.05)


async def test_what_it_said_after_it_left_is_not_told():
    engine = Engine()
    engine.delay_s = 0.1
    async with watched(engine) as (watch, told, _):
        watch.came_up(VLLM)
        await eventually(lambda: engine.asked == 1)
        watch.went_down(A)
        await asyncio.sleep(0.3)
        assert not told


async def test_what_sessions_hold_is_asked_for_while_somebody_looks():
    engine = Engine()
    looks, held = False, []
    plugin = msgspec.structs.replace(VLLM, abilities=Abilities(engine="vllm", turnpike_hints=True))
    asked = {"on_holdings": lambda _, told: held.append(told), "is_looked_at": lambda: looks}
    async with watched(engine, **asked) as (watch, told, _):
        watch.came_up(plugin)
        await eventually(lambda: len(told) >= 3)
        assert not engine.asked_for_sessions and not held
        looks = True
        await eventually(lambda: bool(held))
        assert held[0] == (), "it said nothing that could be read"
        engine.holdings = (
            '{"v":1,"block_size":16,"blocks":{"total":9},"sessions":'
            '{"s-1":{"retained":2,"running":0,"resident":5},"s-2":{"retained":0,"resident":0}}}'
        )
        await eventually(lambda: held[-1] != ())
        assert held[-1] == (SessionKv(session=SessionId("s-1"), resident_tokens=80, retained_tokens=32),)
        watch.came_up(VLLM)
        count = engine.asked_for_sessions
        await asyncio.sleep(0.1)
        assert engine.asked_for_sessions <= count + 1, "the plugin is gone"
