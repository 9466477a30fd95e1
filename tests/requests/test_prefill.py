"""A request for a prompt alone: what shapes the prompt stays, byte for byte; what shapes the answer goes."""

import json

import msgspec
from msgspec import Raw

from gateway.requests.prefill import for_one_token

PROMPT = b'"messages":[{"role":"user","content":"\\u00e9 1.50"}],"tools":[{"x":12345678901234567890}]'


def prefill_body(body: bytes) -> bytes:
    return msgspec.json.encode(for_one_token(msgspec.json.decode(body, type=dict[str, Raw])))


def test_what_shapes_the_prompt_stays_as_it_was():
    body = prefill_body(
        b'{"model":"m",%s,"tool_choice":"auto","chat_template_kwargs":{"a":1}}' % PROMPT,
    )
    assert PROMPT in body
    said = json.loads(body)
    assert said["chat_template_kwargs"] == {"a": 1} and said["tool_choice"] == "auto"
    assert said["max_tokens"] == 1 and said["stream"] is False


def test_what_would_make_one_token_an_error_goes():
    body = prefill_body(
        b'{"max_tokens":9,"max_completion_tokens":9,"min_tokens":5,"n":3,"best_of":4,"echo":true,'
        b'"prompt_logprobs":1,"stream":true,"stream_options":{"include_usage":true},"prompt":"p"}'
    )
    assert json.loads(body) == {"max_tokens": 1, "stream": False, "prompt": "p"}


def test_where_caches_are_is_said_once():
    body = prefill_body(b'{"prompt":"p","kv_transfer_params":{"a":true},"bootstrap_host":"h"}')
    assert json.loads(body) == {"max_tokens": 1, "stream": False, "prompt": "p"}
