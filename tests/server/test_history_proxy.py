"""What the control plane asks a history; nothing that one does or does not do holds up the gateway."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest
from aiohttp import web

from gateway.config.history import HistoryConfig
from gateway.config.load import ConfigError
from gateway.server import history_proxy
from gateway.server.history_proxy import HistoryProxy
from gateway.server.tenants import hash_key
from tests.server.bench import CHAT, get, post


class FakeHistory:
    """Answers what it is told to."""

    def __init__(self) -> None:
        self.status = 200
        self.body = b'{"from": "history"}'
        self.hangs = False
        self.is_released = asyncio.Event()
        """Those that hang go on."""
        self.asked: list[tuple[str, str | None]] = []
        """Path and query, and the key."""
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
