"""The request fields that we read, and only those, decoded without copying the rest.

Fields are kept as raw slices of the body, so that a value of an unexpected type spoils that field
alone. Only `messages`, `input` and `tools` must have their documented shape: without it there is
nothing to read. Unknown fields are skipped; explicit nulls count as absent.
"""

from typing import TypeVar

import msgspec
from msgspec import Raw

ABSENT = Raw()

T = TypeVar("T")


class RequestBody(msgspec.Struct):
    """What may stand at the top of a request body, over all protocols."""

    model: Raw = ABSENT
    stream: Raw = ABSENT
    tools: list[Raw] | None = None
    messages: list[Raw] | None = None
    system: Raw = ABSENT
    instructions: Raw = ABSENT
    store: Raw = ABSENT
    background: Raw = ABSENT
    previous_response_id: Raw = ABSENT
    conversation: Raw = ABSENT
    metadata: Raw = ABSENT
    prompt_cache_key: Raw = ABSENT
    session_id: Raw = ABSENT
    session_params: Raw = ABSENT
    program_id: Raw = ABSENT
    job_id: Raw = ABSENT
    is_last_step: Raw = ABSENT
    vllm_xargs: Raw = ABSENT
    agent_hint: Raw = ABSENT
    service_tier: Raw = ABSENT


class ResponsesBody(RequestBody):
    """`input` is a conversation here; elsewhere (embeddings) it can be a million numbers."""

    input: str | list[Raw] | None = None


class _Named(msgspec.Struct):
    id: Raw = ABSENT


_BODY = msgspec.json.Decoder(RequestBody)
_RESPONSES_BODY = msgspec.json.Decoder(ResponsesBody)
_TEXT = msgspec.json.Decoder(str)
_NAMED = msgspec.json.Decoder(_Named)

UNREADABLE = (msgspec.MsgspecError, ValueError, RecursionError)
"""What decoding raises on malformed JSON, wrong types, bad UTF-8 and bottomless nesting."""

_TRUE = frozenset({b"true", b"1", b'"true"', b'"1"'})
_FALSE = frozenset({b"false", b"0", b'"false"', b'"0"'})

_MANY_BYTES = 4 * 2**20
_MAX_COMMAS = 2**20


def decode_body(body: bytes, *, is_responses: bool) -> RequestBody:
    """The fields of a body. Raises one of `UNREADABLE`."""
    if len(body) > _MANY_BYTES and body.count(b",") > _MAX_COMMAS:
        # A list of millions of tiny items would cost us thirty times its size in memory.
        raise ValueError("too many items")
    return _RESPONSES_BODY.decode(body) if is_responses else _BODY.decode(body)


def read_text(raw: Raw) -> str | None:
    """The field's text; None if it is absent or anything but text."""
    return read_as(_TEXT, raw)


def read_text_or_id(raw: Raw) -> str | None:
    """The field's text, or the `id` in the object that it holds."""
    text = read_text(raw)
    if text is not None or raw is ABSENT:
        return text
    named = read_as(_NAMED, raw)
    return None if named is None else read_text(named.id)


def read_as(decoder: msgspec.json.Decoder[T], raw: Raw | bytes | str) -> T | None:
    """The field as the decoder's type; None if it is absent or does not fit."""
    if raw is ABSENT:
        return None
    try:
        return decoder.decode(raw)
    except UNREADABLE:
        return None


def is_true(raw: Raw) -> bool:
    """Whether the field says yes, as leniently as the engines read it."""
    return raw is not ABSENT and bytes(raw) in _TRUE


def is_false(raw: Raw) -> bool:
    return bytes(raw) in _FALSE
