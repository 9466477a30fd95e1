"""What tenants used, by model: as JSON, as CSV, in the metrics, of one gateway and of several."""

import csv
import io
import json
from typing import Any

from gateway.domain import records as rec
from gateway.domain.ids import ReplicaId, RequestId, TenantId
from gateway.domain.request import Usage
from gateway.server.aggregator.merged_views import merge_usage
from gateway.server.tenants import hash_key
from gateway.telemetry.usage import MAX_USERS, Usages
from tests.server.bench import CHAT, DELTA, DONE, STREAM_HEAD, answer, bearer, chunk, get, post, sends
from tests.server.test_failures import metrics_of

PATH = b"/turnpike/usage"
SETTINGS = {
    "tenants": [{"name": name, "key_hashes": [hash_key(name)]} for name in "ab"],
    "prices": [{"model": "m", "input": 2.0, "cached_input": 0.5, "output": 10.0}],
}
USAGE = {"prompt_tokens": 100, "completion_tokens": 20, "prompt_tokens_details": {"cached_tokens": 40}}
COST = (60 * 2.0 + 40 * 0.5 + 20 * 10.0) / 1e6
CHOICE = {"index": 0, "message": {"role": "assistant", "content": "hi"}, "finish_reason": "stop"}
WHOLE = answer(json.dumps({"id": "1", "choices": [CHOICE], "usage": USAGE}).encode())
COUNTED = b"data: %s\n\n" % json.dumps({"choices": [], "usage": USAGE}).encode()
STREAMED = STREAM_HEAD + chunk(DELTA) + chunk(COUNTED) + chunk(DONE) + b"0\r\n\r\n"


def asks(key: str = "a", model: str = "m", *, stream: bool = False) -> bytes:
    body = {**json.loads(CHAT), "model": model, "stream": stream}
    return post(json.dumps(body).encode(), headers=bearer(key))


async def usage(bench, query: bytes = b"") -> Any:
    return (await bench.control(get(PATH + query))).json()["usage"]


async def test_requests_tokens_and_cost_are_told_by_tenant_and_model(start):
    bench = await start(**SETTINGS)
    failed = answer(b"{}", b"500 Oops")
    chats = (STREAMED, asks(stream=True)), (WHOLE, asks()), (WHOLE, asks("b")), (failed, asks())
    for script, asked in chats:
        bench.backend.script = sends(script)
        await bench.ask(asked)
    of_b: dict[str, Any] = {
        "tenant": "b", "model": "m", "requests": 1, "failed": 0, "prompt_tokens": 100, "cached_tokens": 40,
        "output_tokens": 20, "cost": COST, "requests_per_minute": 1, "tokens_per_minute": 120,
    }  # fmt: skip
    of_a = {name: value if isinstance(value, str) else 2 * value for name, value in of_b.items()}
    of_a |= {"tenant": "a", "requests": 3, "failed": 1, "requests_per_minute": 3}
    assert await usage(bench) == [of_a, of_b]
    assert await usage(bench, b"?tenant=b&model=m") == [of_b] and not await usage(bench, b"?model=other")
    metrics = await metrics_of(bench)
    assert '\nturnpike_tenant_requests_total{model="m",outcome="error",tenant="a"} 1.0\n' in metrics
    assert '\nturnpike_tenant_tokens_total{kind="cached",model="m",tenant="a"} 80.0\n' in metrics
    assert f'\nturnpike_tenant_cost_total{{model="m",tenant="b"}} {COST}\n' in metrics


async def test_a_table_is_text_to_a_spreadsheet_whatever_a_model_s_name_is(start):
    bench = await start(**SETTINGS)
    bench.backend.script = sends(WHOLE)
    for name in ("=1+1", '+"x",y', "-a;=b", "@c", "m"):
        assert (await bench.ask(asks(model=name))).status == 200
    table = await bench.control(get(PATH, b"Accept: text/csv\r\n"))
    assert table.body == (await bench.control(get(PATH + b"?format=csv"))).body
    assert (await bench.control(get(PATH + b"?format=xml"))).status == 400
    rows = {row["model"]: row for row in csv.DictReader(io.StringIO(table.body.decode(), newline=""))}
    assert set(rows) == {"'=1+1", '\'+"x",y', "'-a;'=b", "'@c", "m"}
    assert (rows["m"]["cost"], rows["'@c"]["cost"], rows["m"]["prompt_tokens"]) == (str(COST), "", "100")


def end(model: str, at_s: float = 1.0, *, outcome: str = "finished") -> rec.GpuEnd:
    counted = Usage(prompt_tokens=3, output_tokens=1) if outcome == "finished" else Usage()
    return rec.GpuEnd(
        at_s=at_s, outcome=outcome, status=None, usage=counted, finish_reason=None, tenant=TenantId("t"),
        model=model, turn=RequestId("r"), session=None, replica=ReplicaId("r"), duration_ms=1.0,
    )  # fmt: skip


def test_names_that_no_engine_answered_for_take_nobody_s_place_and_others_give_way():
    usages = Usages()
    usages.ended([end(f"x{number}", outcome="cut") for number in range(2 * MAX_USERS)])
    usages.ended([end("m"), end("m", outcome="cut"), end("m", outcome="failed")])  # and is tried elsewhere
    told = [(row["model"], row["requests"], row["failed"]) for row in usages.rows(now=2.0)]
    assert told == [("", 2 * MAX_USERS, 2 * MAX_USERS), ("m", 2, 1)]
    usages.ended([end(f"y{number}") for number in range(MAX_USERS)])
    assert usages.rows(now=2.0)[0]["tenant"] == "other" and usages.rows(now=2.0)[0]["requests"] == 2
    usages.ended([end("new", at_s=9000.0 + second) for second in range(1000)])
    rows = {row["model"]: row for row in usages.rows(now=9999.5)}
    assert len(rows) == MAX_USERS + 1 and "new" in rows and "" not in rows
    assert (rows["new"]["requests_per_minute"], rows["new"]["tokens_per_minute"]) == (60, 240)


def test_several_gateways_are_added_up():
    a, b = ({"tenant": tenant, "model": "m", "requests": 2} for tenant in "ab")
    one, other = ({"at_s": at_s, "began_s": at_s - 1.0, "usage": [b]} for at_s in (3.0, 5.0))
    one["usage"] = [b, {**a, "cost": 0.5}]
    both = {"at_s": 5.0, "began_s": 2.0, "usage": [{**a, "cost": 0.5}, {**b, "requests": 4}]}
    assert merge_usage([one, other]) == both
