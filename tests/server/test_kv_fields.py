"""A client's word on where KV caches are gets to an engine from trusted tenants alone."""

import gzip
import json
from typing import Any

import pytest

from gateway.server.tenants import hash_key
from tests.server.bench import CHAT_ANSWER, Bench, answer, bearer, post, sends

ALICE, ROUTER = "tp-alice-secret", "tp-router-secret"
TENANTS = [
    {"name": "alice", "key_hashes": [hash_key(ALICE)], "trust": ["scheduling", "engine-control"]},
    {"name": "router", "key_hashes": [hash_key(ROUTER)], "trust": ["kv-transfer"]},
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
    monkeypatch.setattr("gateway.wire.facts.TRANSCRIPTS.reading", fails)
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
