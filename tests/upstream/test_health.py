"""What is up, what only answers, what is said of it; what engines say is asked for, and never needed."""

import asyncio
import contextlib
import socket

import msgspec
import pytest
from aiohttp import web

from gateway.cli.doctor import examine_url
from gateway.cli.examine import _checked
from gateway.cli.findings import findings
from gateway.config.upstream import UpstreamConfig
from gateway.domain.engine import EngineSignals, PluginFeature, PluginReport, SessionKv
from gateway.domain.fleet import Abilities, ReplicaFacts
from gateway.domain.ids import PoolId, ReplicaId, SessionId
from gateway.upstream.engine_watch import EngineWatch
from gateway.upstream.health_probes import _NOWHERE, _SERVED, HealthChecks
from gateway.upstream.replica import Address, Replica
from tests.server.bench import Backend, Message, answer, eventually, listing

MODELS = answer(listing("m"))


def status(code: int, header: bytes = b"Location: /login") -> bytes:
    return answer(b"{}", status=b"%d X" % code, headers=b"%s\r\n" % header)


class Server(Backend):
    """Answers each path with the bytes of a table, and `rest` to any other."""

    def __init__(self, table: dict[str, bytes], rest: bytes) -> None:
        super().__init__()
        self.table, self.rest = table, rest
        self.checks: list[Message] = []

    async def _answer_check(self, request, writer) -> bool:
        self.checks.append(request)
        method, target, _ = request.first_line.decode().split(" ")
        table = self.table
        writer.write(table.get(f"{method} {target}") or table.get(target) or self.rest)
        return True


class SlowServer(Server):
    async def _answer_check(self, request, writer) -> bool:
        await asyncio.sleep(0.05)
        return await super()._answer_check(request, writer)


async def first_word(url: str, key: str | None = None) -> str:
    """What the first check says: `up`, or why not."""
    config, address = UpstreamConfig(), Address.of_backend(url)
    replica = Replica(ReplicaId("r"), PoolId("p"), address, config=config, api_key=key)
    facts, why = await _checked(replica, config)
    return "up" if facts is not None else why


CHAT = "/v1/chat/completions"
PAGE = answer(b"\n<!DOCTYPE html><p>Hello", headers=b"Content-Type: text/html; charset=utf-8\r\n")
BARE_PAGE = answer(b"\xef\xbb\xbf <html>")
IS_PAGE = "an OpenAI API answers JSON: is this the address of"
SERVERS: dict[str, tuple[dict[str, bytes], int | bytes, str | None, str]] = {
    "vLLM": ({"/health": answer(b""), "/v1/models": MODELS}, 404, None, "up"),
    "vLLM, our key": ({"/health": answer(b""), "/v1/models": MODELS}, 404, "k", "up"),
    "vLLM, a client's key": ({"/health": answer(b""), "/v1/models": status(401)}, 401, None, "up"),
    "vLLM, a wrong key of ours": ({"/health": answer(b"")}, 401, "k", "401 at /v1/models): is the API key"),
    "Ollama, LiteLLM": ({"/v1/models": MODELS}, 404, None, "up"),
    "a proxy that wants clients' keys": ({}, 401, None, "up"),
    "a proxy that wants clients' keys for /v1": ({"/v1/models": status(401)}, 404, None, "up"),
    "a proxy that refuses our key": ({}, 403, "k", "403 at /health, 403 at /v1/models): is the API key"),
    "a key of ours that may not list": ({"/v1/models": status(403), CHAT: status(405)}, 404, "k", "up"),
    "an engine that loads": ({"/v1/models": status(503)}, 404, None, "up"),
    "/health alone": ({"/health": answer(b"")}, 404, None, "up"),
    "no check's path, by FastAPI": ({CHAT: status(405)}, 404, None, "up"),
    "no check's path, by Express": ({f"OPTIONS {CHAT}": answer(b"POST")}, 404, None, "up"),
    "no check's path, by a router": ({f"OPTIONS {CHAT}": status(405)}, 404, None, "up"),
    "405 to whatever it is asked by OPTIONS": (
        {f"OPTIONS {each}": status(405) for each in (*_SERVED, _NOWHERE)}, 404, None, "404 at /health",
    ),
    "a page to all but POST": (
        {f"OPTIONS {CHAT}": status(405, b"Allow: POST"), f"OPTIONS {_NOWHERE}": status(405, b"Allow: GET")},
        PAGE, None, "up",
    ),
    "a page to all but POST, which it takes everywhere": (
        {f"OPTIONS {each}": status(405, b"Allow: POST") for each in (*_SERVED, _NOWHERE)},
        PAGE, None, IS_PAGE,
    ),
    "embeddings alone": ({"/v1/embeddings": status(405)}, 404, None, "up"),
    "rerankings alone": ({"/v1/rerank": status(405)}, 404, None, "up"),
    "its own API alone": ({"/generate": status(405)}, 404, None, "up"),
    "Python's http.server": ({}, 501, None, "up"),
    "nothing": ({}, 404, None, "404 at /health, 404 at /v1/models): is its URL that of the server's root"),
    "a login": ({}, 302, None, "302 at /health, 302 at /v1/models): give the URL that it redirects to"),
    "nothing but POST": ({CHAT: status(404)}, 405, None, "up"),
    "POST elsewhere": (
        {"/health": status(405), "/v1/models": status(405)}, 404, None, "405 at /health, 405 at /v1/models)",
    ),
    "a page, whatever it is asked": ({}, PAGE, None, f"HTML at /health, HTML at /v1/models): {IS_PAGE}"),
    "a page without a type": ({}, BARE_PAGE, None, f"HTML at /health, HTML at /v1/models): {IS_PAGE}"),
    "a page, by Express": (
        {f"OPTIONS {each}": answer(b"GET,HEAD") for each in (*_SERVED, _NOWHERE)}, PAGE, None, IS_PAGE,
    ),
    "a page, with a key of ours": ({}, PAGE, "k", IS_PAGE),
    "a page beside /health": ({"/health": answer(b"")}, PAGE, None, "200 at /health, HTML at /v1/models)"),
    "a page at /health": ({"/health": PAGE}, 404, None, f"HTML at /health, 404 at /v1/models): {IS_PAGE}"),
    "text, whatever it is asked": ({}, answer(b"Hello, world"), None, IS_PAGE),
    "text at a list's path, and OPTIONS everywhere": (
        {f"OPTIONS {each}": answer(b"") for each in (*_SERVED, _NOWHERE)} | {"/v1/models": answer(b"no")},
        404, None, "up",
    ),
    "a list as Python writes it": (
        {"/v1/models": answer(b'\xef\xbb\xbf{"data": [{"id": "m", "x": NaN}]}')}, 404, None, "up",
    ),
    "a list in UTF-16": ({"/v1/models": answer('{"data": []}'.encode("utf-16"))}, 404, None, "up"),
    "a list in latin-1": ({"/v1/models": answer(b'{"data": [{"id": "caf\xe9"}]}')}, 404, None, "up"),
    "a login that is a page, beside a list": ({"/health": PAGE, "/v1/models": MODELS}, 404, None, "up"),
    "a page beside an engine": ({CHAT: status(405)}, PAGE, None, "up"),
    "a word at /health": ({"/health": answer(b"OK"), "/v1/models": MODELS}, 404, None, "up"),
    "gone": ({}, 410, None, "410 at /health"),
}  # fmt: skip


@pytest.mark.parametrize(("table", "rest", "key", "word"), SERVERS.values(), ids=SERVERS)
async def test_what_answers_is_up_unless_it_clearly_is_no_engine(caplog, table, rest, key, word):
    server = Server(table, rest if isinstance(rest, bytes) else status(rest))
    await server.open()
    try:
        found = await first_word(server.url, key)
        assert found == word if word == "up" else word in found
        wants_key = key is None and table.get("/v1/models", rest) in (401, status(401))
        assert ("replica_wants_key" in caplog.text) == wants_key
        assert all(not each.first_line.startswith(b"POST") for each in server.checks), "nothing is generated"
    finally:
        await server.close()


async def test_doctor_names_a_page_and_what_to_do():
    server = Server({}, PAGE)
    await server.open()
    try:
        (found,) = findings(await examine_url(server.url, UpstreamConfig()))
        assert found.level == "bad" and "HTML at /health" in found.what and IS_PAGE in (found.do or "")
    finally:
        await server.close()


@pytest.mark.parametrize(("timeout_s", "cause"), [(0.3, "no answer for 0.3 s"), (60.0, "no answer for 3 s")])
async def test_who_accepts_and_stays_silent_is_named_once_it_is_late(timeout_s, cause):
    writers: list[asyncio.StreamWriter] = []
    silent = await asyncio.start_server(lambda _, writer: writers.append(writer), "127.0.0.1", 0)
    url = f"http://127.0.0.1:{silent.sockets[0].getsockname()[1]}"
    config = UpstreamConfig(health_timeout_s=timeout_s)
    replica = Replica(ReplicaId("r"), PoolId("p"), Address.of_backend(url), config=config, api_key=None)
    causes: asyncio.Queue[str] = asyncio.Queue()
    checks = HealthChecks(
        {replica.id: replica},
        config,
        on_up=lambda _: causes.put_nowait("up"),
        on_down=lambda _, why: causes.put_nowait(why),
        on_late=lambda _, why: causes.put_nowait(why),
        has_several_pools=False,
    )
    watching = asyncio.create_task(checks.watch(replica))
    try:
        async with asyncio.timeout(min(timeout_s, 3.0) + 2.0):
            assert await causes.get() == cause
    finally:
        watching.cancel()
        await checks.close()
        silent.close()
        for each in writers:
            each.close()


async def test_doctor_waits_for_whoever_is_late(monkeypatch):
    monkeypatch.setattr("gateway.upstream.health_probes._LATE_S", 0.01)
    server = SlowServer({}, MODELS)
    await server.open()
    try:
        assert await first_word(server.url) == "up"
    finally:
        await server.close()


async def test_an_address_with_a_zone_is_asked_like_any_other():
    server = Server({"/p/health": answer(b""), "/p/v1/models": MODELS}, status(404))
    server.host = "::1"
    await server.open()
    try:
        assert await first_word(f"http://[::1%251]:{server.port}/p") == "up"
        assert {each.get(b"host") for each in server.checks} == {b"[::1]:%d" % server.port}
    finally:
        await server.close()


async def test_a_name_that_cannot_be_looked_up_is_a_cause_from_the_first_check_on(monkeypatch):
    async def fails(*_args, **_fields):
        raise socket.gaierror(socket.EAI_AGAIN, "Temporary failure in name resolution")

    monkeypatch.setattr(asyncio.get_running_loop(), "getaddrinfo", fails)
    assert "Temporary failure in name resolution" in await first_word("http://engine.invalid:8000")


async def test_a_cause_is_free_of_the_url():
    server = Server({}, b"HTTP/1.1 nonsense\r\n\r\n")
    await server.open()
    try:
        found = await first_word(f"http://127.0.0.1:{server.port}/secret")
        assert found and "\n" not in found and not any(each in found for each in ("secret", "127.0.0.1"))
    finally:
        await server.close()


@pytest.mark.parametrize("url", ["http://engine..svc:8000", "http://.:8000"])
def test_a_host_that_cannot_be_is_named(url):
    with pytest.raises(ValueError, match="names no host") as raised:
        Address.of_backend(url)
    assert url in str(raised.value)


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
        self.snapshot = b"{}"

    async def metrics(self, request: web.Request) -> web.Response:
        self.asked += 1
        self.headers = dict(request.headers)
        await asyncio.sleep(self.delay_s)
        return web.Response(text="vllm:num_requests_waiting 4\n", status=self.status)

    async def kv(self, request: web.Request) -> web.Response:
        self.asked_for_sessions += 1
        return web.Response(body=self.snapshot, content_type="application/json")


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
    )
    told: list[tuple[ReplicaId, EngineSignals]] = []
    known: dict[ReplicaId, ReplicaFacts] = {}
    watch = EngineWatch(
        {replica.id: replica},
        CONFIG,
        abilities=lambda name: known[name].abilities if name in known else Abilities(),
        on_report=lambda *report: told.append(report),
        **asked,
    )
    await watch.close()  # before it began
    tasks = [asyncio.create_task(watch.watch(replica))]
    try:
        yield known, told, runner
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await watch.close()
        await runner.cleanup()


async def test_a_vllm_that_is_up_is_asked_again_and_again():
    engine = Engine()
    async with watched(engine, key="secret") as (known, told, _):
        await asyncio.sleep(0.05)
        assert engine.asked == 0
        known[A] = VLLM
        await eventually(lambda: len(told) >= 2)
        assert told[0] == (A, EngineSignals(waiting=4))
        assert engine.headers["Authorization"] == "Bearer secret"
        known.clear()
        await asyncio.sleep(0.05)
        before = len(told)
        await asyncio.sleep(0.1)
        assert len(told) == before


async def test_others_are_not_asked():
    engine = Engine()
    async with watched(engine) as (known, told, _):
        known[A] = VLLM
        known[A] = OTHER
        await asyncio.sleep(0.1)
        assert engine.asked == 0 and not told


async def test_one_that_does_not_answer_is_asked_again_later():
    engine = Engine()
    engine.status = 404
    async with watched(engine) as (known, told, runner):
        known[A] = VLLM
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
    async with watched(engine) as (known, told, _):
        known[A] = VLLM
        await eventually(lambda: engine.asked == 1)
        known.clear()
        await asyncio.sleep(0.3)
        assert not told


async def test_what_sessions_hold_is_asked_for_while_somebody_looks():
    engine = Engine()
    looks, held = False, []
    plugin = msgspec.structs.replace(VLLM, abilities=Abilities(engine="vllm", turnpike_hints=True))
    asked = {"on_plugin": lambda _, told: held.append(told), "is_looked_at": lambda: looks}
    async with watched(engine, **asked) as (known, told, _):
        known[A] = plugin
        await eventually(lambda: len(told) >= 3)
        assert not engine.asked_for_sessions and not held
        looks = True
        await eventually(lambda: bool(held))
        assert held[0] == PluginReport(), "it said nothing that could be read"
        engine.snapshot = b'{"block_size":16,"sessions":{},"features":{"\xff":"on"}}'
        asked_for = engine.asked_for_sessions
        await eventually(lambda: engine.asked_for_sessions > asked_for + 2)
        assert held[-1] == PluginReport()
        engine.snapshot = (
            b'{"v":1,"block_size":16,"blocks":{"total":9},"features":{"retention":"on","classes":"LoRA"},'
            b'"acted":{"retention":3},"saved_s":{"retention":1.5},"sessions":'
            b'{"s-1":{"retained":2,"running":0,"resident":5},"s-2":{"retained":0,"resident":0}}}'
        )
        await eventually(lambda: held[-1] != PluginReport())
        assert held[-1].features == (
            PluginFeature(name="retention", state="on", acted=3, saved_s=1.5),
            PluginFeature(name="classes", state="LoRA"),
        )
        assert held[-1].sessions == (
            SessionKv(session=SessionId("s-1"), resident_tokens=80, retained_tokens=32),
        )
        known[A] = VLLM
        count = engine.asked_for_sessions
        await asyncio.sleep(0.1)
        assert engine.asked_for_sessions <= count + 1, "the plugin is gone"
