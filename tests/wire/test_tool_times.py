"""`x-turnpike-tools`: what a client says its tools took."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.wire.endpoints import classify
from gateway.wire.facts import read_facts
from gateway.wire.tool_times import read_tool_times


def read(value: str) -> tuple[list[tuple[str | None, float, bool]], bool]:
    spans, is_whole = read_tool_times(value)
    return [(span.call, span.duration_s, span.has_failed) for span in spans], is_whole


def test_calls_are_told_with_what_they_took():
    assert read("") == ([], True)
    assert read("call_1;dur=1250.5") == ([("call_1", 1.2505, False)], True)
    assert read(' functions.bash:0 ; dur="40" ;failed, b;desc=x;dur=0') == (
        [("functions.bash:0", 0.04, True), ("b", 0.0, False)],
        True,
    )


@pytest.mark.parametrize(
    "value",
    ["a", "a;dur", "a;dur=", "a;dur=-1", "a;dur=1e9", "a;dur=nan", ";dur=1", "a\x01;dur=1", "a;dur=٣"],
)
def test_what_cannot_be_read_is_left_out_and_the_rest_is_not(value):
    assert read(value) == ([], False)
    assert read(f"b;dur=1,{value}") == ([("b", 0.001, False)], False)


def test_so_many_and_no_more():
    spans, is_whole = read(",".join(f"c{number};dur=1" for number in range(100)))
    assert len(spans) == 64 and is_whole


@given(st.text())
def test_whatever_is_sent_is_read(value):
    spans, _ = read(value)
    assert all(call and 0 <= took_s < 1e7 for call, took_s, _ in spans)


def facts(value: bytes):
    endpoint = classify("POST", "/v1/chat/completions")
    return read_facts(endpoint, [(b"X-Turnpike-Tools", value)], b'{"messages":[]}')


def test_a_request_says_so_and_what_was_malformed():
    assert [span.call for span in facts(b"a;dur=5").tool_times] == ["a"]
    assert facts(b"a;dur=5").claims is None
    assert facts(b"a").tool_times == () and facts(b"a").claims.malformed == ("tools",)
