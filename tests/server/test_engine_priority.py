"""Which requests can wait, as a stock engine is told: who may say so, what becomes of the body, and what if
the engine takes no such word."""

import asyncio
import hashlib
import json
import random
import threading
import time
import urllib.request
from pathlib import Path
from typing import Any

import pytest

from tests.engines import MODEL, Fleet
from tests.gateways import running_gateway
from tests.server.bench import Bench, Exchange, Message, answer, eventually, post, sends

ON = {"hints": {"priority": True}}
BACKGROUND = b"X-Turnpike-Class: proactive\r\n"
SESAME = "sha256:" + hashlib.sha256(b"sesame").hexdigest()
KEY = b"Authorization: Bearer sesame\r\n"


def told(request: Message) -> bytes | None:
    found: bytes | None = request.get(b"x-vllm-priority")
    return found


async def restart(bench: Bench, version: bytes, kv: bytes | None = None) -> None:
    backend = bench.backend
    backend.version, backend.kv = version, kv
    await backend.close()
    await eventually(lambda: not any(each.is_up for each in bench.brain.fleet))
    await backend.open()
    await eventually(lambda: all(each.is_up for each in bench.brain.fleet))


async def test_a_stock_engine_is_told_who_can_wait_beside_the_very_body(start: Any) -> None:
    bench = await start(**ON)
    asked = post(), post(headers=BACKGROUND + b"X-Turnpike-Session: b\r\n")
    for each in asked:
        assert (await bench.ask(each)).status == 200
    assert [told(request) for request in bench.backend.seen] == [b"0", b"1"]
    assert all(request.body == asked[0].partition(b"\r\n\r\n")[2] for request in bench.backend.seen)


@pytest.mark.parametrize("headers", [b"", b"X-Vllm-Priority: -3\r\n"])
async def test_nothing_is_said_or_taken_away_unless_it_is_asked_for(start: Any, headers: bytes) -> None:
    bench = await start()
    await bench.ask(post(headers=BACKGROUND + headers))
    assert told(bench.backend.seen[0]) == (b"-3" if headers else None)


@pytest.mark.parametrize(
    ("version", "kv"),
    [(b'{"version":"0.27.0"}', None), (b"{}", None), (b'{"version":"0.30.0"}', b"{}")],
    ids=["an old vLLM", "no vLLM", "the plugin"],
)
async def test_who_does_not_read_it_is_told_nothing(start: Any, version: bytes, kv: bytes | None) -> None:
    bench = await start(upstream={"health_period_s": 0.05}, **ON)
    await restart(bench, version, kv)
    await bench.ask(post(headers=BACKGROUND))
    assert told(bench.backend.seen[0]) is None


@pytest.mark.parametrize("state", [b"absent", b"inert"])
async def test_an_engine_whose_scheduler_follows_no_hints_is_a_stock_one(start: Any, state: bytes) -> None:
    bench = await start(upstream={"health_period_s": 0.05}, **ON)
    await restart(bench, b'{"version":"0.32.0"}', b'{"state":"%s"}' % state)
    await bench.ask(post(headers=BACKGROUND))
    assert told(bench.backend.seen[0]) == b"1"


STATED = {
    "in the body": (b'"priority": 7,', b""),
    "in the body, escaped": (b'"pri\\u006frity": 7,', b""),
    "in a header": (b"", b"x-vllm-priority: 7\r\n"),
}


@pytest.mark.parametrize("trust", [["scheduling"], []], ids=["trusted", "not trusted"])
@pytest.mark.parametrize("stated", STATED)
async def test_a_clients_own_word_counts_where_it_is_trusted(
    start: Any, stated: str, trust: list[str]
) -> None:
    bench = await start(tenants=[{"name": "t", "key_hashes": [SESAME], "trust": trust}], **ON)
    field, header = STATED[stated]
    body = b'{%s"model":"m","messages":[{"role":"user","content":"hi"}]}' % field
    await bench.ask(post(body, headers=KEY + header))
    (seen,) = bench.backend.seen
    assert seen.body == body
    assert told(seen) == ((b"7" if header else None) if trust else b"0")
    assert seen.head.lower().count(b"x-vllm-priority") == (told(seen) is not None)


REFUSED = b'{"error":{"message":"Got priority 0 but Priority scheduling is not enabled.","code":400}}'


async def test_an_engine_that_refuses_a_priority_gets_the_request_without_it(start: Any) -> None:
    bench = await start(upstream={"health_period_s": 0.05}, **ON)

    async def refuses(exchange: Exchange) -> None:
        is_refused = told(exchange.request) is not None
        whole = answer(REFUSED, status=b"400 Bad Request") if is_refused else answer()
        for part in whole.partition(b"\r\n\r\n"):  # as uvicorn writes it: the head, then the body
            await exchange.send(part)
            await asyncio.sleep(0.02)

    bench.backend.script = refuses
    assert [(await bench.ask(post())).status for _ in range(2)] == [200, 200]
    assert [told(request) for request in bench.backend.seen] == [b"0", None, None]
    await restart(bench, bench.backend.version)
    assert (await bench.ask(post())).status == 200
    assert told(bench.backend.seen[3]) == b"0"


async def test_a_request_that_is_wrong_in_itself_costs_an_engine_no_order(start: Any) -> None:
    bench = await start(**ON)

    head, _, body = answer(b'{"error":{"message":"no"}}', status=b"400 Bad Request").partition(b"\r\n\r\n")

    async def refuses(exchange: Exchange) -> None:
        await exchange.send(head + b"\r\n\r\n")
        await asyncio.sleep(0.02)
        await exchange.send(body)

    bench.backend.script = refuses
    response = await bench.ask(post())
    assert (response.status, response.body) == (400, body)
    await bench.ask(post(headers=BACKGROUND))
    assert [told(request) for request in bench.backend.seen] == [b"0", b"1"], "each was sent once"
    bench.backend.script = sends(answer(status=b"400 Bad Request")[:-5], then="close")
    assert (await bench.ask(post())).status == 502
    assert not bench.brain.dispatcher._to_engines._order._replica, "what is over waits for nothing"


# --- a real engine ----------------------------------------------------------------------------------


def ask(url: str, name: str, prompt: str, ended: list[str], **headers: str) -> threading.Thread:
    def run() -> None:
        path = "/v1/completions"
        said: dict[str, Any] = {"prompt": prompt}
        if name == "background-2":
            path, said = "/v1/messages", {"messages": [{"role": "user", "content": prompt}]}
        body = json.dumps({"model": MODEL, "max_tokens": 2, **said}).encode()
        sent = {"content-type": "application/json", "x-turnpike-session": name, **headers}
        with urllib.request.urlopen(urllib.request.Request(url + path, body, sent), timeout=240) as got:
            assert got.status == 200
        ended.append(name)

    thread = threading.Thread(target=run)
    thread.start()
    return thread


def words(seed: int, count: int) -> str:
    """Of their own, so that nothing is cached."""
    rng = random.Random(seed)
    return " ".join(str(rng.randrange(10**6)) for _ in range(count))


@pytest.mark.heavy
@pytest.mark.engine
@pytest.mark.timeout(400)
def test_a_real_engine_lets_background_work_wait(fleet: Fleet, tmp_path: Path) -> None:
    """While one long prompt is computed others arrive; what somebody waits for is answered before background
    work that came first, and what a client puts before everything itself, before that. An engine that orders
    by arrival is told the same and does not mind."""
    proactive = {"x-turnpike-class": "proactive"}
    asked: list[tuple[str, int, dict[str, str]]] = [
        ("long", 3_000, {}),
        *((f"background-{number}", 1_500, proactive) for number in range(3)),
        ("reactive", 1_500, {}),
        ("its-own", 1_500, {**proactive, "X-Vllm-Priority": "-1"}),
    ]
    orders = []
    for at, engine in enumerate(fleet.scripted):
        settings = "[hints]\npriority = true\n"
        ended: list[str] = []
        with running_gateway([engine.url], tmp_path / str(at), more_settings=settings) as port:
            url = f"http://127.0.0.1:{port}"
            threads = []
            for number, (name, count, headers) in enumerate(asked):
                threads.append(ask(url, name, words(10 * at + number, count), ended, **headers))
                time.sleep(0.2)
            for thread in threads:
                thread.join()
        orders.append(ended)
    # On a busy machine neighbours may change places on their way; by priority two would have to pass three.
    by_arrival, by_priority = ([name.partition("-")[0] for name in ended] for ended in orders)
    assert by_arrival[0] == "long" and by_arrival.index("reactive") >= 3 and by_arrival.index("its") >= 4
    assert by_priority == ["long", "its", "reactive", "background", "background", "background"]
