"""What a client says of how urgent it is, and what is no way to say it."""

import json
from typing import Any

import pytest

from gateway.domain.request import Claims
from gateway.wire.endpoints import classify
from gateway.wire.facts import read_facts
from tests.wire.shapes import encode, headers, user

CHAT = classify("POST", "/v1/chat/completions")
AUDIO = classify("POST", "/v1/audio/transcriptions")


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


@pytest.mark.parametrize(("stated", "expected"), [("30", 30.0), ("0.25", 0.25), ("604800", 604_800.0)])
def test_a_deadline(stated, expected):
    assert claims(X_Turnpike_Deadline=stated) == Claims(deadline_s=expected)


@pytest.mark.parametrize(
    "stated",
    ["", "0", "0.0", "-1", "604800.1", "1e3", "inf", "nan", "0x10", "1_0", "30s", "9" * 5000, "\xb2", "1."],
)
def test_what_is_no_deadline(stated):
    assert claims(X_Turnpike_Deadline=stated) == Claims(malformed=("deadline",))


def test_half_of_it_is_worth_reading():
    found = claims(X_Turnpike_Class="proactive", X_Turnpike_Deadline="soon")
    assert found == Claims(service_class="proactive", malformed=("deadline",))


@pytest.mark.parametrize("tier", ["priority", "default", "flex"])
def test_a_service_tier(tier):
    assert claims({"service_tier": tier}) == Claims(service_tier=tier)


@pytest.mark.parametrize("tier", ["auto", "standard_only", "Flex", "", None])
def test_a_service_tier_that_says_nothing_of_urgency(tier):
    assert claims({"service_tier": tier}) is None


@pytest.mark.parametrize("tier", [1, True, ["flex"], {"tier": "flex"}])
def test_what_is_no_service_tier(tier):
    assert claims({"service_tier": tier}) == Claims(malformed=("service_tier",))


@pytest.mark.parametrize("value", [60, 60.0, "60"])
def test_a_deadline_in_the_agentic_context(value):
    inner = {"session_id": "s", "deadline_seconds": value}
    assert claims(context(inner)) == claims(context(json.dumps(inner))) == Claims(deadline_s=60.0)


@pytest.mark.parametrize("value", [0, -1, True, 1e9, "soon", [60]])
def test_what_is_no_deadline_in_the_agentic_context(value):
    assert claims(context({"deadline_seconds": value})) == Claims(malformed=("deadline",))


@pytest.mark.parametrize(
    "value", [None, 3, "text", "{", {"deadline_seconds": None}, {"deadline_seconds": 60, "x": "y" * 20_000}]
)
def test_a_context_without_a_deadline(value):
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


def test_header_and_body_make_one_claim_and_our_deadline_counts():
    body = {"service_tier": "flex", **context({"deadline_seconds": 60})}
    assert claims(body, X_Turnpike_Class="reactive", X_Turnpike_Deadline="30") == Claims(
        service_class="reactive", service_tier="flex", deadline_s=30.0
    )
    assert claims(body, X_Turnpike_Deadline="x") == Claims(
        service_tier="flex", deadline_s=60.0, malformed=("deadline",)
    )
    both = {"service_tier": 1, **context({"deadline_seconds": "x"})}
    assert claims(both, X_Turnpike_Deadline="x") == Claims(malformed=("deadline", "service_tier"))


@pytest.mark.parametrize(
    ("endpoint", "body", "kind"),
    [(CHAT, b"\xff", "application/json"), (AUDIO, b"--x--", "multipart/form-data; boundary=x")],
)
def test_headers_count_where_the_body_says_nothing(endpoint, body, kind):
    fields = headers(X_Turnpike_Class="proactive", Content_Type=kind)
    assert read_facts(endpoint, fields, body).claims == Claims(service_class="proactive")
