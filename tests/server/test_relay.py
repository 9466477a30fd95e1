"""A gateway that knows no sessions: it passes on, by load, and keeps the rest of its promises."""

import asyncio
import json
from typing import Any

import pytest

from tests.server.bench import (
    CHAT,
    CHAT_ANSWER,
    DELTA,
    DONE,
    STREAM_HEAD,
    Bench,
    answer,
    bearer,
    chunk,
    eventually,
    get,
    pauses,
    post,
    sends,
)
from tests.server.test_auth import ALICE, BOB, TENANTS

RELAY = {"mode": "relay"}
OF_ONE = b"x-turnpike-session: one\r\n"
TOOL = b"<call>"
STORED = json.dumps({"id": "resp_1", "object": "response", "status": "completed", "output": []}).encode()
GOES_ON = post(b'{"model":"m","input":"go on","previous_response_id":"resp_1"}', b"/v1/responses")


def seen(bench: Bench) -> list[int]:
    return [len(backend.seen) for backend in bench.backends]


async def test_what_says_to_be_one_session_goes_where_least_runs(start: Any) -> None:
    bench = await start(server=RELAY, replicas=2)
    for _ in range(4):
        response = await bench.ask(post(headers=OF_ONE))
        assert response.status == 200 and response.body == CHAT_ANSWER
        assert not [name for name, _ in response.headers if name.lower().startswith(b"x-turnpike")]
    assert seen(bench) == [2, 2]
    assert {request.body for backend in bench.backends for request in backend.seen} == {CHAT}
    assert not len(bench.brain.sessions.sessions) and not bench.brain.placement.sessions_at


async def test_one_that_is_busy_gets_no_more(start: Any) -> None:
    bench = await start(server=RELAY, replicas=2)
    for backend in bench.backends:
        backend.script = sends(STREAM_HEAD + chunk(DELTA), then="hang")
    client = await bench.send(post(b'{"model":"m","stream":true,"messages":[]}'))
    await eventually(lambda: sum(seen(bench)) == 1)
    busy = seen(bench).index(1)
    for backend in bench.backends:
        backend.script = sends(answer())
    for _ in range(3):
        assert (await bench.ask(post())).status == 200
    assert seen(bench)[busy] == 1 and seen(bench)[1 - busy] == 3
    client.close()


async def test_a_stream_passes_as_it_came(start: Any) -> None:
    bench = await start(server=RELAY)
    events = [DELTA, TOOL.join([b"data: ", b"\n\n"]), DONE]
    bench.backend.script = sends(STREAM_HEAD + b"".join(map(chunk, events)) + b"0\r\n\r\n")
    response = await bench.ask(post(b'{"model":"m","stream":true,"messages":[]}'))
    assert response.is_whole and response.body == b"".join(events)
    metrics = (await bench.control(get(b"/metrics"))).body
    assert b'turnpike_attempts_total{code="200",outcome="finished",replica="default-0"} 1.0' in metrics
    assert b"turnpike_turns_total{" not in metrics


async def test_what_a_replica_stores_is_found_there_again(start: Any) -> None:
    bench = await start(server=RELAY, replicas=2)
    for backend in bench.backends:
        backend.script = sends(answer(STORED))
    await bench.ask(post(b'{"model":"m","input":"hi"}', b"/v1/responses"))
    home = seen(bench).index(1)
    for _ in range(3):
        assert (await bench.ask(GOES_ON)).status == 200
    assert seen(bench)[home] == 4


async def test_keys_count_and_so_does_whose_a_stored_response_is(start: Any) -> None:
    bench = await start(server=RELAY, tenants=TENANTS)
    bench.backend.script = sends(answer(STORED))
    assert (await bench.ask(post())).status == 401
    made = await bench.ask(post(b'{"model":"m","input":"hi"}', b"/v1/responses", bearer(ALICE)))
    assert made.status == 200
    for key, status in ((BOB, 404), (ALICE, 200)):
        asked = GOES_ON.replace(b"Host: gw\r\n", b"Host: gw\r\n" + bearer(key))
        assert (await bench.ask(asked)).status == status
    moves = post(b'{"model":"m","messages":[],"kv_transfer_params":{"remote_host":"h"}}', headers=bearer(BOB))
    assert (await bench.ask(moves)).status in (400, 403)
    assert len(bench.backend.seen) == 2


@pytest.mark.parametrize("body", [CHAT, b'{"model":"m","messages":[}'], ids=["read", "not read"])
async def test_a_replica_runs_as_many_as_it_may(start: Any, body: bytes) -> None:
    bench = await start(server=RELAY, admission={"max_running_per_replica": 1})
    goes_on = asyncio.Event()
    bench.backend.script = pauses(b"", goes_on, answer())
    asked = [asyncio.ensure_future(bench.ask(post(body))) for _ in range(3)]
    await eventually(lambda: len(bench.brain.waiting_room) == 2 and len(bench.backend.seen) == 1)
    goes_on.set()
    assert [response.status for response in await asyncio.gather(*asked)] == [200] * 3


async def test_one_that_fails_is_left_alone(start: Any) -> None:
    bench = await start(server=RELAY, replicas=2)
    bench.backends[0].script = sends(b"", then="close")
    for _ in range(20):
        assert (await bench.ask(post())).status == 200
    assert bench.brain.fleet.health.state("default-0").value == "ejected"
    assert seen(bench)[0] < 10


async def test_models_of_one_name_are_drawn_anew_for_each_request(start: Any) -> None:
    name = {"name": "coder", "targets": [{"model": "m"}, {"model": "n", "weight": 2}]}
    bench = await start(server=RELAY, models=[name])
    for _ in range(40):
        assert (await bench.ask(post(b'{"model":"coder","messages":[]}'))).status == 200
    drawn = {json.loads(request.body)["model"] for request in bench.backend.seen}
    assert drawn == {"m", "n"}


async def test_names_of_models_lead_where_they_lead(start: Any) -> None:
    name = {"name": "coder", "targets": [{"model": "gone"}], "fallbacks": ["m"]}
    other = b'{"object":"list","data":[{"id":"gone"}]}'
    bench = await start(
        server=RELAY,
        models=[name],
        pools=[{"name": "a", "backends": 1, "listing": other}, {"name": "b", "backends": 1}],
    )
    body = b'{"model":"coder","messages":[]}'
    assert (await bench.ask(post(body))).status == 200
    await bench.backends[0].close()
    bench.gateway.replica_watch.health.check_now("a-0")
    await eventually(lambda: not bench.brain.fleet.get("a-0").is_up)
    assert (await bench.ask(post(body))).status == 200
    assert [json.loads(b.seen[0].body)["model"] for b in bench.backends] == ["gone", "m"]


PATHS = [b"/turnpike/snapshot", b"/turnpike/graphs", b"/turnpike/readyz", b"/metrics"]


@pytest.mark.parametrize("path", PATHS)
async def test_an_operator_may_look(start: Any, path: bytes) -> None:
    bench = await start(server=RELAY)
    await bench.ask(post())
    assert (await bench.control(get(path))).status == 200
