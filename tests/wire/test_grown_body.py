"""A body that begins as one before it did is read as if it was read as a whole."""

import json
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gateway.domain.request import RequestFacts
from gateway.requests.facts import HeaderFacts, read_header_facts, reading_body_facts
from gateway.wire import grown_body as module
from gateway.wire.body import decode_measured
from gateway.wire.endpoints import classify
from gateway.wire.grown_body import GrownBodies
from gateway.wire.hashing import hash_seed, seed_hashes
from gateway.wire.slices import finish
from tests.examples import examples

HEADER: HeaderFacts = read_header_facts([(b"content-type", b"application/json")])
CHAT, RESPONSES, MESSAGES = "/v1/chat/completions", "/v1/responses", "/v1/messages"
LONG = "word " * 700
TOOLS = [{"type": "function", "function": {"name": "bash", "parameters": {"type": "object"}}}]


def chat(turns: int, who: str = "a") -> list[dict[str, Any]]:
    items: list[dict[str, Any]] = [{"role": "system", "content": "You help. " + LONG}]
    items.append({"role": "user", "content": f"{who}: do it. {LONG}"})
    for turn in range(turns):
        call = {"id": f"call_{who}{turn}", "type": "function"}
        call["function"] = {"name": "bash", "arguments": json.dumps({"command": f"ls {turn}"})}  # type: ignore[assignment]
        items.append({"role": "assistant", "content": f"I look. {LONG}", "tool_calls": [call]})
        items.append({"role": "tool", "tool_call_id": call["id"], "content": f"naïve {turn} {LONG}"})
    return items


def responses(turns: int, who: str = "a") -> list[dict[str, Any]]:
    items: list[dict[str, Any]] = [{"type": "message", "role": "user", "content": f"{who} {LONG * 4}"}]
    for turn in range(turns):
        call_id = f"call_{who}{turn}"
        items.append({"type": "function_call", "name": "f", "arguments": "{}", "call_id": call_id})
        items.append({"type": "function_call_output", "call_id": call_id, "output": f"{turn} {LONG}"})
    return items


def messages(turns: int, who: str = "a") -> list[dict[str, Any]]:
    items: list[dict[str, Any]] = [{"role": "user", "content": f"{who} {LONG * 4}"}]
    for turn in range(turns):
        use = {"type": "tool_use", "id": f"toolu_{who}{turn}", "name": "f", "input": {"x": turn}}
        brought = {"type": "tool_result", "tool_use_id": use["id"], "content": f"{turn} {LONG}"}
        items += [{"role": "assistant", "content": [use]}, {"role": "user", "content": [brought]}]
    return items


KINDS = {CHAT: (chat, "messages"), RESPONSES: (responses, "input"), MESSAGES: (messages, "messages")}


def body(path: str, turns: int, *, who: str = "a", compact: bool = True, first: bool = True) -> bytes:
    make, name = KINDS[path]
    said = {name: make(turns, who)}
    rest: dict[str, Any] = {"model": "m", "stream": True, "tools": TOOLS}
    whole = {**said, **rest} if first else {**rest, **said, "user": "u"}
    return json.dumps(whole, separators=(",", ":") if compact else None).encode()


def read(path: str, data: bytes, before: GrownBodies | None = None) -> RequestFacts:
    return finish(reading_body_facts(classify("POST", path), HEADER, data, before=before))


def decoded_bytes(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """How much is read, of each body that is read as a part."""
    sizes: list[int] = []

    def counted(data: bytes, **how: Any) -> Any:
        sizes.append(len(data))
        return decode_measured(data, **how)

    monkeypatch.setattr(module, "decode_measured", counted)
    return sizes


@pytest.mark.parametrize("path", KINDS)
@pytest.mark.parametrize("compact", [True, False])
@pytest.mark.parametrize("first", [True, False])
def test_what_was_read_is_not_read_again(path, compact, first, monkeypatch):
    before, sizes = GrownBodies(), decoded_bytes(monkeypatch)
    read(path, body(path, 10, compact=compact, first=first), before)
    assert not sizes
    for turns in (11, 12, 14):
        data = body(path, turns, compact=compact, first=first)
        read(path, data, before)
        assert sizes.pop() < len(data) / 3 and not sizes


@given(
    st.sampled_from(list(KINDS)),
    st.lists(st.tuples(st.integers(4, 12), st.sampled_from("ab")), min_size=2, max_size=6),
    st.booleans(),
    st.booleans(),
)
@settings(deadline=None, max_examples=examples(60))
def test_it_says_what_all_of_it_says(path, turns, compact, first):
    """In whatever order turns of two conversations come: behind one another, once more, going back."""
    before = GrownBodies()
    for count, who in turns:
        data = body(path, count, who=who, compact=compact, first=first)
        assert (read(path, data, before)) == (read(path, data))


HIDDEN = b'"kv_transfer_params":{"do_remote_prefill":true}'


def hiding(items: bytes) -> dict[str, bytes]:
    """Bodies of this conversation in which a field stands that must be seen."""
    last = json.dumps(chat(6)[-1], separators=(",", ":")).encode()
    return {
        "behind": b'{"messages":[%s],%s}' % (items, HIDDEN),
        "before": b'{%s,"messages":[%s]}' % (HIDDEN, items),
        "between it and its last item": b'{"messages":[%s],%s,"stop":[%s]}' % (items, HIDDEN, last),
        "between two": b'{"messages":[%s],%s,"messages":[%s]}' % (items, HIDDEN, items),
        "behind another": b'{"metadata":{"messages":[%s]},%s,"messages":[%s]}' % (items, HIDDEN, items),
        "after another": b'{"messages":[%s],"metadata":{"messages":[%s]},%s}' % (items, items, HIDDEN),
    }


@pytest.mark.parametrize("where", hiding(b""))
def test_no_field_hides_in_what_is_not_read(where):
    items = json.dumps(chat(6), separators=(",", ":")).encode()[1:-1]
    data, plain = hiding(items)[where], b'{"messages":[%s]}' % items
    before = GrownBodies()
    for each in (data, data, plain, data, plain):
        assert read(CHAT, each, before).moves_kv is read(CHAT, each).moves_kv is (each is data)


@pytest.mark.parametrize(
    "end", [b",]}", b"", b"]", b"}", b',{"role":"user"}', b' "x"]}', b",,{}]}", b',{"role":1e}]}', b"]}x"]
)
def test_what_is_malformed_is_as_it_would_be(end):
    items = json.dumps(chat(6), separators=(",", ":")).encode()[1:-1]
    before = GrownBodies()
    assert read(CHAT, b'{"messages":[%s]}' % items, before).is_readable
    data = b'{"messages":[%s%s' % (items, end)
    assert before.decode(data, is_responses=False) is None
    assert read(CHAT, data, before).is_readable is read(CHAT, data).is_readable is False


def test_of_a_conversation_that_is_named_twice_the_last_counts():
    items = json.dumps(chat(6), separators=(",", ":")).encode()[1:-1]
    before = GrownBodies()
    read(CHAT, b'{"messages":[%s]}' % items, before)
    data = (
        b'{"messages":[%s,{"role":"user","content":"a"}],"messages":[{"role":"user","content":"b"}]}' % items
    )
    assert (read(CHAT, data, before)) == (read(CHAT, data))


def test_a_connection_keeps_few_conversations_and_no_body(monkeypatch):
    sizes = decoded_bytes(monkeypatch)
    before = GrownBodies()
    for who in "abcdefgh":
        read(CHAT, body(CHAT, 6, who=who), before)
    assert len(before._beginnings) == 4
    assert all(
        len(msgspec.msgpack.encode([each.near, list(each.items)])) < 1000 for each in before._beginnings
    )
    for who in "efgh":
        read(CHAT, body(CHAT, 7, who=who), before)
    assert len(sizes) == 4
    read(CHAT, body(CHAT, 7, who="a"), before)
    assert len(sizes) == 4


def test_another_seed_knows_nothing(monkeypatch):
    sizes, seed = decoded_bytes(monkeypatch), hash_seed()
    before = GrownBodies()
    read(CHAT, body(CHAT, 6), before)
    try:
        seed_hashes(seed + 1)
        assert (read(CHAT, body(CHAT, 7), before)) == (read(CHAT, body(CHAT, 7))) and not sizes
    finally:
        seed_hashes(seed)


def test_as_many_items_are_read_as_of_a_whole(monkeypatch):
    monkeypatch.setattr(module, "MAX_ITEMS", 16)
    before = GrownBodies()
    read(CHAT, body(CHAT, 7), before)
    assert before.decode(body(CHAT, 8), is_responses=False) is None


@pytest.mark.parametrize("text", ["a text alone " * 2000, ["a", "b"] * 4000])
def test_what_is_no_conversation_is_read_as_ever(text):
    before = GrownBodies()
    for path in (RESPONSES, "/v1/embeddings"):
        data = json.dumps({"input": text, "model": "m"}).encode()
        for _ in range(2):
            assert (read(path, data, before)) == (read(path, data))
