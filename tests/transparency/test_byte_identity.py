"""The client gets what the backend sent, and the other way round; stored responses go where they live."""

import json
import re
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from gateway.server.auth.client_keys import hash_key
from tests.engines import EMBEDDER, MODEL, Fleet
from tests.gateways import running_gateway
from tests.transparency import exchange
from tests.transparency.conftest import SCRIPTS, Route
from tests.transparency.exchange import Message

pytestmark = pytest.mark.engine

TOOL = {"name": "bash", "parameters": {"type": "object", "properties": {"command": {"type": "string"}}}}


def _user(script: str) -> dict[str, str]:
    return {"role": "user", "content": f"Please begin. [[script:{script}]]"}


CHAT = {"model": MODEL, "messages": [_user("talk")], "max_tokens": 200}
CHAT_TOOLS = CHAT | {"messages": [_user("tools")], "tools": [{"type": "function", "function": TOOL}]}
COMPLETION = {"model": MODEL, "prompt": "Begin. [[script:talk]]", "max_tokens": 200}
RESPONSE = {"model": MODEL, "input": "Please begin. [[script:talk]]", "max_output_tokens": 200}
RESPONSE_TOOLS = {
    "model": MODEL,
    "input": [{"type": "message", **_user("tools")}],
    "tools": [{"type": "function", **TOOL}],
    "store": False,
}
MESSAGES = {"model": MODEL, "messages": [_user("talk")], "max_tokens": 200}
MESSAGES_TOOLS = MESSAGES | {
    "messages": [_user("tools")],
    "tools": [{"name": "bash", "input_schema": TOOL["parameters"]}],
}
STREAM = {"stream": True}
USAGE = {"stream_options": {"include_usage": True}}

# What to ask: a name, the model whose engine answers, method, path, body.
POSTS: list[tuple[str, str, str, Any]] = [
    ("chat", MODEL, "/v1/chat/completions", CHAT),
    ("chat, streamed", MODEL, "/v1/chat/completions", CHAT | STREAM),
    ("chat, streamed with usage", MODEL, "/v1/chat/completions", CHAT | STREAM | USAGE),
    ("chat, tools", MODEL, "/v1/chat/completions", CHAT_TOOLS),
    ("chat, tools, streamed", MODEL, "/v1/chat/completions", CHAT_TOOLS | STREAM),
    ("chat, cut by max_tokens", MODEL, "/v1/chat/completions", CHAT | {"max_tokens": 3}),
    ("completion", MODEL, "/v1/completions", COMPLETION),
    ("completion, streamed", MODEL, "/v1/completions", COMPLETION | STREAM),
    ("response", MODEL, "/v1/responses", RESPONSE),
    ("response, streamed", MODEL, "/v1/responses", RESPONSE | STREAM),
    ("response, tools", MODEL, "/v1/responses", RESPONSE_TOOLS),
    ("response, tools, streamed", MODEL, "/v1/responses", RESPONSE_TOOLS | STREAM),
    ("messages", MODEL, "/v1/messages", MESSAGES),
    ("messages, streamed", MODEL, "/v1/messages", MESSAGES | STREAM),
    ("messages, tools", MODEL, "/v1/messages", MESSAGES_TOOLS),
    ("messages, tools, streamed", MODEL, "/v1/messages", MESSAGES_TOOLS | STREAM),
    ("count tokens", MODEL, "/v1/messages/count_tokens", MESSAGES),
    ("tokenize", MODEL, "/tokenize", {"model": MODEL, "prompt": "one two three"}),
    ("detokenize", MODEL, "/detokenize", {"model": MODEL, "tokens": [65, 66, 67]}),
    ("embeddings", EMBEDDER, "/v1/embeddings", {"model": EMBEDDER, "input": ["one", "two"]}),
    ("rerank", EMBEDDER, "/rerank", {"model": EMBEDDER, "query": "a", "documents": ["b", "c"]}),
    ("rerank, v2", EMBEDDER, "/v2/rerank", {"model": EMBEDDER, "query": "a", "documents": ["b"]}),
    ("score", EMBEDDER, "/score", {"model": EMBEDDER, "text_1": "a", "text_2": "b"}),
    ("pooling", EMBEDDER, "/pooling", {"model": EMBEDDER, "input": "one"}),
    # Errors are the backend's own.
    ("no such model", MODEL, "/v1/chat/completions", CHAT | {"model": "another"}),
    ("no such model, messages", MODEL, "/v1/messages", MESSAGES | {"model": "another"}),
    ("messages of a wrong type", MODEL, "/v1/chat/completions", CHAT | {"messages": "hello"}),
    ("a field of a wrong type", MODEL, "/v1/chat/completions", CHAT | {"max_tokens": "many"}),
    ("no messages", MODEL, "/v1/messages", {"model": MODEL, "max_tokens": 5}),
    ("too long", MODEL, "/v1/chat/completions", CHAT | {"max_tokens": 10_000_000}),
    ("not JSON", MODEL, "/v1/chat/completions", b'{"model": "scripted", "messages": ['),
    ("not UTF-8", MODEL, "/v1/chat/completions", b'{"model": "scripted", "messages": "\xff\xfe"}'),
    ("deep nesting", MODEL, "/v1/chat/completions", b'{"messages": ' + b"[" * 5000 + b"]" * 5000 + b"}"),
    ("an empty body", MODEL, "/v1/completions", b""),
    ("embeddings of a chat model", MODEL, "/v1/embeddings", {"model": MODEL, "input": "one"}),
    ("audio, not served", MODEL, "/v1/audio/transcriptions", {"model": MODEL}),
    ("a path that is not served", MODEL, "/v1/no/such/path", {"a": 1}),
    ("an unknown previous response", MODEL, "/v1/responses", RESPONSE | {"previous_response_id": "resp_0"}),
]
OTHERS = [
    ("models", "GET", "/v1/models"),
    ("one model", "GET", f"/v1/models/{MODEL}"),
    ("version", "GET", "/version"),
    ("health", "GET", "/health"),
    ("a description", "GET", "/openapi.json"),
    ("a method that is not served", "PUT", "/v1/models"),
    ("options", "OPTIONS", "/v1/chat/completions"),
    ("head", "HEAD", "/v1/models"),
    ("an unknown response", "GET", "/v1/responses/resp_0"),
    ("an unknown response, cancelled", "POST", "/v1/responses/resp_0/cancel"),
    ("an unknown response, deleted", "DELETE", "/v1/responses/resp_0"),
    ("a query", "GET", "/v1/models?a=b&a=%20c"),
]
JSON_TYPE = [("Content-Type", "application/json")]


def _through_gateway(path: Route, raw: bytes) -> tuple[Message, Message, Message, Message]:
    """What the client sent, what the backend got, what it answered, what the client got."""
    path.tee.take()
    got = exchange.send(path.gateway_port, raw)
    to_backend, from_backend = path.tee.take()
    return tuple(map(exchange.parse, (raw, to_backend, from_backend, got)))  # type: ignore[return-value]


def _as_it_came(got: Message) -> list[tuple[bytes, bytes]]:
    """Without the one line that an event stream gets, so that no proxy before the gateway holds it back."""
    headers = got.end_to_end()
    if dict(headers).get(b"content-type", b"").startswith(b"text/event-stream"):
        headers.remove((b"X-Accel-Buffering", b"no"))
    return headers


def _check(path: Route, raw: bytes) -> Message:
    sent, received, answered, got = _through_gateway(path, raw)
    assert got.start_line == answered.start_line
    assert _as_it_came(got) == answered.end_to_end()
    assert got.body == answered.body
    assert received.start_line == sent.start_line
    assert received.body == sent.body
    reframed = {b"host", b"content-length", b"x-session-id"}
    assert [h for h in received.end_to_end() if h[0].lower() not in reframed] == [
        h for h in sent.end_to_end() if h[0].lower() not in reframed
    ]
    return got


def _check_against_direct(path: Route, raw: bytes) -> Message:
    """The answer through the gateway is the direct one; streams may be cut into deltas differently."""
    exchange.send(path.engine_port, raw)  # the engine has the prefix cached now, whoever asks next
    direct = exchange.parse(exchange.send(path.engine_port, raw))
    got = _check(path, raw)
    assert got.start_line == direct.start_line
    assert [h[0] for h in _as_it_came(got)] == [h[0] for h in direct.end_to_end()]
    assert _gist(got) == _gist(direct)
    return got


def _gist(message: Message) -> Any:
    """The answer without ids and times, and with the deltas of a stream joined."""
    plain = exchange.without_ids_and_times(message.body)
    if b"text/event-stream" not in dict(message.headers).get(b"content-type", b""):
        return plain
    joined: list[str] = []
    kinds: list[str] = []
    for event in re.findall(rb"^data: (.*)$", plain, re.MULTILINE):
        if event == b"[DONE]":
            kinds.append("[DONE]")
            continue
        data = json.loads(event)
        joined += _texts(data)
        kind = str(data.get("type", "delta"))
        if not kinds or kinds[-1] != kind:
            kinds.append(kind)
    return "".join(joined), kinds


def _texts(value: Any, key: str = "") -> list[str]:
    if isinstance(value, dict):
        return [text for name, each in value.items() for text in _texts(each, name)]
    if isinstance(value, list):
        return [text for each in value for text in _texts(each, key)]
    return [value] if isinstance(value, str) and key in _TEXT_KEYS else []


_TEXT_KEYS = {"content", "delta", "text", "arguments", "partial_json", "name", "finish_reason", "stop_reason"}


@pytest.mark.parametrize(("model", "where", "body"), [p[1:] for p in POSTS], ids=[p[0] for p in POSTS])
def test_an_answer_is_the_backends_own(paths: dict[str, Route], model: str, where: str, body: Any) -> None:
    payload = body if isinstance(body, bytes) else json.dumps(body, ensure_ascii=False).encode()
    got = _check_against_direct(paths[model], exchange.request("POST", where, JSON_TYPE, payload))
    assert got.start_line.startswith(b"HTTP/1.1 ")


@pytest.mark.parametrize(("method", "where"), [o[1:] for o in OTHERS], ids=[o[0] for o in OTHERS])
def test_other_methods_and_paths_pass(paths: dict[str, Route], method: str, where: str) -> None:
    _check_against_direct(paths[MODEL], exchange.request(method, where, []))


def test_the_scripts_are_played(paths: dict[str, Route]) -> None:
    """The answers above are real ones: tool calls are parsed by vLLM, streams have many events."""
    raw = exchange.request("POST", "/v1/chat/completions", JSON_TYPE, json.dumps(CHAT_TOOLS).encode())
    choice = json.loads(_check(paths[MODEL], raw).body)["choices"][0]
    assert choice["finish_reason"] == "tool_calls"
    arguments = [json.loads(call["function"]["arguments"]) for call in choice["message"]["tool_calls"]]
    assert arguments == [{"command": "ls -la"}, {"command": 'echo "naïve ✓"'}]
    streamed = json.dumps(CHAT | STREAM).encode()
    got = _check(paths[MODEL], exchange.request("POST", "/v1/chat/completions", JSON_TYPE, streamed))
    assert got.body.count(b"data: ") > 10
    assert got.body.endswith(b"data: [DONE]\n\n")


OURS, THEIRS = "a-key-of-ours", "a-key-of-theirs"
REQUEST = {"model": MODEL, "input": "Please begin. [[script:talk]]"}


@pytest.fixture(scope="module")
def port(fleet: Fleet, tmp_path_factory: pytest.TempPathFactory) -> Iterator[int]:
    fleet.play(SCRIPTS)
    tenants = "".join(
        f'[[tenants]]\nname = "{name}"\nkey_hashes = ["{hash_key(key)}"]\n'
        for name, key in (("ours", OURS), ("theirs", THEIRS))
    )
    directory = tmp_path_factory.mktemp("stored") / "gateway"
    with running_gateway([e.url for e in fleet.scripted], directory, more_settings=tenants) as port:
        yield port


def _ask(port: int, method: str, path: str, body: Any = None, key: str | None = OURS) -> Message:
    headers = [("Content-Type", "application/json")]
    if key is not None:
        headers.append(("Authorization", f"Bearer {key}"))
    payload = b"" if body is None else json.dumps(body).encode()
    return exchange.parse(exchange.send(port, exchange.request(method, path, headers, payload)))


def _status(message: Message) -> int:
    return int(message.start_line.split()[1])


def _replica(message: Message) -> bytes:
    return dict(message.headers)[b"x-turnpike-replica"]


def _store(port: int, more: dict[str, Any] | None = None) -> tuple[str, bytes]:
    """A stored response: its id, and the replica that holds it."""
    answer = _ask(port, "POST", "/v1/responses", REQUEST | (more or {}))
    assert _status(answer) == 200
    return json.loads(answer.body)["id"], _replica(answer)


def test_a_chain_stays_on_the_replica_that_holds_it(port: int) -> None:
    with ThreadPoolExecutor(8) as crowd:
        chains = list(crowd.map(lambda _: _store(port), range(8)))
    assert {replica for _, replica in chains} == {b"default-0", b"default-1"}, "a crowd is spread"
    for first_id, replica in chains:
        response_id = first_id
        for _ in range(3):
            more = {"previous_response_id": response_id, "input": "Go on."}
            answer = _ask(port, "POST", "/v1/responses", REQUEST | more)
            assert _status(answer) == 200, answer.body
            assert _replica(answer) == replica
            assert dict(answer.headers)[b"x-turnpike-source"] == b"state-id"
            response_id = json.loads(answer.body)["id"]


def test_a_streamed_response_can_be_continued(port: int) -> None:
    answer = _ask(port, "POST", "/v1/responses", REQUEST | {"stream": True})
    created = json.loads(answer.body.partition(b"data: ")[2].partition(b"\n")[0])
    more = {"previous_response_id": created["response"]["id"], "input": "Go on."}
    continued = _ask(port, "POST", "/v1/responses", REQUEST | more)
    assert _status(continued) == 200, continued.body
    assert _replica(continued) == _replica(answer)


def test_a_stored_response_is_read_from_its_replica(port: int) -> None:
    for response_id, replica in [_store(port) for _ in range(4)]:
        answer = _ask(port, "GET", f"/v1/responses/{response_id}")
        assert (_status(answer), _replica(answer)) == (200, replica)
        assert json.loads(answer.body)["id"] == response_id


def test_a_background_response_is_polled_and_cancelled_where_it_runs(port: int) -> None:
    for _ in range(2):
        response_id, replica = _store(port, {"background": True})
        deadline = time.monotonic() + 60
        while True:
            polled = _ask(port, "GET", f"/v1/responses/{response_id}")
            assert (_status(polled), _replica(polled)) == (200, replica)
            status = json.loads(polled.body)["status"]
            if status not in ("queued", "in_progress"):
                break
            assert time.monotonic() < deadline
            time.sleep(0.1)
        assert status == "completed"
        cancelled = _ask(port, "POST", f"/v1/responses/{response_id}/cancel")
        assert _replica(cancelled) == replica
        assert b"Cannot cancel" in cancelled.body, "the replica knows the response, and that it is over"


@pytest.mark.parametrize(
    ("method", "path", "body"),
    [
        ("GET", "/v1/responses/{id}", None),
        ("DELETE", "/v1/responses/{id}", None),
        ("POST", "/v1/responses/{id}/cancel", None),
        ("POST", "/v1/responses", REQUEST | {"previous_response_id": "{id}"}),
    ],
)
def test_another_tenants_response_is_not_found(
    port: int, fleet: Fleet, method: str, path: str, body: Any
) -> None:
    """And it looks like one that does not exist: the answer is vLLM's own, but for the id."""
    response_id, _ = _store(port)
    template = json.dumps([path, body])

    def ask_for(an_id: str, at: int, key: str | None) -> Message:
        its_path, its_body = json.loads(template.replace("{id}", an_id))
        return _ask(at, method, its_path, its_body, key)

    theirs = ask_for(response_id, port, THEIRS)
    assert _status(theirs) == 404
    assert b"x-turnpike-replica" not in dict(theirs.headers), "no replica was asked"
    unknown = ask_for("resp_0123456789abcdef", port, THEIRS)
    assert exchange.without_ids_and_times(unknown.body) == exchange.without_ids_and_times(theirs.body)
    if method != "DELETE":  # which vLLM does not serve
        own = ask_for("resp_0123456789abcdef", fleet.scripted[0].port, None)
        assert _status(own) == 404
        assert own.body == unknown.body
        assert _status(ask_for(response_id, port, OURS)) != 404
