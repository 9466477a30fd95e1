"""What goes on to replicas: hints on their way, traces, and a client's word on where KV caches are."""

import asyncio
import gzip
import json
from typing import Any

import pytest
from aiohttp import web

from gateway.config.upstream import UpstreamConfig
from gateway.domain.ids import PoolId, ReplicaId
from gateway.server.auth.client_keys import hash_key
from gateway.server.proxy.upstream_request import with_hint
from gateway.server.replicas import hint_sender
from gateway.server.replicas.hint_sender import HintSender
from gateway.server.runtime.tasks import TaskGroup
from gateway.upstream.replica import Address, Replica
from gateway.wire.splice import splice_fields
from gateway.wire.traceparent import read_traceparent
from tests.server.bench import CHAT_ANSWER, Bench, answer, bearer, eventually, post, sends
from tests.telemetry.otlp_receiver import attributes, children

A = ReplicaId("a")


class Engine:
    """Takes hints, one message at a time."""

    def __init__(self, status: int = 200) -> None:
        self.status = status
        self.bodies: list[Any] = []
        self.may_answer = asyncio.Event()

    async def take(self, request: web.Request) -> web.Response:
        self.bodies.append(await request.json())
        await self.may_answer.wait()
        return web.json_response({}, status=self.status)


async def told(engine: Engine, hints: list[str], *, waits: bool = True) -> HintSender:
    app = web.Application()
    app.router.add_post("/turnpike/hints", engine.take)
    runner = web.AppRunner(app)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    port = runner.addresses[0][1]
    address = Address.parse(f"http://127.0.0.1:{port}")
    replica = Replica(A, PoolId("p"), address, config=UpstreamConfig(), api_key="k")
    tasks = TaskGroup()
    sender = HintSender({A: replica}, tasks)
    sender.send(ReplicaId("nobody"), "{}")
    for hint in hints:
        sender.send(A, hint)
    if waits:
        await asyncio.sleep(0.05)
    for hint in hints:
        sender.send(A, hint)
    engine.may_answer.set()
    async with asyncio.timeout(10):
        while len(tasks):
            await asyncio.sleep(0.01)
    await sender.close()
    await runner.cleanup()
    return sender


async def test_hints_gather_while_one_message_is_on_its_way() -> None:
    engine = Engine()
    sender = await told(engine, ['{"n":1}', '{"n":2}'])
    assert [len(body["hints"]) for body in engine.bodies] == [2, 2]
    assert (sender.sent, sender.dropped, sender.failed) == (4, 1, 0)


async def test_what_is_too_much_is_dropped(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hint_sender, "MAX_WAITING", 3)
    engine = Engine()
    sender = await told(engine, ["1", "2", "3", "4", "5"], waits=False)
    assert sender.sent == 3 and sender.dropped == 8
    assert engine.bodies == [{"hints": [3, 4, 5]}]


async def test_an_engine_that_refuses_costs_nothing_but_a_count() -> None:
    sender = await told(Engine(status=500), ["{}"])
    assert (sender.sent, sender.failed) == (0, 2)


@pytest.mark.parametrize(
    ("stated", "sent"),
    [
        ('{"mine": 1, "x": {}}', {"mine": 1, "x": {}, "turnpike": "{}"}),
        ("{ }", {"turnpike": "{}"}),
        ('{"turnpike": "its own", "x": 1}', {"turnpike": "{}", "x": 1}),
        ('{"turnp\\u0069ke": "its own"}', {"turnpike": "{}"}),
        ("[1]", [1]),
        ("null", None),
    ],
)
def test_what_a_client_says_where_a_hint_goes_stays(stated: str, sent: Any) -> None:
    body = b'{"messages": [{"content": "{}"}], "vllm_xargs": %s}' % stated.encode()
    whole = b"".join(splice_fields(body, with_hint(body, "{}")))
    assert whole.startswith(body[:-1]) and json.loads(whole)["vllm_xargs"] == sent


def test_a_hint_goes_where_a_prompt_only_mentions_such_fields() -> None:
    told = {"vllm_xargs": {"turnpike": "{}"}}
    assert with_hint(b'{"x": {"vllm_xargs": 1}}', "{}") == told == with_hint(b'{"x": 1}', "{}")
    assert with_hint(b'{"vllm_xargs": {"x": 1}', "{}") == {}  # which is no JSON


def test_what_a_client_says_under_an_escaped_name_stays_beside_the_hint() -> None:
    body = b'{"vllm\\u005fxargs": {"mine": 1}, "vllm_xargs": {"x": 1}, "\\u0076llm_xargs": {"y": 2}}'
    whole = b"".join(splice_fields(body, with_hint(body, "{}")))
    assert json.loads(whole)["vllm_xargs"] == {"y": 2, "turnpike": "{}"}


TRACE = "0af7651916cd43dd8448eb211c80319c"
CLIENTS = f"00-{TRACE}-b7ad6b7169203331-01"
SECRET = b"the user's secret"
BODY = b'{"model":"m","messages":[{"role":"user","content":"%s"}]}' % SECRET


def headers(**fields: str) -> bytes:
    return b"".join(b"%s: %s\r\n" % (name.encode(), value.encode()) for name, value in fields.items())


async def test_a_session_is_one_trace_without_content(start, receiver):
    bench = await start(otel={"endpoint": receiver.endpoint})
    client = await bench.connect()
    turns = []
    for _ in range(3):
        response = await client.ask(post(BODY, headers=b"x-turnpike-session: run-1\r\n"))
        turns.append((response.get(b"x-turnpike-request") or b"").decode())
    await bench.gateway.stop()
    [root] = children(receiver.spans)[b""]
    below = children(receiver.spans)[root.span_id]
    chats = [span for span in below if span.name != "session"]
    [end] = [span for span in below if span.name == "session"]
    assert attributes(end)["turnpike.session.turns"] == 3
    assert [attributes(chat)["turnpike.request"] for chat in chats] == turns
    assert {span.trace_id for span in receiver.spans} == {root.trace_id}
    assert SECRET not in b"".join(span.SerializeToString() for span in receiver.spans)
    passed_on = [read_traceparent((each.get(b"traceparent") or b"").decode()) for each in bench.backend.seen]
    assert [(each.trace_id, each.span_id) for each in passed_on if each is not None] == [
        (root.trace_id, chat.span_id) for chat in chats
    ]


async def test_a_clients_context_is_honoured_and_passed_on(start, receiver):
    bench = await start(otel={"endpoint": receiver.endpoint})
    await bench.ask(post(headers=headers(traceparent=CLIENTS, tracestate="a=b")))
    [seen] = bench.backend.seen
    [passed_on] = seen.all(b"traceparent")
    assert passed_on.startswith(b"00-" + TRACE.encode()) and passed_on.decode() != CLIENTS
    assert seen.all(b"tracestate") == [b"a=b"]
    await bench.gateway.stop()
    [chat] = [span for span in receiver.spans if span.name.startswith("chat")]
    assert (chat.trace_id.hex(), chat.parent_span_id.hex()) == (TRACE, "b7ad6b7169203331")
    assert chat.span_id.hex() in passed_on.decode()


async def test_without_a_collector_a_clients_context_goes_on_as_it_came(start, receiver):
    bench = await start()
    await bench.ask(post(headers=headers(traceparent=CLIENTS)))
    assert bench.backend.seen[0].all(b"traceparent") == [CLIENTS.encode()]
    bench = await start(otel={"endpoint": receiver.endpoint, "sample": 0.0})
    await bench.ask(post())
    await bench.ask(post(headers=headers(traceparent=CLIENTS[:-1] + "0")))
    assert [each.all(b"traceparent") for each in bench.backend.seen] == [[], [CLIENTS[:-1].encode() + b"0"]]
    await bench.gateway.stop()
    assert not receiver.spans


async def test_a_collector_that_hangs_is_not_noticed(start, receiver):
    receiver.delay_s = 60.0
    bench = await start(otel={"endpoint": receiver.endpoint, "max_pending": 10})
    bench.backend.answer = answer(CHAT_ANSWER)
    client = await bench.connect()
    for _ in range(50):
        assert (await client.ask(post())).status == 200
    await eventually(lambda: bench.gateway.telemetry._export.dropped > 0)


ALICE, ROUTER = "tp-alice-secret", "tp-router-secret"
TENANTS = [
    {"name": "alice", "key_hashes": [hash_key(ALICE)], "permissions": ["scheduling", "engine-control"]},
    {"name": "router", "key_hashes": [hash_key(ROUTER)], "permissions": ["kv-transfer"]},
]
WHERE = {"do_remote_prefill": True, "remote_host": "169.254.169.254", "remote_port": 80}
BODIES: dict[bytes, dict[str, Any]] = {
    b"/v1/chat/completions": {"model": "m", "messages": [{"role": "user", "content": "hi"}]},
    b"/v1/completions": {"model": "m", "prompt": "hi"},
    b"/v1/responses": {"model": "m", "input": "hi"},
    b"/v1/messages": {"model": "m", "max_tokens": 9, "messages": [{"role": "user", "content": "hi"}]},
    b"/inference/v1/generate": {"model": "m", "token_ids": [1, 2]},
}
SAYS: list[dict[str, Any]] = [
    {"kv_transfer_params": WHERE},
    {"kv_hints": {"actions": []}},
    {"vllm_xargs": {"kv_transfer_params": "x"}},
    {"bootstrap_host": "10.0.0.1", "bootstrap_port": 1},
]


async def asked(bench: Bench, path: bytes, body: bytes, headers: bytes = b"") -> Any:
    for backend in bench.backends:
        backend.script = sends(answer(CHAT_ANSWER))
    return await bench.ask(post(body, path, headers))


@pytest.mark.parametrize("says", SAYS, ids=lambda says: next(iter(says)))
@pytest.mark.parametrize("path", BODIES)
@pytest.mark.parametrize("tenants", [None, TENANTS], ids=["no tenants", "tenants"])
async def test_who_is_not_trusted_gets_a_400_in_the_protocols_shape(start, tenants, path, says):
    bench = await start(**({"tenants": tenants} if tenants else {}))
    headers = bearer(ALICE) if tenants else b""
    response = await asked(bench, path, json.dumps(BODIES[path] | says).encode(), headers)
    error = response.json()["error"]
    assert response.status == 400 and error["type"] == "invalid_request_error"
    assert "kv_transfer_params" in error["message"] and not bench.backend.seen
    if path == b"/v1/messages":
        assert response.json()["type"] == "error"
    else:
        assert error["code"] == "kv_field"


@pytest.mark.parametrize("says", SAYS, ids=lambda says: next(iter(says)))
@pytest.mark.parametrize("path", BODIES)
async def test_who_is_trusted_is_passed_on_byte_for_byte(start, path, says):
    bench = await start(tenants=TENANTS)
    body = json.dumps(BODIES[path] | says).encode()
    assert (await asked(bench, path, body, bearer(ROUTER))).status == 200
    assert bench.backend.seen[0].body == body


@pytest.mark.parametrize(("coding", "statuses"), [(b"gzip", (400, 200)), (b"br", (415, 415))])
async def test_compressing_it_hides_nothing(start, coding, statuses):
    bench = await start(tenants=TENANTS)
    body = gzip.compress(json.dumps(BODIES[b"/v1/completions"] | SAYS[0]).encode())
    headers = b"Content-Encoding: %s\r\n" % coding
    refused = await asked(bench, b"/v1/completions", body, headers + bearer(ALICE))
    assert refused.status == statuses[0] and not bench.backend.seen
    assert (await asked(bench, b"/v1/completions", body, headers + bearer(ROUTER))).status == statuses[1]


async def test_a_fault_of_ours_lets_nothing_through(start, monkeypatch):
    def fails(*_: object) -> None:
        raise TypeError("a fault of ours")

    bench = await start()
    bench.may_log_errors = True
    monkeypatch.setattr("gateway.requests.facts.TRANSCRIPTS.reading", fails)
    body = json.dumps(BODIES[b"/v1/chat/completions"] | SAYS[0]).encode()
    assert (await asked(bench, b"/v1/chat/completions", body)).status == 400 and not bench.backend.seen
    assert (await bench.ask(post())).status == 200


async def test_a_null_and_a_conversation_about_it_pass_as_they_are(start):
    bench = await start()
    said = 'what does {"kv_transfer_params": {}} do?'
    body = json.dumps(
        {"model": "m", "messages": [{"role": "user", "content": said}], "kv_hints": None}
    ).encode()
    assert (await asked(bench, b"/v1/chat/completions", body)).status == 200
    assert bench.backend.seen[0].body == body


async def with_vllm(start: Any, version: str, **options: Any) -> Bench:
    bench = await start(**options)
    bench.backend.version = b'{"version":"%s"}' % version.encode()
    bench.gateway.replica_watch.health._facts.clear()
    bench.gateway.replica_watch.health.check_now("default-0")
    await eventually(lambda: next(iter(bench.brain.fleet)).facts.abilities.version == version)
    return bench


@pytest.mark.parametrize(("version", "is_on"), [("0.33.0", False), ("0.30.0", True)])
async def test_a_vllm_without_the_plugin_gets_the_client_s_bytes(start, version, is_on):
    bench = await with_vllm(start, version, hints={"kv_hints": is_on})
    await asked(bench, b"/v1/chat/completions", BODY)
    assert bench.backend.seen[0].body == BODY


async def test_vllm_s_own_envelope_where_it_is_switched_on(start):
    bench = await with_vllm(start, "0.33.0", hints={"kv_hints": True})
    response = await asked(bench, b"/v1/chat/completions", BODY)
    got = bench.backend.seen[0]
    assert got.body.startswith(BODY[:-1]) and set(got.json()) == {"model", "messages", "kv_hints"}
    actions = {each["action_type"]: each["payload"] for each in got.json()["kv_hints"]["actions"]}
    session = (response.get(b"x-turnpike-session") or b"").decode()
    assert [*actions] == ["kv.retain", "vllm.set_priority"]
    assert actions["kv.retain"]["scope"].startswith(f"turnpike/{session}/")
    # The pause is told to the plugin alone: this engine has no place for it.
    await asked(bench, b"/v1/chat/completions", BODY)
    assert bench.gateway.hints.sent + bench.gateway.hints.failed == 0
    assert {each.target for each in bench.backend.seen} == {b"/v1/chat/completions"}


async def test_an_engine_with_the_plugin_gets_both(start):
    bench = await start(hints={"kv_hints": True})
    bench.backend.kv = b'{"state":"awake"}'
    bench.backend.version = b'{"version":"0.33.0"}'
    bench.gateway.replica_watch.health._facts.clear()
    bench.gateway.replica_watch.health.check_now("default-0")
    await eventually(lambda: next(iter(bench.brain.fleet)).facts.abilities.turnpike_hints)
    await asked(bench, b"/v1/chat/completions", BODY)
    got = bench.backend.seen[0].json()
    ours = got["kv_hints"]["actions"][0]
    assert ours["action_type"] == "turnpike.session"
    assert ours["payload"] == {"hint": got["vllm_xargs"]["turnpike"]}


@pytest.mark.parametrize("name", ["kv_hints", "kv\\u005fhints"])
async def test_an_envelope_of_whoever_may_send_one_stays(start, name):
    bench = await with_vllm(start, "0.33.0", hints={"kv_hints": True}, tenants=TENANTS)
    body = BODY[:-1] + b',"%s":{"actions":[]}}' % name.encode()
    await asked(bench, b"/v1/chat/completions", body, bearer(ROUTER))
    assert bench.backend.seen[0].body == body


async def test_who_only_talks_of_envelopes_gets_one(start):
    bench = await with_vllm(start, "0.33.0", hints={"kv_hints": True})
    body = b'{"model":"m","messages":[{"role":"user","content":"\\u00e9 \\"kv_hints\\""}]}'
    await asked(bench, b"/v1/chat/completions", body)
    assert "actions" in bench.backend.seen[0].json()["kv_hints"]
