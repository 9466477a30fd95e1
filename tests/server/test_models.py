"""Names of the operator's on the wire: what replicas are asked for, what clients are told."""

import gzip
import json
from typing import Any

import pytest

from tests.server.bench import CHAT_ANSWER, Bench, answer, eventually, get, post, sends
from tests.wire.test_form import AUDIO, TYPE, form

BIG, SMALL = "Qwen/Qwen3-32B", "small"
USER = '"messages":[{"role":"user","content":"naïve \\u00e9 1.50, \\"model\\":\\"smart\\""}]'
BODIES = {
    b"/v1/chat/completions": f'{{ {USER}, "metadata":{{"model":"smart"}}, "model" : "smart" ,"n":1.0}}\n',
    b"/v1/completions": '{"model":"smart","prompt":"hi","max_tokens":1e2}',
    b"/v1/responses": '{"input":[{"role":"user","content":"hi"}],"model":"smart","store":false}',
    b"/v1/messages": f'{{"max_tokens":9,{USER},"model":"smart"}}',
}
SMART = {"name": "smart", "targets": [{"model": BIG, "pool": "big"}]}
SAFE = {"name": "safe", "targets": [{"model": BIG}], "fallbacks": [SMALL]}


def listing(*names: str, adapters: tuple[str, ...] = ()) -> bytes:
    cards = [
        {"id": name, "object": "model", "owned_by": "vllm", "max_model_len": 9}
        | ({"parent": names[0]} if name in adapters else {})
        for name in (*names, *adapters)
    ]
    return json.dumps({"object": "list", "data": cards}).encode()


async def with_pools(start: Any, *models: dict[str, Any], **settings: Any) -> Bench:
    pools = [
        {"name": "big", "backends": 1, "listing": listing(BIG)},
        {"name": "small", "backends": 1, "listing": listing(SMALL)},
    ]
    bench: Bench = await start(pools=pools, models=list(models), **settings)
    return bench


@pytest.mark.parametrize("path", BODIES)
async def test_one_name_is_replaced_and_nothing_else_changes(start, path):
    bench = await with_pools(start, SMART)
    body = BODIES[path].encode()
    response = await bench.ask(post(body, path, headers=b"x-api-key: k\r\nX-Other: 1\r\n"))
    assert response.status == 200 and response.body == CHAT_ANSWER, "what the engine says stays as it is"
    seen = bench.backends[0].seen[-1]
    before, _, after = body.rpartition(b'"smart"')
    assert seen.body == before + json.dumps(BIG).encode() + after
    assert seen.get(b"x-other") == b"1" and seen.target == path
    assert response.get(b"x-turnpike-model") == BIG.encode()
    assert response.get(b"x-turnpike-fallback") is None
    plain = await bench.ask(post(body.replace(b"smart", BIG.encode()), path))
    assert plain.get(b"x-turnpike-model") is None, "who names the model itself is told nothing"


async def test_hints_go_with_the_name_that_is_sent(start):
    bench = await with_pools(start, SMART, hints={"cache_salt_secret": "x" * 32})
    await bench.ask(post(BODIES[b"/v1/completions"].encode(), b"/v1/completions"))
    said = json.loads(bench.backends[0].seen[-1].body)
    assert said.pop("cache_salt") and said == {"model": BIG, "prompt": "hi", "max_tokens": 100}


@pytest.mark.parametrize(
    ("limits", "status"), [({"max_body_bytes": 50_000}, 413), ({"max_buffered_bytes": 50_000}, 503)]
)
async def test_a_compressed_body_counts_as_it_is_sent_on(start, limits, status):
    bench = await with_pools(start, SMART, limits=limits)
    body = json.dumps({"model": "smart", "max_tokens": 9, "prompt": "word " * 20_000}).encode()
    path, headers = b"/v1/completions", b"Content-Encoding: gzip\r\n"
    refused = await bench.ask(post(gzip.compress(body), path, headers))
    assert refused.status == status and not bench.backends[0].seen
    short = body.replace(b"word " * 19_000, b"")
    assert (await bench.ask(post(gzip.compress(short), path, headers))).status == 200
    assert bench.gateway.listener.budget.used == 0


async def test_a_form_asks_for_the_model_too(start):
    bench = await with_pools(start, SMART)
    body = form(AUDIO, ('name="model"', b"smart"))
    head = f"POST /v1/audio/transcriptions HTTP/1.1\r\nHost: gw\r\nContent-Type: {TYPE}\r\n"
    await bench.ask(head.encode() + b"Content-Length: %d\r\n\r\n%s" % (len(body), body))
    assert bench.backends[0].seen[-1].body == form(AUDIO, ('name="model"', BIG.encode()))


async def test_names_are_listed_with_the_models(start):
    bench = await with_pools(start, SMART, {"name": SMALL, "fallbacks": [BIG]})
    cards = (await bench.ask(get(b"/v1/models"))).json()["data"]
    assert {card["id"]: card["owned_by"] for card in cards} == {
        "smart": "turnpike",
        BIG: "vllm",
        SMALL: "vllm",
    }
    card = (await bench.ask(get(b"/v1/models/smart"))).json()
    assert card == {"id": "smart", "object": "model", "created": 0, "owned_by": "turnpike"}
    assert (await bench.ask(get(b"/v1/models/small"))).json()["max_model_len"] == 9
    assert not bench.backends[0].seen and not bench.backends[1].seen


async def test_one_pool_lists_names_too(start):
    bench = await start(models=[{"name": "smart", "targets": [{"model": "m"}]}])
    assert [card["id"] for card in (await bench.ask(get(b"/v1/models"))).json()["data"]] == ["smart", "m"]


@pytest.mark.parametrize(
    ("path", "kind"), [(b"/v1/messages", "not_found_error"), (b"/v1/responses", "not_found_error")]
)
async def test_a_name_that_leads_nowhere_is_refused_in_the_protocol_s_shape(start, path, kind):
    bench = await with_pools(start, {"name": "smart", "targets": [{"model": "gone"}]})
    response = await bench.ask(post(BODIES[path].encode(), path))
    error = response.json()["error"]
    assert response.status == 404 and error["type"] == kind and "`smart`" in error["message"]


async def test_a_fallback_is_told_in_headers_records_and_metrics(start, tmp_path):
    bench = await with_pools(start, SAFE, stream={"path": str(tmp_path / "stream")})
    await bench.backends[0].close()
    body = b'{"model":"safe","messages":[{"role":"user","content":"hi"}],"session_id":"one"}'
    response = await bench.ask(post(body))
    assert response.status == 200 and response.get(b"x-turnpike-fallback") == b"outage"
    assert response.get(b"x-turnpike-model") == SMALL.encode()
    assert json.loads(bench.backends[1].seen[-1].body)["model"] == SMALL
    await bench.backends[0].open()
    bench.gateway.replica_watch.health.check_now(next(iter(bench.gateway.replica_watch.replicas)))
    await eventually(lambda: all(state.is_up for state in bench.brain.fleet))
    assert (await bench.ask(post(body))).get(b"x-turnpike-fallback") == b"earlier"
    response = await bench.ask(post(body.replace(b"one", b"two")))
    assert response.get(b"x-turnpike-model") == BIG.encode()
    assert response.get(b"x-turnpike-fallback") is None
    metrics = (await bench.control(get(b"/metrics"))).body.decode()
    for labels, count in (
        (f'fallback="outage",model="{SMALL}",requested="safe"', 1),
        (f'fallback="earlier",model="{SMALL}",requested="safe"', 1),
        (f'fallback="",model="{BIG}",requested="safe"', 2),  # the attempt that failed is one of them
    ):
        assert f"turnpike_models_total{{{labels}}} {count}.0" in metrics
    await bench.gateway.telemetry.close()
    chosen = [json.loads(line) for line in (tmp_path / "stream").read_text().splitlines()]
    assert [each["fallback"] for each in chosen if each["type"] == "model"] == [
        None,
        "outage",
        "earlier",
        None,
    ]


async def test_an_answer_that_has_begun_is_cut_and_not_given_by_another_model(start):
    bench = await with_pools(start, SAFE)
    bench.backends[0].script = sends(answer()[:-5], then="close")
    response = await bench.ask(post(b'{"model":"safe","messages":[{"role":"user","content":"hi"}]}'))
    assert not response.is_whole and not bench.backends[1].seen


async def test_a_replica_that_does_not_know_its_model_is_asked_what_it_serves(start):
    """Between two health checks, which are a minute apart here, an adapter was unloaded."""
    pools = [{"name": "p", "backends": 2, "listing": listing("base", adapters=("lora",))}]
    bench = await start(pools=pools)
    for number, backend in enumerate(bench.backends):
        if number == 0:
            backend.models = listing("base")
            backend.script = sends(answer(b"{}", status=b"404 Not Found"))
    body = b'{"model":"lora","messages":[{"role":"user","content":"%d"}]}'
    statuses = [(await bench.ask(post(body % number))).status for number in range(2)]
    assert sorted(statuses) == [200, 404]
    await eventually(lambda: bench.brain.fleet.served_by_some("p", "lora") == "lora")
    statuses = [(await bench.ask(post(body % number))).status for number in range(10, 14)]
    assert statuses == [200] * 4
