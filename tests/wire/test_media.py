"""What is no text in a body: pictures, sound and documents in base64."""

import base64
import json
import random

import pytest

from gateway.wire.endpoints import classify
from gateway.wire.facts import read_facts
from gateway.wire.media import COUNTS_AS, media_bytes

LETTERS = base64.b64encode(random.Random(1).randbytes(750_000)).decode()
PNG = f"data:image/png;base64,{LETTERS}"
PARTS = {
    "chat": {"type": "image_url", "image_url": {"url": PNG, "detail": "high"}},
    "chat, in short": {"type": "image_url", "image_url": PNG},
    "chat, sound": {"type": "input_audio", "input_audio": {"data": LETTERS, "format": "wav"}},
    "chat, a film": {"type": "video_url", "video_url": {"url": f"data:video/mp4;base64,{LETTERS}"}},
    "chat, a document": {"type": "file", "file": {"file_data": f"data:application/pdf;base64,{LETTERS}"}},
    "messages": {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": LETTERS}},
    "messages, data first": {"type": "image", "source": {"data": LETTERS, "type": "base64"}},
    "responses": {"type": "input_image", "image_url": PNG},
    "responses, of a tool": {"type": "image_generation_call", "result": LETTERS},
}
TEXTS = {
    "a text": {"type": "text", "text": LETTERS},
    "a picture's address in a text": {"type": "text", "text": PNG},
    "JSON in a text": {"type": "text", "text": json.dumps({"url": PNG, "data": LETTERS})},
    "a document that is text": {"type": "document", "source": {"type": "text", "data": "some words " * 9000}},
    "reasoning": {"type": "reasoning", "encrypted_content": LETTERS},
}


def body_of(*parts: object, **fields: object) -> bytes:
    return json.dumps({"model": "m", "messages": [{"role": "user", "content": parts}], **fields}).encode()


@pytest.mark.parametrize("part", PARTS.values(), ids=PARTS)
@pytest.mark.parametrize("times", [1, 3])
def test_a_medium_counts_as_one_of_usual_size(part, times):
    told = [{"type": "text", "text": "What is it? " * 1000}, part] * times
    body = body_of(*told)
    counted = len(body) - media_bytes(body) - (len(body) - times * len(LETTERS))
    assert -32 * times < counted - times * COUNTS_AS <= 0, "but for what begins an address"
    spaced = json.dumps(json.loads(body_of(*told)), indent=2).replace("/", "\\/").encode()
    assert len(spaced) - media_bytes(spaced) < times * (COUNTS_AS + 20_000)


@pytest.mark.parametrize("part", TEXTS.values(), ids=TEXTS)
def test_what_is_text_counts_as_such(part):
    assert media_bytes(body_of(part)) == 0


@pytest.mark.parametrize(
    "body", [b"", LETTERS.encode(), b'"' + LETTERS.encode(), b'"data":"' + LETTERS.encode()]
)
def test_what_is_no_json_counts_as_text(body):
    assert media_bytes(body) == 0


@pytest.mark.parametrize("size", [COUNTS_AS - 200, COUNTS_AS + 1, 2 * COUNTS_AS])
@pytest.mark.parametrize("before", range(0, COUNTS_AS, 997))
def test_wherever_it_stands_it_is_found(size, before):
    body = b'{"a":"%s","data":"%s"}' % (b" " * before, LETTERS[:size].encode())
    assert media_bytes(body) == max(0, size - COUNTS_AS)


def test_facts_have_it():
    body = body_of(PARTS["chat"])
    facts = read_facts(classify("POST", "/v1/chat/completions"), [], body)
    assert facts.body_bytes == len(body) and facts.text_bytes < COUNTS_AS + 200
