import itertools
import json
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from gateway.wire.object_end import ObjectEnd

VALUES: Any = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.text(st.sampled_from('ab{}[]"\\ /\n\u2028é😀'))
    | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=4), inner, max_size=3),
    max_leaves=12,
)
OBJECTS = st.dictionaries(st.text(st.sampled_from('k{}"\\')), VALUES, max_size=4)


@given(
    OBJECTS,
    st.booleans(),
    st.sampled_from([None, 1]),
    st.sampled_from(["", " ", "\n}", "{}", '"']),
    st.data(),
)
def test_an_object_ends_once_in_the_piece_that_ends_it(value, is_ascii, indent, behind, data):
    text = " " + json.dumps(value, ensure_ascii=is_ascii, indent=indent)
    at = sorted(data.draw(st.lists(st.integers(0, len(text) + len(behind)), max_size=12)))
    edges = [0, *at, len(text) + len(behind)]
    end, seen = ObjectEnd(), []
    for left, right in itertools.pairwise(edges):
        if end.feed((text + behind)[left:right]):
            seen.append((left, right))
        assert end.is_inside == (text[:right].strip() != "" and not seen)
    assert len(seen) == 1 and seen[0][0] < len(text) <= seen[0][1]


@given(OBJECTS, st.data())
def test_what_is_cut_has_not_ended(value, data):
    text = json.dumps(value)
    cut = data.draw(st.integers(0, len(text) - 1))
    end = ObjectEnd()
    assert not any(end.feed(character) for character in text[:cut])


@given(st.sampled_from(["[{}]", '"{}"', "null", "x{}", "}{}"]), st.booleans())
def test_what_is_no_object_never_ends(text, is_one_piece):
    end = ObjectEnd()
    assert not any(end.feed(each) for each in ([text] if is_one_piece else text))
    assert not end.is_inside
