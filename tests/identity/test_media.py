"""What is no text in a body: pictures, films and sound in base64."""

import base64
import json
import random

import pytest

from gateway.identity.media import COUNTS_AS, PER_TEXT_BYTE
from gateway.requests.facts import read_facts
from gateway.wire.endpoints import classify

LETTERS = base64.b64encode(random.Random(1).randbytes(300_000)).decode()
HIDING = "the quick brown fox " * 600 + "x" * 6000 + " jumps over the lazy dog" * 16_000
"""A text with a run of letters, as base64 has."""
PNG = f"data:image/png;base64,{LETTERS}"
CHAT, MESSAGES, RESPONSES = "/v1/chat/completions", "/v1/messages", "/v1/responses"


def base64_source(data):
    return {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": data}}


def tool_result(*parts):
    return {"type": "tool_result", "tool_use_id": "toolu_1", "content": list(parts)}


PARTS = {
    "chat": (CHAT, {"type": "image_url", "image_url": {"url": PNG, "detail": "high"}}),
    "chat, in short": (CHAT, {"type": "image_url", "image_url": PNG}),
    "chat, sound": (CHAT, {"type": "input_audio", "input_audio": {"data": LETTERS, "format": "wav"}}),
    "chat, a film": (
        CHAT,
        {"type": "video_url", "video_url": {"url": f"data:video/mp4;base64,{LETTERS}"}},
    ),
    "messages": (MESSAGES, base64_source(LETTERS)),
    "messages, of a tool": (MESSAGES, tool_result(base64_source(LETTERS))),
    "responses": (RESPONSES, {"type": "input_image", "image_url": PNG}),
}
TEXTS = {
    "a text": {"type": "text", "text": LETTERS},
    "a picture's address in a text": {"type": "text", "text": PNG},
    "JSON in a text": {"type": "text", "text": json.dumps({"url": PNG, "data": LETTERS})},
    "a document that is text": {"type": "document", "source": {"type": "text", "data": HIDING}},
    "a source that is text": {"type": "image", "source": {"type": "text", "data": LETTERS}},
    "a document": {"type": "document", "source": {"type": "base64", "data": LETTERS}},
    "a file": {"type": "input_file", "file_data": f"data:text/plain;base64,{LETTERS}"},
    "a picture of words": {"type": "image_url", "image_url": {"url": f"data:image/png;base64,{HIDING}"}},
    "a source of words": base64_source(HIDING),
    "sound of words": {"type": "input_audio", "input_audio": {"data": HIDING}},
    "a picture that is a text": {
        "type": "image_url",
        "image_url": {"url": f"data:text/plain;base64,{LETTERS}"},
    },
    "a picture's address alone": {"type": "image_url", "image_url": {"url": LETTERS}},
    "input of a tool": {"type": "tool_use", "id": "toolu_1", "name": "write", "input": {"data": HIDING}},
    "a picture in a tool's input": {
        "type": "tool_use",
        "id": "t",
        "name": "w",
        "input": base64_source(LETTERS),
    },
    "a picture in another part": {"type": "text", "text": "x", "content": [base64_source(LETTERS)]},
    "reasoning": {"type": "reasoning", "encrypted_content": LETTERS},
    "of another type": {"type": ["image"], "image_url": PNG, "source": [LETTERS]},
}
FIELDS = {
    "a tool's schema": {"tools": [{"type": "function", "function": {"parameters": {"data": HIDING}}}]},
    "a picture in a schema": {"tools": [{"content": [base64_source(LETTERS)]}]},
    "template kwargs": {"chat_template_kwargs": {"data": HIDING, "content": [base64_source(LETTERS)]}},
    "documents": {"documents": [{"title": "t", "data": LETTERS}]},
    "metadata": {"metadata": {"data": LETTERS}},
}


def facts_of(path, *parts, role="user", before=(), **fields):
    items = [*before, {"role": role, "content": list(parts)}]
    body = {"model": "m", "input" if path == RESPONSES else "messages": items, **fields}
    return read_facts(classify("POST", path), [], json.dumps(body).encode())


@pytest.mark.parametrize(("path", "part"), PARTS.values(), ids=PARTS)
def test_a_medium_counts_as_one_of_usual_size(path, part):
    facts = facts_of(path, {"type": "text", "text": "What is it?"}, part, {"type": "text", "text": "Well?"})
    assert COUNTS_AS < facts.text_bytes < COUNTS_AS + 400
    twice = facts_of(path, part, part)
    assert 2 * COUNTS_AS < twice.text_bytes < 2 * COUNTS_AS + 600


def test_a_large_one_counts_by_its_size_and_one_in_a_huge_item_by_its_bytes():
    letters = LETTERS * 2
    large = facts_of(MESSAGES, base64_source(letters))
    assert max(COUNTS_AS, len(letters) // PER_TEXT_BYTE) < large.text_bytes < 2 * COUNTS_AS
    photo = facts_of(MESSAGES, base64_source(LETTERS * 4))
    assert photo.text_bytes < len(LETTERS * 4) / PER_TEXT_BYTE + 400
    screens = facts_of(MESSAGES, *[base64_source(LETTERS)] * 10)
    assert 10 * COUNTS_AS < screens.text_bytes < 10 * COUNTS_AS + 2000
    huge = facts_of(MESSAGES, base64_source(LETTERS * 21))
    assert huge.text_bytes == huge.body_bytes
    small = facts_of(MESSAGES, base64_source(LETTERS[: COUNTS_AS - 4]))
    assert small.text_bytes == small.body_bytes


@pytest.mark.parametrize(("path", "part"), PARTS.values(), ids=PARTS)
def test_what_the_model_is_said_to_have_said_is_text(path, part):
    """vLLM writes a result in an answer into the prompt by `str`."""
    facts = facts_of(path, part, role="assistant")
    assert facts.text_bytes == facts.body_bytes


@pytest.mark.parametrize("path", [CHAT, MESSAGES, RESPONSES])
@pytest.mark.parametrize("part", TEXTS.values(), ids=TEXTS)
@pytest.mark.parametrize("role", ["user", "assistant"])
def test_what_may_be_text_counts_as_such(path, part, role):
    facts = facts_of(path, part, role=role)
    assert facts.text_bytes == facts.body_bytes > len(LETTERS)


@pytest.mark.parametrize("fields", FIELDS.values(), ids=FIELDS)
def test_what_is_no_content_counts_as_text(fields):
    facts = facts_of(CHAT, {"type": "text", "text": "go"}, **fields)
    assert facts.text_bytes == facts.body_bytes > len(LETTERS)


def test_a_conversation_that_goes_on_has_its_pictures_still():
    said = [{"role": "user", "content": [PARTS["chat"][1]]}]
    for turn in range(12):
        facts = facts_of(CHAT, {"type": "text", "text": f"go on {turn}"}, before=said)
        assert COUNTS_AS < facts.text_bytes < COUNTS_AS + 400 + 200 * turn
        said += [
            {"role": "user", "content": f"go on {turn}"},
            {"role": "assistant", "content": f"yes {turn}"},
        ]
    tool = {"type": "function_call_output", "call_id": "c1", "output": [PARTS["responses"][1]]}
    facts = facts_of(RESPONSES, {"type": "input_text", "text": "and?"}, before=[tool])
    assert facts.text_bytes < COUNTS_AS + 400
