"""The contract: what is understood, what is refused, that nothing makes a reader fail."""

import json
from dataclasses import fields
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from turnpike_vllm import hints
from turnpike_vllm.hints import Hint, Refusal, ServiceClass, parse

FULL = Hint(
    session="s-1",
    seq=7,
    thread="s-1.2",
    service=ServiceClass.PROACTIVE,
    age_s=12.5,
    retain_s=6.0,
    reuse=0.9,
    is_final=True,
    is_finished=True,
    prefetch_in_s=2.0,
)
FIELDS = sorted(FULL.as_dict())


def said(**more: Any) -> dict[str, Any]:
    return {"v": 1, "session": "s", "seq": 1, **more}


def test_a_full_hint_comes_back_as_it_was_sent() -> None:
    assert parse(FULL.as_json()) == FULL
    assert parse(FULL.as_dict()) == FULL
    assert len(FIELDS) == 1 + len(fields(Hint))


def test_what_is_not_said_is_left_out() -> None:
    assert Hint(session="s", seq=0).as_dict() == {"v": 1, "session": "s", "seq": 0}
    assert parse('{"v":1,"session":"s","seq":0}') == Hint(session="s", seq=0)


@pytest.mark.parametrize(
    "raw",
    [
        None,
        3,
        "",
        "{",
        "[1]",
        b"\xff",
        "[" * 20_000,
        {"session": "s", "seq": 1},
        {"v": 1, "seq": 1},
        {"v": 1, "session": "s"},
        said(session=""),
        said(session="x" * 257),
        said(session="a\nb"),
        said(session=5),
        said(thread=""),
        said(seq=-1),
        said(seq=True),
        said(seq=1.0),
        said(seq=1 << 60),
        said(age_s=-1),
        said(retain_s=-0.1),
        said(retain_s=float("nan")),
        said(retain_s=float("inf")),
        said(retain_s="6"),
        said(reuse=1.01),
        said(**{"class": "urgent"}),
        said(**{"class": 1}),
        said(final=1),
        said(finish="yes"),
        json.dumps(said(thread="x" * 20_000)),
    ],
)
def test_malformed(raw: object) -> None:
    assert parse(raw) is Refusal.MALFORMED


@pytest.mark.parametrize("raw", [said(v=2), said(v="1"), said(v=True)])
def test_unknown(raw: object) -> None:
    assert parse(raw) is Refusal.UNKNOWN


def test_what_another_version_of_the_gateway_says_beside_it_is_ignored() -> None:
    more = said(retain_s=2.0, superseded=True, band=2, turn=7, tags=[["response", 0.5]], colour="red")
    assert parse(more) == Hint(session="s", seq=1, retain_s=2.0)


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
    max_leaves=8,
)


@given(st.dictionaries(st.sampled_from(FIELDS), JSON) | st.text(max_size=60) | st.binary(max_size=60))
def test_nothing_makes_a_reader_fail(raw: Any) -> None:
    assert isinstance(parse(raw), Hint | Refusal)
    assert isinstance(parse(said(**raw) if isinstance(raw, dict) and "v" not in raw else raw), Hint | Refusal)


def test_several_at_once() -> None:
    assert hints.parse_many({"hints": [said(), {}]}) == [Hint(session="s", seq=1), Refusal.MALFORMED]
    assert hints.parse_many(said()) == [Hint(session="s", seq=1)]
    assert hints.parse_many({"hints": {}}) == [Refusal.MALFORMED]
    assert hints.parse_many({"hints": [said()] * 257}) == [Refusal.MALFORMED]


def test_actions_of_an_envelope() -> None:
    ours = SimpleNamespace(
        action_type=hints.ACTION_TYPE,
        action_version=hints.ACTION_VERSION,
        payload=Hint(session="s", seq=1).as_dict(),
    )
    newer = SimpleNamespace(action_type=hints.ACTION_TYPE, action_version="2", payload={})
    others = SimpleNamespace(action_type="somebody.else", action_version="1", payload={})
    assert hints.parse_actions([others, ours, newer]) == [Hint(session="s", seq=1), Refusal.UNKNOWN]
    assert hints.parse_actions(None) == []


KEY = "k" * 64
HINT = Hint(session="s", seq=1, retain_s=3.0)


def test_what_was_signed_is_read_with_the_same_key_alone() -> None:
    signed = hints.sign(HINT.as_json(), KEY)
    assert hints.parse_signed(signed, KEY) == HINT
    assert hints.parse_signed(signed, "another") is Refusal.UNSIGNED
    assert hints.parse_signed(hints.sign("{}", KEY), KEY) is Refusal.MALFORMED
    assert hints.parse_signed(hints.sign("\ud800", KEY), KEY) is Refusal.MALFORMED


@given(
    st.one_of(
        st.text(st.characters(codec=None)),
        st.binary(),
        st.integers(),
        st.none(),
        st.lists(st.text()),
        st.builds(
            lambda mac, text: f"{mac} {text}",
            st.text("0123456789abcdef", min_size=64, max_size=64),
            st.text(),
        ),
        st.builds(lambda seq: Hint(session="s", seq=seq, retain_s=0.0).as_json(), st.integers(0, 2**53)),
        st.builds(lambda at: _changed(hints.sign(HINT.as_json(), KEY), at), st.integers(0, 90)),
    )
)
def test_what_was_not_signed_is_no_hint(raw: object) -> None:
    assert hints.parse_signed(raw, KEY) is Refusal.UNSIGNED


def _changed(text: str, at: int) -> str:
    return text[:at] + chr(ord(text[at]) ^ 1) + text[at + 1 :]
