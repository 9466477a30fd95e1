import contextlib
import json

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec import Raw
from pydantic import TypeAdapter

from gateway.wire import body as module
from gateway.wire.body import (
    ABSENT,
    UNREADABLE,
    Oversized,
    ResponsesBody,
    is_false,
    is_true,
    read_as,
    read_text,
    read_text_or_id,
    truth_of,
)
from tests.wire.shapes import decode_body

TEXT = msgspec.json.Decoder(str)


def test_fields_are_slices_and_unknown_ones_are_skipped():
    body = decode_body(
        b'{"x": [1], "model": "m", "messages": [{"a": 1}, 2], "tools": null}', is_responses=False
    )
    assert bytes(body.model) == b'"m"' and body.messages is not None
    assert [bytes(item) for item in body.messages] == [b'{"a": 1}', b"2"]
    assert body.tools is None and body.stream is ABSENT


def test_input_is_read_for_responses_alone():
    numbers = b'{"input": [[1, 2], [3]]}'
    assert not hasattr(decode_body(numbers, is_responses=False), "input")
    body = decode_body(numbers, is_responses=True)
    assert isinstance(body, ResponsesBody) and body.input is not None and len(body.input) == 2
    text = decode_body(b'{"input": "hi"}', is_responses=True)
    assert isinstance(text, ResponsesBody) and text.input == "hi"


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"null",
        b"[]",
        b'{"messages": {}}',
        b'{"messages": "hi"}',
        b'{"tools": 3}',
        b'{"model": "m"} x',
        b'{"messages": [NaN]}',
        b'{"model": ' + b"[" * 100_000,
        b'{"x": ' + b'{"a":' * 100_000,
        b"\xff\xfe",
        b"\xef\xbb\xbf{}",
    ],
)
def test_unreadable_bodies(body):
    with pytest.raises(UNREADABLE):
        decode_body(body, is_responses=False)


def test_millions_of_tiny_items_are_not_read(monkeypatch):
    monkeypatch.setattr(module, "MAX_STRUCTURE", 12)  # ten commas, a brace and a bracket
    text = b'{"messages": [' + b'"' + b"x" * 2000 + b'"' + b",1" * 10 + b"]}"
    messages = decode_body(text, is_responses=False).messages
    assert messages is not None and len(messages) == 11
    with pytest.raises(Oversized, match="too many values"):
        decode_body(text.replace(b"]", b",1]"), is_responses=False)
    with pytest.raises(Oversized):
        decode_body(text.replace(b"1]", b"[]]"), is_responses=False)


def test_a_body_of_escapes_is_not_read(monkeypatch):
    monkeypatch.setattr(module, "MAX_STRUCTURE", 100)
    monkeypatch.setattr(module, "MAX_ESCAPES", 100)
    decode_body(b'{"model": "%b"}' % (b"\\n" * 100), is_responses=False)
    with pytest.raises(Oversized):
        decode_body(b'{"model": "%b"}' % (b"\\n" * 101), is_responses=False)


@pytest.mark.parametrize("field", ["messages", "tools", "input"])
def test_a_conversation_of_too_many_items_is_not_read(monkeypatch, field):
    monkeypatch.setattr(module, "MAX_ITEMS", 3)
    decode_body(b'{"%b": [1,2,3]}' % field.encode(), is_responses=True)
    with pytest.raises(Oversized, match="too many items"):
        decode_body(b'{"%b": [1,2,3,4]}' % field.encode(), is_responses=True)


def test_a_large_body_is_counted_in_slices(monkeypatch):
    monkeypatch.setattr(module, "_PIECE_BYTES", 1000)
    body = b'{"model": "' + b"x" * module.MAX_STRUCTURE + b'"}'
    slices = len(list(module.decoding_body(body, is_responses=False)))
    assert slices == len(body) // 1000 + 1


@pytest.mark.parametrize(
    ("raw", "text"),
    [
        (ABSENT, None),
        (Raw(b"null"), None),
        (Raw(b"3"), None),
        (Raw(b'{"a": 1}'), None),
        (Raw(b'"\xff"'), None),
        (Raw(b'"a\\u00e9"'), "aé"),
    ],
)
def test_text(raw, text):
    assert read_text(raw) == text
    assert read_as(TEXT, raw) == text


@pytest.mark.parametrize(
    ("raw", "text"),
    [
        (ABSENT, None),
        (Raw(b'"conv_1"'), "conv_1"),
        (Raw(b'{"id": "conv_1"}'), "conv_1"),
        (Raw(b'{"id": 3}'), None),
        (Raw(b"{}"), None),
        (Raw(b"[]"), None),
    ],
)
def test_text_or_id(raw, text):
    assert read_text_or_id(raw) == text


PYDANTIC = TypeAdapter(bool)
words = st.sampled_from("0 1 on off t f true false y n yes no tru 01 1.0 oN TRUE False Yes nO".split())
flags = st.one_of(
    st.builds(
        "{}{}{}".format, st.sampled_from(("", " ", "\n", "\0")), words, st.sampled_from(("", " ", "s"))
    ),
    st.none() | st.booleans() | st.integers(-2, 2) | st.floats(-1, 2) | st.text(max_size=5),
    st.sampled_from((1.0, 0.0, -0.0, [], {}, [1], 2**70, "\u017fo", "\uff59", "o\u0307n", "\u212a")),
)


@given(flags, st.booleans())
def test_flags_are_read_as_leniently_as_engines_read_them(value, ascii_alone):
    """vLLM reads a body with Python's json, and its fields with pydantic."""
    text = json.dumps(value, ensure_ascii=ascii_alone).encode("utf-8", "surrogatepass")
    assert _is_as_pydantic_says(text)


SPELLINGS = [b"1e0", b"1.00", b"10e-1", b"-0", b"-0.0e7", b"0.1e1", b"1e400", b"1" * 5000,
             b'"\\u0059\\u0065s"', b'"\\u0074\\u0072\\u0075\\u0065"', b'"o\\u006e "']  # fmt: skip


@pytest.mark.parametrize("text", SPELLINGS)
def test_flags_in_other_spellings(text):
    assert _is_as_pydantic_says(text)


def _is_as_pydantic_says(text: bytes) -> bool:
    expected = None
    with contextlib.suppress(ValueError):
        expected = PYDANTIC.validate_python(json.loads(text))
    raw = Raw(text)
    return (truth_of(raw), is_true(raw), is_false(raw)) == (expected, expected is True, expected is False)


def test_an_absent_flag_is_neither():
    assert truth_of(ABSENT) is None
