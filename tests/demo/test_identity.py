"""The demo's stripping: identity goes, everything else stays."""

import json

from demo.identity import strip_body


def test_a_body_without_identity_keeps_its_very_bytes():
    body = b'{ "model" : "m", "metadata": {"k": 1}, "messages":[] }'
    assert strip_body(body) == (body, [])
    assert strip_body(b"not json") == (b"not json", [])
    assert strip_body(b'["a"]') == (b'["a"]', [])
    assert strip_body(b"") == (b"", [])


def test_only_the_identity_is_taken_out_of_a_body():
    body = {
        "model": "m",
        "prompt_cache_key": None,
        "metadata": {"user_id": "u", "kept": 1},
        "client_metadata": {"session_id": "s"},
        "vllm_xargs": {"agentic_context": "{}", "other": 2},
        "input": [{"call_id": "call_1"}],
        "previous_response_id": "resp_1",
    }
    stripped, taken = strip_body(json.dumps(body).encode())
    assert json.loads(stripped) == {
        "model": "m",
        "metadata": {"kept": 1},
        "vllm_xargs": {"other": 2},
        "input": [{"call_id": "call_1"}],
        "previous_response_id": "resp_1",
    }
    assert taken == ["prompt_cache_key", "client_metadata", "metadata.user_id", "vllm_xargs.agentic_context"]
