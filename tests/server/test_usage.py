"""What tenants used, by model: as JSON, as CSV, in the metrics, of one gateway and of several."""

import asyncio
import csv
import io
import json
from typing import Any

import pytest
from aiohttp import web

from gateway.domain import records as rec
from gateway.domain.ids import ReplicaId, SessionId, TenantId
from gateway.domain.request import Usage
from gateway.server.aggregator.control_client import ControlClient
from gateway.server.aggregator.control_plane import AggregatedControl
from gateway.server.tenants import hash_key
from gateway.telemetry.usage import MAX_USERS, Usages
from tests.server.bench import (
    CHAT,
    DELTA,
    DONE,
    STREAM_HEAD,
    Exchange,
    Script,
    answer,
    bearer,
    chunk,
    get,
    post,
    sends,
)

PATH = b"/turnpike/usage"
A, B = "tp-team-a", "tp-team-b"
TENANTS = [{"name": name, "key_hashes": [hash_key(key)]} for name, key in (("a", A), ("b", B))]
PRICES = [{"model": "m", "input": 2.0, "cached_input": 0.5, "output": 10.0}]
USAGE = {"prompt_tokens": 100, "completion_tokens": 20, "prompt_tokens_details": {"cached_tokens": 40}}
COST = (60 * 2.0 + 40 * 0.5 + 20 * 10.0) / 1e6


def whole(model: str = "m") -> bytes:
    choice = {"index": 0, "message": {"role": "assistant", "content": "hi"}, "finish_reason": "stop"}
    return answer(json.dumps({"id": "1", "model": model, "choices": [choice], "usage": USAGE}).encode())


def streamed() -> bytes:
    told = b"data: %s\n\n" % json.dumps({"choices": [], "usage": USAGE}).encode()
    return STREAM_HEAD + chunk(DELTA) + chunk(told) + chunk(DONE) + b"0\r\n\r\n"


def asks(key: str = A, model: str = "m", *, stream: bool = False) -> bytes:
    body = {**json.loads(CHAT), "model": model, "stream": stream}
    return post(json.dumps(body).encode(), headers=bearer(key))


async def usage(bench, query: bytes = b"") -> list[dict]:
    return (await bench.control(get(PATH + query))).json()["usage"]


async def play(bench) -> None:
    """Of one tenant two chats and one that fails, of another tenant one."""
    bench.backend.script = sends(streamed())
    assert (await bench.ask(asks(stream=True))).status == 200
    bench.backend.script = sends(whole())
    assert (await bench.ask(asks())).status == 200
    assert (await bench.ask(asks(B))).status == 200
    bench.backend.script = sends(answer(b"{}", b"500 Oops"))
    assert (await bench.ask(asks())).status == 500


async def test_requests_tokens_and_cost_are_told_by_tenant_and_model(start):
    bench = await start(tenants=TENANTS, prices=PRICES)
    await play(bench)
    of_b: dict[str, Any] = {
        "tenant": "b", "model": "m", "requests": 1, "failed": 0, "prompt_tokens": 100, "cached_tokens": 40,
        "output_tokens": 20, "cost": COST, "requests_per_minute": 1, "tokens_per_minute": 120,
    }  # fmt: skip
    of_a = {name: value if isinstance(value, str) else 2 * value for name, value in of_b.items()}
    of_a |= {"tenant": "a", "requests": 3, "failed": 1, "requests_per_minute": 3}
    told = (await bench.control(get(PATH))).json()
    assert told["usage"] == [of_a, of_b] and told["began_s"] <= told["at_s"]
    assert await usage(bench, b"?tenant=b&model=m") == [of_b] and not await usage(bench, b"?model=other")
    metrics = (await bench.control(get(b"/metrics"))).body.decode()
    for line in (
        'turnpike_tenant_requests_total{model="m",outcome="finished",tenant="a"} 2.0',
        'turnpike_tenant_requests_total{model="m",outcome="error",tenant="a"} 1.0',
        'turnpike_tenant_tokens_total{kind="cached",model="m",tenant="a"} 80.0',
        f'turnpike_tenant_cost_total{{model="m",tenant="b"}} {COST}',
    ):
        assert f"\n{line}\n" in metrics, line


async def test_without_prices_there_is_no_cost(start):
    bench = await start()
    await bench.ask(post())
    (row,) = await usage(bench)
    assert "cost" not in row and row["requests"] == 1


@pytest.mark.parametrize("asked", [get(PATH + b"?format=csv"), get(PATH, b"Accept: text/csv\r\n")])
async def test_a_table_is_text_to_a_spreadsheet_whatever_a_model_s_name_is(start, asked):
    bench = await start(tenants=TENANTS, prices=PRICES)
    names = ["=1+1", '+"x",y', "-a\n;=b", "@c", "m"]
    for name in names:
        bench.backend.script = sends(whole(name))
        assert (await bench.ask(asks(model=name))).status == 200
    response = await bench.control(asked)
    assert response.get(b"content-type") == b"text/csv; charset=utf-8"
    rows = list(csv.DictReader(io.StringIO(response.body.decode(), newline="")))
    assert {row["model"] for row in rows} == {"'=1+1", '\'+"x",y', "'-a?;'=b", "'@c", "m"}
    assert [row["cost"] for row in rows if row["model"] == "m"] == [str(COST)]
    assert {row["prompt_tokens"] for row in rows} == {"100"} and len({row["cost"] for row in rows}) == 2


async def test_who_may_not_look_sees_none_and_another_format_is_refused(start):
    keys = {"control_read_key_hashes": [hash_key("look")], "control_key_hashes": [hash_key("act")]}
    bench = await start(server=keys)
    assert (await bench.control(get(PATH))).status == 401
    assert (await bench.control(get(PATH + b"?format=xml", bearer("look")))).status == 400
    assert (await bench.control(get(PATH, bearer("look")))).status == 200


async def test_a_request_counts_once_however_it_ends(start):
    bench = await start(replicas=2, tenants=TENANTS)

    def all_do(script: Script) -> None:
        for backend in bench.backends:
            backend.script = script

    async def resets(exchange: Exchange) -> None:
        exchange.reset()

    all_do(sends(whole()))
    await bench.ask(asks())
    all_do(Exchange.until_left)
    (await bench.arrive(asks())).close()
    async with asyncio.timeout(10):
        while (await usage(bench))[0]["requests"] < 2:
            await asyncio.sleep(0.01)
    all_do(sends(STREAM_HEAD + chunk(DELTA), then="reset"))
    assert not (await bench.ask(asks(stream=True))).is_whole
    all_do(resets)
    before = sum(len(backend.seen) for backend in bench.backends)
    assert (await bench.ask(asks().replace(b"hi", b"ho"))).status == 502
    assert sum(len(backend.seen) for backend in bench.backends) >= before + 2, "it was tried again"
    assert (await bench.ask(get(b"/v1/models", bearer(A)))).status == 502, "that is no work for an engine"
    rows = await usage(bench)
    assert [(row["model"], row["requests"], row["failed"]) for row in rows] == [("m", 4, 2)]


END: dict[str, Any] = {
    "turn": "r-1",
    "session": SessionId("s"),
    "replica": ReplicaId("r"),
    "duration_ms": 1.0,
}


def end(model: str, at_s: float = 1.0, *, outcome: str = "finished", tenant: str = "t") -> rec.GpuEnd:
    counted = Usage(prompt_tokens=3, output_tokens=1) if outcome == "finished" else Usage()
    status = 200 if outcome == "finished" else None
    return rec.GpuEnd(
        at_s=at_s, outcome=outcome, status=status, usage=counted, finish_reason=None,
        tenant=TenantId(tenant), model=model, **END,
    )  # fmt: skip


def test_names_that_no_engine_answered_for_take_nobody_s_place():
    usages = Usages()
    for number in range(2 * MAX_USERS):
        usages.ended([end(f"x{number}", outcome="cut")])
    usages.ended([end("m"), end("m", outcome="cut")])
    told = [(row.tenant, row.model, row.requests, row.failed) for row in usages.rows(now=2.0)]
    assert told == [("t", "", 2 * MAX_USERS, 2 * MAX_USERS), ("t", "m", 2, 1)]


def test_those_that_are_too_many_are_counted_together_and_give_way():
    usages = Usages()
    usages.ended([end(f"m{number:03}") for number in range(MAX_USERS + 5)])
    rows = usages.rows(now=2.0)
    assert len(rows) == MAX_USERS + 1
    assert [(row.model, row.requests) for row in rows if row.tenant == "other"] == [("other", 5)]
    usages.ended([end("new", at_s=9000.0)])
    rows = usages.rows(now=9000.0)
    assert len(rows) == MAX_USERS + 1 and "new" in {row.model for row in rows}
    assert "m000" not in {row.model for row in rows}
    assert all(len(table) <= 3 * (MAX_USERS + 1) for table in (usages.requests, usages.tokens))


def test_a_minute_later_what_was_is_not_of_the_last_minute():
    usages = Usages()
    for second in range(1000):
        usages.ended([end("m", at_s=float(second))])
    (row,) = usages.rows(now=999.5)
    assert (row.requests, row.requests_per_minute, row.tokens_per_minute) == (1000, 60, 240)
    (row,) = usages.rows(now=1058.5)
    assert row.requests_per_minute == 1
    assert len(usages._lately[row.tenant, row.model]) <= 61


async def test_several_gateways_are_added_up(start):
    benches = [await start(tenants=TENANTS, prices=prices) for prices in (PRICES, [])]
    await asyncio.gather(*map(play, benches))
    gateways = [
        ControlClient(f"http://127.0.0.1:{bench.gateway.control_port}", number=number)
        for number, bench in enumerate(benches)
    ]
    runner = web.AppRunner(AggregatedControl(gateways).app(), auto_decompress=False)
    await runner.setup()
    try:
        await web.TCPSite(runner, "127.0.0.1", 0).start()
        own, benches[0].gateway.control_port = benches[0].gateway.control_port, runner.addresses[0][1]
        rows = await usage(benches[0])
        told = [(row["tenant"], row["requests"], row["failed"], row["prompt_tokens"]) for row in rows]
        assert told == [("a", 6, 2, 400), ("b", 2, 0, 200)]
        assert [row["cost"] for row in rows] == [2 * COST, COST], "of those that have prices"
        assert [row["tenant"] for row in await usage(benches[0], b"?tenant=b")] == ["b"]
        table = await benches[0].control(get(PATH, b"Accept: text/csv\r\n"))
        assert table.body.decode().splitlines()[1].startswith("a,m,6,2,400,")
        assert (await benches[0].control(b"HEAD" + get(PATH)[3:])).status == 200
        benches[0].gateway.control_port = own
    finally:
        await runner.cleanup()
        for each in gateways:
            await each.close()
