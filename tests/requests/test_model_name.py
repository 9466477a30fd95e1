"""Another model's name in a body: nothing else changes."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.requests import model_name
from gateway.requests.model_name import with_model, with_model_in_form
from gateway.wire.form import read_form_field
from tests.wire.test_form import AUDIO, TYPE, form
from tests.wire.test_splice import json_values

NAME = "Qwen/Qwen3-32B"
BODIES = {
    "chat": b'{"model":"smart","messages":[{"role":"user","content":"hi \\u00e9 1.50"}]}',
    "completions": b'{ "prompt" : "hi", "model" : "smart"\n}',
    "responses": b'{"input":[{"type":"message","content":"say \\"model\\":\\"smart\\""}],"model":"smart"}',
    "messages": b'{"max_tokens":9,"model":"smart","metadata":{"model":"smart"},"messages":[]}',
}


@pytest.mark.parametrize("body", BODIES.values(), ids=BODIES)
def test_only_the_name_changes(body):
    sent = with_model(body, NAME)
    assert json.loads(sent)["model"] == NAME
    begins = 0
    while sent[begins] == body[begins]:
        begins += 1
    ends = len(body) - len(b"smart") - begins
    assert body[:begins] + b"smart" + body[begins + 5 :] == body
    assert sent == body[:begins] + NAME.encode() + body[len(body) - ends :]


@pytest.mark.parametrize(
    "body",
    [
        b'{"metadata":{"model":"smart"},"model":"smart"}',
        b'{"a":{"model":"x"},"b":[{"model":"y"}],"model":"smart"}',
        b'{"model":"first","model":"smart"}',
    ],
)
def test_what_a_parser_takes_for_the_model_is_replaced(body):
    said = json.loads(body)
    assert json.loads(with_model(body, NAME)) == {**said, "model": NAME}


@pytest.mark.parametrize(
    "body", [b'{"mod\\u0065l":"smart","x":{"model":"smart"}}', b'{"model":"sm\\u0061rt"}']
)
def test_a_name_that_is_spelt_with_escapes_is_replaced_by_a_last_field(body):
    sent = with_model(body, NAME)
    assert sent.startswith(body[:-1]) and json.loads(sent)["model"] == NAME


def test_a_body_that_is_too_large_to_be_read_again_gets_a_last_field(monkeypatch):
    monkeypatch.setattr(model_name, "MAX_OUTLINE_BYTES", 10)
    body = BODIES["chat"]
    assert with_model(body, NAME) == body[:-1] + b',"model":"Qwen/Qwen3-32B"}'


@given(
    st.dictionaries(st.sampled_from(["model", "a", "\\", '"model":"smart"']), json_values, max_size=4),
    st.booleans(),
)
def test_whatever_else_it_says_stays(said, is_ascii):
    body = json.dumps({**said, "model": "smart"}, ensure_ascii=is_ascii).encode()
    assert json.loads(with_model(body, NAME)) == {**said, "model": NAME}


def test_what_is_no_object_names_no_model():
    with pytest.raises(ValueError, match="not a JSON object"):
        with_model(b"[]", NAME)


def test_the_model_of_a_form():
    body = form(AUDIO, ('name="model"', b"smart"), ('name="language"', b"en"))
    sent = with_model_in_form(TYPE, body, NAME)
    assert read_form_field(TYPE, sent, "model") == NAME
    assert sent == form(AUDIO, ('name="model"', NAME.encode()), ('name="language"', b"en"))
    assert with_model_in_form(TYPE, form(AUDIO), NAME) == form(AUDIO)
