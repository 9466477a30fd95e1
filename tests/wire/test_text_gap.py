"""Texts that are found by what stands around them are the texts that a parser would find."""

import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gateway.domain.request import Protocol, Work
from gateway.wire.hashing import text_hash
from gateway.wire.observer import observe
from gateway.wire.text_gap import TextGap, find_gap

BEFORE, AFTER = b'data: {"choices":[{"index":0,"delta":{"content":"', b'"},"finish_reason":null}]}\n\n'


def event(content: str, *, ascii_only: bool = False) -> bytes:
    text = json.dumps(content, ensure_ascii=ascii_only).encode("utf-8", "surrogatepass")
    return BEFORE + text[1:-1] + AFTER


GAP = TextGap(BEFORE, AFTER)


@pytest.mark.parametrize(
    "text", ["", "a", 'say "hi"', "back\\slash", "line\n\nend", "naïve → 😀", '"},"x":"']
)
@pytest.mark.parametrize("ascii_only", [True, False])
def test_the_text_is_found(text, ascii_only):
    assert GAP.text_of(event(text, ascii_only=ascii_only)) == text
    assert GAP.text_of(event(text, ascii_only=ascii_only) * 3) == text * 3


OTHERS = {
    "an empty event": b"\n\n",
    "too short": BEFORE[:-1] + AFTER,
    "a tool call": BEFORE.replace(b"content", b"tool_calls") + b"a" + AFTER,
    "an unescaped quote": BEFORE + b'a","tool_calls":"b' + AFTER,
    "an end": BEFORE + b"a" + AFTER.replace(b"null", b'"stop"'),
    "a raw line end": BEFORE + b"a\nb" + AFTER,
    "half an escape": BEFORE + b"a\\" + AFTER,
    "bad UTF-8": BEFORE + b"\xff" + AFTER,
    "the end mark": b"data: [DONE]\n\n",
    "a comment": b": ping\n\n",
}


@pytest.mark.parametrize("other", OTHERS.values(), ids=OTHERS)
def test_another_event_is_not_taken_for_text(other):
    for events in (other, event("a") + other, other + event("a"), event("a") + other + event("b")):
        assert GAP.text_of(events) is None


def test_the_gap_is_found_in_the_last_of_several_events():
    gap = find_gap(b'data: {"x":1}\n\n' + event("a"), b'"content":"')
    assert gap is not None and gap.with_text("b") == event("b")
    assert find_gap(b'data: {"x":1}\n\n', b'"content":"') is None


_contents = st.lists(st.text(max_size=8), min_size=1, max_size=30)


@given(
    _contents, st.lists(st.integers(0, 30), max_size=6), st.booleans(), st.sampled_from(["content", "text"])
)
@settings(deadline=None)
def test_what_was_said_is_the_same_however_it_is_read(contents, cuts, ascii_only, field):
    """Also with events in between that tell something else in the same place."""
    events: list[dict[str, Any]] = []
    for number, content in enumerate(contents):
        said: dict[str, Any] = {"text": content} if field == "text" else {"delta": {"content": content}}
        events.append(said | {"index": 0, "finish_reason": None})
        if number in cuts:
            events.append({"index": 1, "delta": {"content": "another choice"}, "finish_reason": None})
            events.append({"index": 0, "delta": {"content": None, "reasoning": '"content":"x"'}})
    blocks = [
        b"data: %s\n\n"
        % json.dumps({"choices": [each]}, ensure_ascii=ascii_only, separators=(",", ":")).encode()
        for each in events
    ]
    first = [each for each in events if each["index"] == 0]
    said_text = "".join(each.get("text") or each.get("delta", {}).get("content") or "" for each in first)
    for size in (1, 3, len(blocks)):
        observer = observe(Protocol.CHAT, Work.GENERATE, "text/event-stream", None)
        for at in range(0, len(blocks), size):
            observer.feed(b"".join(blocks[at : at + size]))
        assert observer.answer(200).utterance.text == text_hash(said_text)
