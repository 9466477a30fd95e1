"""What is read of a body, and what a client says in it of how urgent it is."""

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.domain.request import Claims, ExplicitId, Protocol, RequestFacts, Transcript, Work
from gateway.requests.facts import read_facts, read_header_facts, reading_body_facts
from gateway.wire.endpoints import classify
from gateway.wire.hashing import hash_text
from gateway.wire.slices import finish
from tests.wire.shapes import assistant, encode, headers, result, user

CHAT = classify("POST", "/v1/chat/completions")
RESPONSES = classify("POST", "/v1/responses")
MESSAGES = classify("POST", "/v1/messages")
EMBEDDINGS = classify("POST", "/v1/embeddings")
AUDIO = classify("POST", "/v1/audio/transcriptions")

TURN = {
    "model": "m",
    "stream": True,
    "messages": [user(), assistant("a", "b"), result("a"), result("b")],
    "tools": [{"type": "function"}, {"type": "function"}],
    "metadata": None,
}


def facts(endpoint=CHAT, body: Any = None, **fields: str) -> RequestFacts:
    data = body if isinstance(body, bytes) else encode(body or {})
    return read_facts(endpoint, headers(**fields), data)


def test_a_turn_of_chat():
    found = facts(CHAT, TURN, X_Turnpike_Session="s1", User_Agent="a/1", X_Stainless_Retry_Count="2")
    assert found.transcript.tail and len(found.transcript.blocks) == 1
    assert found == RequestFacts(
        protocol=Protocol.CHAT,
        work=Work.GENERATE,
        model="m",
        stream=True,
        body_bytes=len(encode(TURN)),
        message_count=4,
        tool_count=2,
        explicit=ExplicitId(schema="x-turnpike-session", session="s1"),
        echoed_ids=("b", "a"),
        tool_result_ids=("b", "a"),
        transcript=found.transcript,
        attempt=2,
        client=hash_text("a/1"),
        client_name="a",
        is_replayable=True,
    )


@pytest.mark.parametrize("count", ["", "-1", "x", "123456"])
def test_what_is_no_count_counts_nothing(count):
    found = facts(CHAT, TURN, X_Stainless_Retry_Count=count)
    assert found.attempt is None and found.client == 0


def test_a_turn_of_messages():
    block = {"type": "tool_result", "tool_use_id": "a", "content": "x"}
    found = facts(MESSAGES, {"model": "m", "messages": [{"role": "user", "content": [block]}]})
    assert found.protocol is Protocol.MESSAGES and found.tool_result_ids == ("a",) and not found.stream


def test_state_that_a_response_builds_on():
    refs = [{"type": "item_reference", "id": "msg_1"}, {"type": "item_reference", "id": "msg_2"}]
    odd = [
        {"type": "item_reference"},
        {"type": "item_reference", "id": 3},
        {"type": "x", "id": "item_reference"},
    ]
    long = {"type": "item_reference", "id": "x" * 600}
    body = {"previous_response_id": "resp_1", "conversation": {"id": "conv_1"}, "input": [*refs, *odd, long]}
    assert facts(RESPONSES, body).state_ids == ("resp_1", "conv_1", "msg_2", "msg_1")
    many = [{"type": "item_reference", "id": f"i{at}"} for at in range(500)]
    assert facts(RESPONSES, {"input": many}).state_ids[0] == "i499"
    assert len(facts(RESPONSES, {"input": many}).state_ids) == 64
    assert facts(RESPONSES, {"previous_response_id": "x" * 300, "conversation": None}).state_ids == ()
    assert facts(CHAT, {"previous_response_id": "resp_1"}).state_ids == ()


def test_state_that_a_path_names():
    found = facts(classify("GET", "/v1/responses/resp_1"), b"")
    assert found.state_ids == ("resp_1",) and found.work is Work.STATE
    assert found.is_readable and found.is_replayable and not found.stores
    cancel = facts(classify("POST", "/v1/responses/resp_1/cancel"), b"")
    assert cancel.stores and not cancel.is_replayable


def test_messages_are_counted():
    assert facts(RESPONSES, {"input": "hi"}).message_count == 1
    assert facts(RESPONSES, {"input": [user(), user()], "messages": []}).message_count == 2
    assert facts(RESPONSES, {"input": None}).message_count == 0
    assert facts(CHAT, {"messages": None}).message_count == 0
    assert facts(EMBEDDINGS, {"input": [[1, 2], 3]}).message_count == 0


@pytest.mark.parametrize(
    ("body", "stores", "is_background"),
    [
        ({}, True, False),
        ({"store": None}, True, False),
        ({"store": True}, True, False),
        ({"store": False}, False, False),
        ({"store": False, "background": True}, True, True),
    ],
)
def test_responses_are_kept_unless_they_say_otherwise(body, stores, is_background):
    found = facts(RESPONSES, {"input": "hi", **body})
    assert (found.stores, found.is_background) == (stores, is_background)
    assert found.is_replayable is not stores


def test_chat_keeps_nothing():
    assert not facts(CHAT, {"store": True}).stores
    created = facts(classify("POST", "/v1/conversations"), {"items": []})
    assert created.stores and not created.is_replayable


@pytest.mark.parametrize("endpoint", [CHAT, RESPONSES, MESSAGES, EMBEDDINGS])
@pytest.mark.parametrize("body", [b"{", b"[]", b"null", b'{"model": "\xff"', b"[" * 100_000])
def test_unreadable_bodies_are_proxied_plainly(endpoint, body):
    found = facts(endpoint, body, X_Affinity="s")
    stores = endpoint is RESPONSES
    assert found == RequestFacts(
        protocol=endpoint.protocol,
        work=endpoint.work,
        body_bytes=len(body),
        explicit=ExplicitId(schema="vibe", session="s"),
        stores=stores,
        is_replayable=not stores,
        is_readable=False,
    )


def test_fields_of_other_types_are_lost_alone():
    found = facts(CHAT, {**TURN, "model": 3, "stream": "streamed", "metadata": [], "user": {}})
    assert found.is_readable and found.model is None and not found.stream and found.echoed_ids == ("b", "a")


def test_a_generation_without_a_body_is_unreadable():
    assert not facts(CHAT, b"").is_readable
    assert facts(EMBEDDINGS, b"").is_readable


@pytest.mark.parametrize("coding", ["br", "gzip, gzip", "identity"])
def test_what_is_left_of_codings_hides_what_is_not_read(coding):
    fields = [(b"content-encoding", each.strip().encode()) for each in coding.split(",")]
    found = read_facts(CHAT, fields, b"not json")
    assert found.is_hidden is (coding != "identity") and not found.is_readable
    assert read_header_facts(fields).coding == ("" if coding == "identity" else coding)
    assert read_facts(CHAT, fields, encode(TURN)).model == "m", "some engines do not look at it"


def test_the_model_of_a_form():
    body = b'--b\r\nContent-Disposition: form-data; name="model"\r\n\r\nwhisper\r\n--b--\r\n'
    found = facts(AUDIO, body, Content_Type="Multipart/Form-Data; boundary=b", X_Affinity="s")
    assert found.model == "whisper" and found.is_readable and found.is_replayable
    assert found.explicit == ExplicitId(schema="vibe", session="s")
    assert not facts(AUDIO, b"not json", Content_Type="text/plain").is_readable


bodies = st.binary() | st.dictionaries(
    st.sampled_from(["messages", "input", "model", "tools", "metadata", "conversation"]),
    st.none() | st.text() | st.lists(st.dictionaries(st.sampled_from(["role", "type", "id"]), st.text())),
).map(lambda body: json.dumps(body).encode())
endpoints = st.sampled_from([CHAT, RESPONSES, MESSAGES, EMBEDDINGS, AUDIO])
names = st.sampled_from([b"Content-Encoding", b"content-type", b"Baggage", b"session_id"])
values = st.binary() | st.sampled_from([b"gzip", b"deflate", b"multipart/form-data; boundary=x"])


_WHERE = ("protocol", "work", "model", "stream", "body_bytes", "state_ids", "stores", "is_background",
          "is_replayable", "is_readable", "is_oversized", "moves_kv")  # fmt: skip
_SAYS_WHERE = {
    "model": "m",
    "stream": True,
    "store": False,
    "background": True,
    "previous_response_id": "resp_1",
    "conversation": {"id": "conv_1"},
    "kv_transfer_params": {},
    "input": [{"type": "item_reference", "id": "msg_1"}],
}
that_say_where = st.lists(st.sampled_from(list(_SAYS_WHERE))).map(
    lambda keys: encode({key: _SAYS_WHERE[key] for key in keys})
)


@given(endpoints, st.lists(st.tuples(names, values), max_size=3), bodies | that_say_where)
def test_of_what_is_relayed_as_much_is_known_of_where_it_may_go(endpoint, fields, body):
    known, header = read_facts(endpoint, fields, body), read_header_facts(fields)
    relayed = finish(reading_body_facts(endpoint, header, body, is_relayed=True))
    assert [getattr(relayed, name) for name in _WHERE] == [getattr(known, name) for name in _WHERE]
    assert relayed.is_relayed is (endpoint.work is Work.GENERATE)
    assert not relayed.is_relayed or relayed.transcript == Transcript()


@given(endpoints, st.lists(st.tuples(names, values), max_size=3), bodies)
def test_nothing_that_a_client_sends_raises(endpoint, fields, body):
    found = read_facts(endpoint, fields, body)
    assert bool(found.body_bytes) is bool(body)


@pytest.mark.parametrize(("limit", "model"), [(10**6, "m"), (10, None)])
def test_of_a_body_that_is_too_much_the_model_is_known_if_that_is_cheap(monkeypatch, limit, model):
    monkeypatch.setattr("gateway.wire.body.MAX_STRUCTURE", 100)
    monkeypatch.setattr("gateway.requests.facts.MAX_STRUCTURE", 100)
    monkeypatch.setattr("gateway.wire.body.MAX_OUTLINE_BYTES", limit)
    body = b'{"model":"m","stream":true,"messages":[%b{}]}' % (b"{}," * 100)
    facts = read_facts(classify("POST", "/v1/chat/completions"), [], body)
    assert (facts.is_readable, facts.is_oversized, facts.model) == (False, True, model)
    assert facts.stream is (model is not None) and facts.is_hidden is (model is None)


@pytest.mark.parametrize(
    ("software", "product"),
    [
        (b"OpenAI/Python 1.60.0", "OpenAI/Python"),
        (b"claude-cli/1.0.30 (external, cli)", "claude-cli"),
        (b"codex_cli_rs/0.1", "codex_cli_rs"),
        (b"curl/8.5.0", "curl"),
        (b"\x1b[2Jevil", ""),
        (b"<script>/1", ""),
        (b"x" * 500, "x" * 32),
        (b"", ""),
    ],
)
def test_the_client_s_product_is_named_and_nothing_more(software, product):
    endpoint = classify("POST", "/v1/chat/completions")
    assert read_facts(endpoint, [(b"User-Agent", software)], b"{}").client_name == product


def claims(body: Any = None, **fields: str) -> Claims | None:
    return read_facts(CHAT, headers(**fields), encode({"messages": [user()], **(body or {})})).claims


def context(value: Any) -> dict[str, Any]:
    return {"vllm_xargs": {"agentic_context": value}}


def test_who_says_nothing_claims_nothing():
    assert claims() is None
    assert claims({"vllm_xargs": {"agent_hint": {}}, "metadata": {}}, X_Turnpike_Session="s") is None


@pytest.mark.parametrize(
    ("stated", "expected"),
    [("reactive", "reactive"), ("Proactive", "proactive"), (" reactive ", "reactive")],
)
def test_a_class(stated, expected):
    assert claims(X_Turnpike_Class=stated) == Claims(service_class=expected)


@pytest.mark.parametrize("stated", ["", "urgent", "reactive, proactive", "r" * 5000, "re\xe4ctive"])
def test_what_is_no_class(stated):
    assert claims(X_Turnpike_Class=stated) == Claims(malformed=("class",))


@pytest.mark.parametrize("tier", ["priority", "default", "flex"])
def test_a_service_tier(tier):
    assert claims({"service_tier": tier}) == Claims(service_tier=tier)


@pytest.mark.parametrize("tier", ["auto", "standard_only", "Flex", "", None])
def test_a_service_tier_that_says_nothing_of_urgency(tier):
    assert claims({"service_tier": tier}) is None


@pytest.mark.parametrize("tier", [1, True, ["flex"], {"tier": "flex"}])
def test_what_is_no_service_tier(tier):
    assert claims({"service_tier": tier}) == Claims(malformed=("service_tier",))


@pytest.mark.parametrize(
    "value",
    [None, 3, "text", "{", {"expected_resume": None}, {"expected_resume": True, "x": "y" * 20_000}],
)
def test_a_context_that_says_nothing(value):
    assert claims(context(value)) is None


@pytest.mark.parametrize("value", [5, 5.0, "5"])
def test_how_long_state_is_to_be_held(value):
    inner = {"session_id": "s", "kv_retention_ttl_seconds": value}
    assert claims(context(inner)) == claims(context(json.dumps(inner))) == Claims(retain_s=5.0)
    assert claims(context({"kv_retention_ttl_seconds": 0})) == Claims(retain_s=0.0)


@pytest.mark.parametrize("value", [-1, True, 1e99, "long", [5]])
def test_what_is_no_time_to_hold_state(value):
    assert claims(context({"kv_retention_ttl_seconds": value})) == Claims(malformed=("retention",))


def test_whether_a_conversation_goes_on():
    for value in (True, False):
        said = {"expected_resume": value}
        wrapped = {"vllm_xargs": {"agent_hint": said}}
        assert (
            claims(context(said)) == claims({"agent_hint": said}) == claims(wrapped) == Claims(resumes=value)
        )
    assert claims({"agent_hint": {"session_id": "s", "kv_retention_ttl_seconds": 5}}) is None
    assert claims({"agent_hint": {"expected_resume": True}, **context({})}) is None  # they are never mixed
    assert claims({"agent_hint": {"expected_resume": "maybe"}}) == Claims(malformed=("resume",))


def test_header_and_body_make_one_claim():
    body = {"service_tier": "flex", **context({"kv_retention_ttl_seconds": 60})}
    assert claims(body, X_Turnpike_Class="reactive") == Claims(
        service_class="reactive", service_tier="flex", retain_s=60.0
    )
    assert claims({}, X_Turnpike_Class="Background") == Claims(service_class="proactive")
    assert claims({}, X_Turnpike_Class="interactive") == Claims(service_class="reactive")
    both = {"service_tier": 1, **context({"kv_retention_ttl_seconds": "x"})}
    assert claims(both, X_Turnpike_Class="x") == Claims(malformed=("class", "service_tier", "retention"))


@pytest.mark.parametrize(
    ("endpoint", "body", "kind"),
    [(CHAT, b"\xff", "application/json"), (AUDIO, b"--x--", "multipart/form-data; boundary=x")],
)
def test_headers_count_where_the_body_says_nothing(endpoint, body, kind):
    fields = headers(X_Turnpike_Class="proactive", Content_Type=kind)
    assert read_facts(endpoint, fields, body).claims == Claims(service_class="proactive")
