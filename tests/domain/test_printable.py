"""Text from outside does nothing in a terminal, and is the same text if there was nothing to fear."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.domain.printable import printable


@pytest.mark.parametrize("text", ["", "bash", "größer 名前 🚀", "a b\\u001b"])
def test_what_prints_stays_as_it_is(text):
    assert printable(text) is text


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("\x1b[2Jx", "\\u001b[2Jx"),
        ("a\nb\r", "a\\u000ab\\u000d"),
        ("\x9b31m", "\\u009b31m"),
        ("\u202egnp.exe", "\\u202egnp.exe"),
        ("\u2028", "\\u2028"),
        ("\U000e0001", "\\udb40\\udc01"),
    ],
)
def test_what_does_not_print_is_an_escape(text, shown):
    assert printable(text) == shown


def test_what_is_to_be_kept():
    assert printable("a\n\x1b", keep="\n") == "a\n\\u001b"


@given(st.text())
def test_it_prints_whatever_comes_and_json_stays_the_same(text):
    assert printable(text).isprintable()
    assert json.loads(printable(json.dumps(text, ensure_ascii=False))) == text
