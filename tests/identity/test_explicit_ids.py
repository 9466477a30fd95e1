import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.domain.request import ExplicitId
from gateway.identity.explicit_ids import (
    IDENTITY_BODY_FIELDS,
    IDENTITY_HEADERS,
    SCHEMAS,
    TURNPIKE_SCHEMA,
    read_explicit_id,
)
from tests.wire.shapes import decode_body, encode

AGENTIC = {"program_id": "p1", "session_id": "s1", "agent_id": "a1", "parent_program_id": "p0"}


def read(headers: dict[str, str] | None = None, **body: Any) -> ExplicitId | None:
    return read_explicit_id(headers or {}, decode_body(encode(body), is_responses=True))


def test_a_request_that_states_nothing():
    assert read() is None
    assert read_explicit_id({}, None) is None


@pytest.mark.parametrize(
    ("headers", "body", "expected"),
    [
        (
            {"x-turnpike-session": "s", "x-turnpike-parent": "p", "x-turnpike-final": "True"},
            {},
            ExplicitId(schema=TURNPIKE_SCHEMA, session="s", parent="p", final=True),
        ),
        (
            {},
            {"vllm_xargs": {"agentic_context": AGENTIC}},
            ExplicitId(schema="vllm-agentic-context", session="s1", thread="p1", parent="p0"),
        ),
        (
            {},
            {"vllm_xargs": {"agentic_context": json.dumps({"program_id": "p1", "agent_id": "a1"})}},
            ExplicitId(schema="vllm-agentic-context", session="p1"),
        ),
        (
            {},
            {"agent_hint": {"session_id": "s", "parent_session_id": "p"}},
            ExplicitId(schema="agent-hint", session="s", parent="p"),
        ),
        (
            {"x-agent-hint": "eyJzZXNzaW9uX2lkIjoiw78_IiwicGFyZW50X3Nlc3Npb25faWQiOiJwIn0"},
            {},
            ExplicitId(schema="agent-hint", session="ÿ?", parent="p"),
        ),
        (
            {},
            {"vllm_xargs": {"agent_hint": '{"session_id": "s"}'}},
            ExplicitId(schema="agent-hint", session="s"),
        ),
        (
            {
                "x-dynamo-session-id": "s",
                "x-dynamo-parent-session-id": "p",
                "x-dynamo-session-final": "1",
            },
            {},
            ExplicitId(schema="dynamo", session="s", parent="p", final=True),
        ),
        (
            {
                "x-claude-code-session-id": "s",
                "x-claude-code-agent-id": "t",
                "x-claude-code-parent-agent-id": "p",
            },
            {"metadata": {"user_id": '{"session_id": "other"}'}},
            ExplicitId(schema="claude-code", session="s", thread="t", parent="p"),
        ),
        (
            {},
            {"metadata": {"user_id": '{"device_id":"d","account_uuid":"","session_id":"s"}'}},
            ExplicitId(schema="claude-code", session="s"),
        ),
        (
            {},
            {"metadata": {"user_id": "user_0f_account__session_0d-1"}},
            ExplicitId(schema="claude-code", session="0d-1"),
        ),
        (
            {
                "session-id": "s",
                "thread-id": "t",
                "x-codex-parent-thread-id": "p",
                "x-client-request-id": "t",
            },
            {"prompt_cache_key": "s"},
            ExplicitId(schema="codex", session="s", thread="t", parent="p"),
        ),
        ({"session_id": "s"}, {}, ExplicitId(schema="codex", session="s")),
        (
            {"x-codex-turn-metadata": '{"session_id":"s","thread_id":"t","turn_id":"u"}'},
            {},
            ExplicitId(schema="codex", session="s", thread="t"),
        ),
        (
            {"x-session-id": "s", "x-session-affinity": "s", "x-parent-session-id": "p"},
            {},
            ExplicitId(schema="opencode", session="s", parent="p"),
        ),
        ({"x-affinity": "s"}, {}, ExplicitId(schema="vibe", session="s")),
        ({"x-litellm-trace-id": "s"}, {}, ExplicitId(schema="litellm", session="s")),
        ({"x-bf-session-id": "s"}, {}, ExplicitId(schema="bifrost", session="s")),
        ({"x-smg-routing-key": "s"}, {}, ExplicitId(schema="smg", session="s")),
        ({"x-aibrix-session-key": "s"}, {}, ExplicitId(schema="aibrix", session="s")),
        ({"agent-session-id": "s"}, {}, ExplicitId(schema="envoy", session="s")),
        ({"helicone-session-id": "s"}, {}, ExplicitId(schema="helicone", session="s")),
        ({"x-conversation-id": "s"}, {}, ExplicitId(schema="x-conversation-id", session="s")),
        ({}, {"session_id": "s"}, ExplicitId(schema="session_id", session="s")),
        ({}, {"session_params": {"session_id": "s"}}, ExplicitId(schema="session_params", session="s")),
        ({}, {"conversation": "conv_1"}, ExplicitId(schema="conversation", session="conv_1")),
        ({}, {"conversation": {"id": "conv_1"}}, ExplicitId(schema="conversation", session="conv_1")),
        ({}, {"prompt_cache_key": "s"}, ExplicitId(schema="prompt_cache_key", session="s")),
        ({}, {"metadata": {"session_id": "s"}}, ExplicitId(schema="metadata", session="s")),
        ({}, {"program_id": "s"}, ExplicitId(schema="thunderagent", session="s")),
        (
            {},
            {"job_id": "s", "is_last_step": True},
            ExplicitId(schema="continuum", session="s", final=True),
        ),
        ({"baggage": "a=b, session.id=s%20x;ttl=1"}, {}, ExplicitId(schema="baggage", session="s x")),
        ({"baggage": "gen_ai.conversation.id=c"}, {}, ExplicitId(schema="baggage", session="c")),
    ],
)
def test_each_schema(headers, body, expected):
    assert read(headers, **body) == expected


def test_every_schema_is_tested_above():
    cases = next(mark for mark in test_each_schema.pytestmark if mark.name == "parametrize").args[1]
    assert {expected.schema for _, _, expected in cases} == {schema.name for schema in SCHEMAS}


def test_schemas_are_not_merged():
    headers = {"x-session-id": "mine", "x-turnpike-final": "1", "thread-id": "t", "x-parent-session-id": "p"}
    expected = ExplicitId(schema="opencode", session="mine", parent="p")
    assert read(headers, prompt_cache_key="k", vllm_xargs={"agentic_context": {"agent_id": "a"}}) == expected


@pytest.mark.parametrize("bad", ["", "x" * 257, "tab\there", "nul\0"])
def test_malformed_values_count_as_not_sent(bad):
    assert read({"x-turnpike-session": bad}) is None
    assert read({"x-turnpike-session": bad, "x-affinity": "s"}) == ExplicitId(schema="vibe", session="s")
    stated = read({"x-turnpike-session": "s", "x-turnpike-parent": bad, "x-turnpike-final": bad})
    assert stated == ExplicitId(schema=TURNPIKE_SCHEMA, session="s")


def test_the_response_chain_outranks_what_follows_it():
    for weak in ({"prompt_cache_key": "k"}, {"metadata": {"session_id": "k"}}, {"job_id": "k"}):
        assert read(**weak) is not None
        assert read(previous_response_id="resp_1", **weak) is None
        assert read(previous_response_id=None, **weak) is not None
    assert read({"baggage": "session.id=s"}, previous_response_id="resp_1") is None
    assert read(previous_response_id="resp_1", session_id="s") == ExplicitId(schema="session_id", session="s")


def test_what_is_never_a_session():
    headers = {"x-client-request-id": "r", "traceparent": "00-1-2-01", "x-user-id": "u"}
    assert read(headers, user="u", safety_identifier="u", metadata={"user_id": "u-1"}) is None


@pytest.mark.parametrize(
    "body",
    [
        {"session_id": 3, "prompt_cache_key": [], "job_id": {}, "conversation": 3, "program_id": None},
        {"metadata": 3, "vllm_xargs": [], "agent_hint": "no json", "session_params": "[]"},
        {"metadata": {"user_id": 3, "session_id": 3}, "vllm_xargs": {"agentic_context": 3}},
        {"metadata": {"user_id": "a_session_b"}, "agent_hint": {"session_id": 3}},
        {"agent_hint": {"session_id": "s", "x": "x" * 20_000}},
        {"agent_hint": json.dumps({"session_id": "s", "x": "x" * 20_000})},
    ],
)
def test_fields_of_other_types_and_oversized_ones(body):
    broken = {"baggage": "session.id", "x-codex-turn-metadata": "{", "x-agent-hint": "é{"}
    assert read(broken, **body) is None


def test_what_hides_identity_covers_the_table():
    assert {b"x-turnpike-session", b"baggage", b"x-codex-turn-metadata"} <= IDENTITY_HEADERS
    assert {b"x-client-request-id", b"x-codex-window-id"} <= IDENTITY_HEADERS
    assert {"metadata", "vllm_xargs", "prompt_cache_key", "client_metadata"} <= IDENTITY_BODY_FIELDS
    assert not {"conversation", "previous_response_id", "model", "user"} & IDENTITY_BODY_FIELDS
    cases = next(mark for mark in test_each_schema.pytestmark if mark.name == "parametrize").args[1]
    for headers, body, expected in cases:
        left = {name: text for name, text in headers.items() if name.encode() not in IDENTITY_HEADERS}
        kept = {name: value for name, value in body.items() if name not in IDENTITY_BODY_FIELDS}
        assert expected.schema == "conversation" or read(left, **kept) is None


@given(st.dictionaries(st.sampled_from(sorted(n.decode() for n in IDENTITY_HEADERS)), st.text()))
def test_any_header_values(headers):
    found = read_explicit_id(headers, None)
    assert found is None or found.session.isprintable()
