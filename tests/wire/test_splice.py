import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.wire.splice import splice_fields

scalars = st.none() | st.booleans() | st.integers() | st.text(max_size=8)
json_values = st.recursive(
    scalars,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=4), inner, max_size=3),
    max_leaves=5,
)
objects = st.dictionaries(st.text(max_size=4), json_values, max_size=4)
blanks = st.text(" \t\r\n", max_size=200)
fields = st.dictionaries(
    st.sampled_from(["session_id", "cache_salt", "priority"]), st.text() | st.integers(0, 2**53)
)


def splice(body: bytes, ours: dict[str, str | int]) -> bytes:
    return b"".join(splice_fields(body, ours))


@given(objects, fields, blanks, blanks, blanks)
def test_our_fields_win_and_nothing_else_changes(original, ours, before, inside, after):
    text = json.dumps(original)
    body = f"{before}{text[:-1]}{inside}}}{after}".encode()
    spliced = splice(body, ours)
    assert json.loads(spliced) == {**original, **ours}
    assert not ours or spliced.startswith(body.rstrip(b" \t\r\n")[:-1])


def test_a_large_body_is_not_copied():
    body = json.dumps({"messages": ["x" * 100_000]}).encode()
    head, tail = splice_fields(body, {"priority": 3})
    assert isinstance(head, memoryview) and head.obj is body
    assert tail == b',"priority":3}'


def test_without_fields_the_body_is_passed_as_it_is():
    body = b'{"a": 1}\n'
    assert splice_fields(body, {})[0] is body


@pytest.mark.parametrize("body", [b"", b" " * 500, b"}", b"{", b"[]", b"null", b'"{}"', b'{"a":1} x', b"x{}"])
def test_what_is_no_object_is_refused(body):
    with pytest.raises(ValueError, match="not a JSON object"):
        splice_fields(body, {"a": 1})


def test_thousands_of_blanks_do_no_harm():
    assert json.loads(splice(b"{" + b" " * 5000 + b"}" + b"\n" * 5000, {"a": 1})) == {"a": 1}


@given(objects, st.data())
def test_malformed_bodies_stay_malformed(original, data):
    body = json.dumps(original).encode()
    cut = body[: data.draw(st.integers(1, len(body)))] + data.draw(
        st.sampled_from([b"}", b"]}", b'"}', b"}}", b"{}"])
    )
    try:
        json.loads(cut)
    except ValueError:
        with pytest.raises(ValueError):  # noqa: PT011 - refused by us, or by any parser behind us
            json.loads(splice(cut, {"cache_salt": "ours"}))
