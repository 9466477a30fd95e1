"""A prompt that one backend computes and another one decodes, on real sockets; and every step that fails."""

import asyncio
import json
from typing import Any

import pytest

from gateway.core import events as ev
from gateway.domain import records as rec
from gateway.requests.kv_transfer import CONNECTORS
from gateway.server.auth.client_keys import hash_key
from gateway.server.disaggregation import remote_prefills as prefill_legs
from tests.server.bench import (
    CHAT_ANSWER,
    DELTA,
    DONE,
    STREAM_HEAD,
    Bench,
    Exchange,
    answer,
    chunk,
    eventually,
    hangs,
    post,
    sends,
)

WORDS = " ".join(f"word{number}" for number in range(1_000))
LONG = json.dumps(
    {"model": "m", "messages": [{"role": "user", "content": WORDS}], "max_tokens": 99, "n": 1}
).encode()
STREAMED = LONG[:-1] + b',"stream":true}'
SHORT = b'{"model":"m","messages":[{"role":"user","content":"hi"}],"max_tokens":99}'
STREAM = STREAM_HEAD + chunk(DELTA) + chunk(DONE) + b"0\r\n\r\n"
WHERE = {"do_remote_prefill": True, "do_remote_decode": False, "remote_block_ids": [[7, 8]], "tp_size": 1}
HELD = json.dumps(json.loads(CHAT_ANSWER) | {"kv_transfer_params": WHERE}).encode()


class Two:
    """The first backend computes prompts, the others decode."""

    def __init__(self, bench: Bench) -> None:
        self.bench = bench
        self.prefill, self.decode, *self.others = bench.backends
        self.outcomes: list[str] = []
        take = bench.gateway.telemetry.take
        self.prefill.script = sends(answer(HELD))

        def watch(records: list[Any]) -> None:
            self.outcomes += [r.outcome for r in records if isinstance(r, rec.PrefillLegEnded)]
            take(records)

        bench.gateway.driver._on_records = watch

    @property
    def legs(self) -> list[Any]:
        return [json.loads(each.body) for each in self.prefill.seen]

    @property
    def decoded(self) -> list[bytes]:
        return [each.body for each in self.decode.seen]


@pytest.fixture
def two(start):
    async def begin(transfer: str = "shared_storage", *, backends: int = 2, **settings: Any) -> Two:
        settings.setdefault("disaggregation", {"threshold_tokens": 500})
        roles = ["prefill", *["decode"] * (backends - 1)]
        pool = {"name": "pool", "backends": backends, "roles": roles, "transfer": transfer}
        return Two(await start(pools=[pool], **settings))

    return begin


async def test_a_long_prompt_is_computed_there_and_the_answer_is_the_other_ones(two):
    play = await two()
    response = await play.bench.ask(post(LONG, headers=b"authorization: Bearer c\r\n"))
    assert response.body == CHAT_ANSWER and response.get(b"x-turnpike-replica") == b"pool-1"
    [leg] = play.legs
    said = json.loads(LONG)
    del said["n"]
    assert leg == said | {"max_tokens": 1, "stream": False}
    assert play.prefill.seen[0].get(b"authorization") == b"Bearer c" and not play.prefill.seen[0].get(b"x-a")
    assert play.decoded == [LONG] and play.outcomes == ["ready"]


@pytest.mark.parametrize(
    ("path", "body"),
    [
        (b"/v1/chat/completions", LONG),
        (b"/v1/completions", json.dumps({"model": "m", "prompt": WORDS}).encode()),
        (b"/v1/messages", LONG),
    ],
)
async def test_of_every_protocol_that_may_be_asked_for_one_token(two, path, body):
    play = await two()
    response = await play.bench.ask(post(body, path=path))
    assert response.body == CHAT_ANSWER and play.decoded == [body]
    assert [each.target for each in play.prefill.seen] == [path] and play.legs[0]["max_tokens"] == 1


RESPONSE = {"model": "m", "input": WORDS, "store": False, "max_output_tokens": 99}
FUNCTION = {"type": "function", "name": "f", "parameters": {}}
RESPONSE_HELD = json.dumps(
    {
        "id": "resp_1", "object": "response", "status": "incomplete", "output": [],
        "usage": {"input_tokens": 999, "output_tokens": 1, "total_tokens": 1000},
        "kv_transfer_params": WHERE,
    }
).encode()  # fmt: skip


@pytest.mark.parametrize("is_streamed", [False, True])
@pytest.mark.parametrize("tools", [{}, {"tools": [FUNCTION]}, {"tools": None}], ids=["none", "f", "null"])
async def test_a_response_that_is_not_stored_is_computed_there(two, is_streamed, tools):
    play = await two("nixl")
    play.prefill.script = sends(answer(RESPONSE_HELD))
    body = json.dumps(
        RESPONSE | tools | ({"stream": True, "background": False} if is_streamed else {})
    ).encode()
    response = await play.bench.ask(post(body, path=b"/v1/responses"))
    assert response.body == CHAT_ANSWER and play.outcomes == ["ready"]
    [leg] = play.legs
    assert leg.pop("kv_transfer_params")["do_remote_decode"] is True
    assert leg == RESPONSE | tools | {
        "max_output_tokens": 1, "stream": False, "store": False, "background": False
    }  # fmt: skip
    assert json.loads(play.decoded[0]) == json.loads(body) | {"kv_transfer_params": WHERE}


@pytest.mark.parametrize(
    ("path", "more"),
    [
        (b"/v1/responses", {"tools": [FUNCTION, {"type": "code_interpreter"}]}),
        (b"/v1/responses", {"tools": [{"type": "mcp", "server_url": "http://tools"}]}),
        (b"/v1/responses", {"store": True}),
        (b"/v1/responses", {"background": True}),
        (b"/v1/responses", {"previous_response_id": "resp_nobodys"}),
        (b"/v1/responses/compact", {}),
    ],
    ids=lambda each: repr(each)[:30],
)
async def test_a_response_that_may_do_more_than_answer_is_not(two, path, more):
    play = await two("nixl")
    response = await play.bench.ask(post(json.dumps(RESPONSE | more).encode(), path=path))
    assert response.status == 200 and not play.legs


async def test_what_nixl_counts_as_cached_was_found_elsewhere(two):
    """Its decode leg's usage says what the other engine found (vLLM 0.32)."""
    play = await two("nixl")
    seen = []
    send = play.bench.gateway.driver.send

    def watch(event: Any) -> None:
        if isinstance(event, (ev.AnsweredAtOnce, ev.ResponseFinished)):
            seen.append(event.answer.usage.cached_tokens)
        send(event)

    play.bench.gateway.driver.send = watch
    usage = {"prompt_tokens": 999, "completion_tokens": 1, "prompt_tokens_details": {"cached_tokens": 0}}
    told = json.dumps(json.loads(CHAT_ANSWER) | {"usage": usage}).encode()
    play.decode.script = sends(answer(told))
    assert (await play.bench.ask(post(LONG))).body == told, "as its client sees it"
    assert (await play.bench.ask(post(SHORT))).body == told
    assert seen == [None, 0]


async def test_a_stream_comes_from_the_one_that_decodes(two):
    play = await two()
    play.decode.script = sends(STREAM)
    response = await play.bench.ask(post(STREAMED))
    assert response.body == DELTA + DONE and play.outcomes == ["ready"]
    assert play.legs[0]["stream"] is False and play.decoded == [STREAMED]


async def test_a_short_prompt_goes_straight_to_the_one_that_decodes(two):
    play = await two()
    assert (await play.bench.ask(post(SHORT))).status == 200
    assert not play.legs and play.decoded == [SHORT] and not play.outcomes


async def test_nixl_is_told_where_the_blocks_are(two):
    play = await two("nixl")
    response = await play.bench.ask(post(LONG))
    assert response.body == CHAT_ANSWER
    assert play.legs[0]["kv_transfer_params"]["do_remote_decode"] is True
    [body] = play.decoded
    assert body.startswith(LONG[:-1]) and json.loads(body) == json.loads(LONG) | {"kv_transfer_params": WHERE}


# --- the first leg fails -----------------------------------------------------------------------------


@pytest.mark.parametrize("transfer", ["shared_storage", "nixl"])
@pytest.mark.parametrize(
    "script",
    [
        sends(answer(b'{"error":{}}', status=b"400 Bad Request")),
        sends(answer(b'{"error":{}}', status=b"500 Internal Server Error")),
        sends(b"", then="reset"),
        sends(b"", then="close"),
        sends(b"HTTP/1.1 200 OK\r\nContent-Length: 99\r\n\r\n{", then="close"),
        sends(b"HTTP/1.1 200 OK\r\nContent-Length: 99\r\n\r\n{", then="hang"),
        sends(b"", then="hang"),
        sends(b"no HTTP\r\n\r\n", then="hang"),
        sends(b"HTTP/1.1 200 OK\r\n\r\n" + b"x" * (5 << 20), then="close"),
        sends(answer(b'{"choices":[]}')),
        sends(answer(b"no json")),
    ],
    ids=[
        "refused", "fails", "resets", "closes", "breaks off", "stalls", "hangs", "is no HTTP", "is endless",
        "says nothing", "says nonsense",
    ],
)  # fmt: skip
async def test_a_leg_that_fails_is_seen_by_nobody(two, transfer, script):
    play = await two(transfer, disaggregation={"threshold_tokens": 500, "patience_s": 0.1})
    play.prefill.script = script
    response = await play.bench.ask(post(LONG))
    assert response.status == 200 and response.body == CHAT_ANSWER
    assert play.decoded == [LONG], "as it came"
    assert len(play.prefill.seen) == 1 and play.outcomes == ["failed"]


async def test_a_backend_that_cannot_be_reached_computes_nothing(two):
    play = await two()
    await play.prefill.close()
    play.prefill._server = None
    response = await play.bench.ask(post(LONG))
    assert response.body == CHAT_ANSWER and play.decoded == [LONG] and play.outcomes == ["failed"]


async def test_nixl_that_hands_nothing_over_is_not_told_on(two):
    play = await two("nixl")
    play.prefill.script = sends(answer(CHAT_ANSWER))
    assert (await play.bench.ask(post(LONG))).body == CHAT_ANSWER
    assert play.decoded == [LONG] and play.outcomes == ["failed"]


async def test_blocks_that_may_be_gone_are_not_fetched(two, monkeypatch):
    monkeypatch.setattr(CONNECTORS["nixl"], "lease_s", -1.0)
    play = await two("nixl")
    assert (await play.bench.ask(post(LONG))).body == CHAT_ANSWER
    assert play.decoded == [LONG]


async def test_a_fault_of_ours_costs_the_leg_alone(two, monkeypatch):
    play = await two()
    play.bench.may_log_errors = True
    monkeypatch.setattr(prefill_legs, "prefill_leg_body", lambda *_: 1 / 0)
    assert (await play.bench.ask(post(LONG))).body == CHAT_ANSWER
    assert play.outcomes == ["failed"] and not play.legs


@pytest.mark.parametrize("more", [b'"kv_transfer_params":{"do_remote_prefill":true}', b'"x":NaN'])
async def test_what_cannot_be_asked_for_one_token_is_not_asked(two, more):
    router = {"name": "router", "key_hashes": [hash_key("k")], "permissions": ["kv-transfer"]}
    play = await two("nixl", disaggregation={"threshold_tokens": 1}, tenants=[router])
    body, headers = LONG[:-1] + b",%s}" % more, b"authorization: Bearer k\r\n"
    assert (await play.bench.ask(post(body, headers=headers))).body == CHAT_ANSWER
    assert not play.legs and play.decoded == [body]


async def test_a_client_that_leaves_ends_the_leg_and_nothing_is_decoded(two):
    play = await two()
    has_left = asyncio.Event()
    play.prefill.script = hangs(has_left)
    client = await play.bench.arrive(post(LONG))
    client.reset()
    async with asyncio.timeout(10):
        await has_left.wait()
    await eventually(play.bench.is_quiet)
    assert play.outcomes == ["client_left"] and not play.decoded


async def test_a_gateway_that_stops_leaves_no_leg_behind(two):
    play = await two()
    play.prefill.script = lambda exchange: exchange.until_left()
    await play.bench.arrive(post(LONG))
    await play.bench.gateway.stop()
    assert play.outcomes == ["client_left"] and not play.decoded


# --- the second leg fails ----------------------------------------------------------------------------


@pytest.mark.parametrize("then", ["reset", "close"])
async def test_a_backend_that_dies_before_its_first_byte_is_replaced_and_blocks_are_fetched_once(two, then):
    play = await two("nixl", backends=3)
    dying = sends(b"", then=then)
    [other] = play.others

    async def second(exchange: Exchange) -> None:
        seen = len(play.decode.seen) + len(other.seen)
        await (dying if seen == 1 else sends(answer()))(exchange)

    play.decode.script = other.script = second
    response = await play.bench.ask(post(LONG))
    assert response.body == CHAT_ANSWER
    bodies = sorted((each.body for each in (*play.decode.seen, *other.seen)), key=len)
    assert bodies[0] == LONG and "kv_transfer_params" in json.loads(bodies[1])
    assert len(play.legs) == 1 and play.outcomes == ["ready"]


async def test_where_the_blocks_are_is_told_on_a_fresh_connection_as_it_must_not_be_told_twice(two):
    play = await two("nixl", disaggregation={"threshold_tokens": 100})
    assert (await play.bench.ask(post(SHORT))).status == 200
    assert (await play.bench.ask(post(LONG))).status == 200
    assert len(play.legs) == 1 and play.decode.connections == 2 and len(play.decoded) == 2


async def test_one_that_fails_to_fetch_computes_it(two):
    play = await two("nixl")

    async def cannot_fetch(exchange: Exchange) -> None:
        is_told = b"kv_transfer_params" in exchange.request.body
        await exchange.send(answer(status=b"500 Internal Server Error") if is_told else answer())

    play.decode.script = cannot_fetch
    response = await play.bench.ask(post(LONG))
    assert response.status == 200 and [len(each) for each in play.decoded][1] == len(LONG)


async def test_a_refusal_of_the_one_that_decodes_is_the_clients_answer(two):
    play = await two("nixl")
    refusal = b'{"error":{"message":"too long"}}'
    play.decode.script = sends(answer(refusal, status=b"400 Bad Request"))
    response = await play.bench.ask(post(LONG))
    assert response.status == 400 and response.body == refusal


async def test_with_the_last_one_that_decodes_gone_the_other_one_answers(two):
    play = await two()
    play.decode.script = sends(b"", then="reset")
    play.prefill.script = sends(answer())
    response = await play.bench.ask(post(LONG))
    assert response.body == CHAT_ANSWER and response.get(b"x-turnpike-replica") == b"pool-0"
    assert [leg["max_tokens"] for leg in play.legs] == [1, 99]


async def test_nothing_is_there_where_nothing_is_handed_over(start):
    bench = await start(replicas=2)
    assert bench.gateway.serving.handlers.sender.remote_prefills is None and not bench.brain.legs.pools
