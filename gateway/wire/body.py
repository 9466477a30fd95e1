"""The request fields that we read, and only those, decoded without copying the rest.

Fields are kept as raw slices of the body, so that a value of an unexpected type spoils that field
alone. Unknown fields are skipped; explicit nulls count as absent.
"""

from collections.abc import Generator, Sequence
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
    request_id: Raw = ABSENT
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
    # What follows is not read, but noticed: `gateway/requests/client_kv_fields.py`.
    kv_transfer_params: Raw = ABSENT
    ec_transfer_params: Raw = ABSENT
    kv_hints: Raw = ABSENT
    bootstrap_host: Raw = ABSENT
    bootstrap_port: Raw = ABSENT
    bootstrap_room: Raw = ABSENT
    disaggregated_params: Raw = ABSENT
    extra_body: Raw = ABSENT
    sampling_params: Raw = ABSENT


class ResponsesBody(RequestBody):
    """`input` is a conversation here; elsewhere (embeddings) it can be a million numbers."""

    input: str | list[Raw] | None = None


class Role(msgspec.Struct):
    """Of a message."""

    role: str | None = None


class _Named(msgspec.Struct):
    id: Raw = ABSENT


_BODY = msgspec.json.Decoder(RequestBody)
_RESPONSES_BODY = msgspec.json.Decoder(ResponsesBody)
ROLE = msgspec.json.Decoder(Role)
TEXT = msgspec.json.Decoder(str)
_NAMED = msgspec.json.Decoder(_Named)
_FLAG = msgspec.json.Decoder(bool | float | str)

# What decoding raises on malformed JSON, wrong types, bad UTF-8 and bottomless nesting.
UNREADABLE = (msgspec.MsgspecError, ValueError, RecursionError)

_WORDS = {
    **dict.fromkeys(("1", "on", "t", "true", "y", "yes"), True),
    **dict.fromkeys(("0", "off", "f", "false", "n", "no"), False),
}
# The longest flag with every letter escaped; longer numbers do not occur.
_MAX_FLAG_BYTES = 64

# Values that a body may hold and still be read, counted by commas, brackets and braces, those in texts
# included. Eight megabytes of source code have about so many; a list of millions of tiny items would cost us
# thirty times its size in memory.
MAX_STRUCTURE = 2**19
# Backslashes in a body that is read: texts full of them take many times as long to skip as others. Six
# megabytes of Chinese that is written in escapes have so many.
MAX_ESCAPES = 2**20
# Of a body that is too much to be read, a larger one is not even searched for its model.
MAX_OUTLINE_BYTES = 2**22
# Items of a conversation, or tools: a hundred times as many as agents have.
MAX_ITEMS = 2**13
# Counted at a time, in less than a millisecond.
_PIECE_BYTES = 2**21


class Oversized(ValueError):  # noqa: N818 - what the body is
    """Reading the body would take too long. It passes unread."""


def structure_of(data: bytes, start: int = 0, end: int | None = None) -> int:
    return data.count(b",", start, end) + data.count(b"[", start, end) + data.count(b"{", start, end)


_ALL_RAW = msgspec.defstruct(
    "_AllRaw", [(name, Raw, ABSENT) for name in ResponsesBody.__struct_fields__], module=__name__
)
_OUTLINE = msgspec.json.Decoder(_ALL_RAW)
_LIST = msgspec.json.Decoder(list[Raw])
_INPUT = msgspec.json.Decoder(str | list[Raw])


def decode_outline(body: bytes) -> ResponsesBody:
    """The fields of a body that is too large to be understood, without its conversation and tools: enough to
    route it. Raises one of `UNREADABLE`."""
    if len(body) > MAX_OUTLINE_BYTES:
        raise Oversized("too many bytes")
    fields = msgspec.structs.asdict(_OUTLINE.decode(body))
    return ResponsesBody(**fields | {"messages": None, "tools": None, "input": None})


def decode_each(body: bytes, *, is_responses: bool) -> RequestBody:
    """The fields of a body that was measured, each for itself: what is no list where one should be spoils
    that field alone. Raises one of `UNREADABLE`."""
    fields = msgspec.structs.asdict(_OUTLINE.decode(body))
    text_or_items = read_as(_INPUT, fields.pop("input"))
    fields |= {name: read_as(_LIST, fields[name]) for name in ("messages", "tools")}
    return _few(ResponsesBody(**fields, input=text_or_items) if is_responses else RequestBody(**fields))


def decoding_body(body: bytes, *, is_responses: bool) -> Generator[None, None, RequestBody]:
    """The fields of a body, in slices. Raises one of `UNREADABLE`; after `Oversized` the body may be
    well-formed."""
    yield from measuring(body)
    return decode_measured(body, is_responses=is_responses)


def measuring(body: bytes) -> Generator[None, None, None]:
    """Raises Oversized if it would take too long to be read; in slices."""
    structure = escapes = 0
    for start in range(0, len(body) if len(body) > MAX_STRUCTURE else 0, _PIECE_BYTES):
        structure += structure_of(body, start, start + _PIECE_BYTES)
        escapes += body.count(b"\\", start, start + _PIECE_BYTES)
        if structure > MAX_STRUCTURE or escapes > MAX_ESCAPES:
            raise Oversized("too many values")
        yield


def decode_measured(body: bytes, *, is_responses: bool) -> RequestBody:
    """The fields of a body that was measured, or is small. Raises one of `UNREADABLE`."""
    fields = _RESPONSES_BODY.decode(body) if is_responses else _BODY.decode(body)
    return _few(fields) if len(body) > MAX_ITEMS else fields


def _few(fields: RequestBody) -> RequestBody:
    lists = (fields.messages, fields.tools, fields.input if isinstance(fields, ResponsesBody) else None)
    if max((len(each) for each in lists if isinstance(each, list)), default=0) > MAX_ITEMS:
        raise Oversized("too many items")
    return fields


def items_of(fields: RequestBody) -> Sequence[Raw]:
    if not isinstance(fields, ResponsesBody):
        return fields.messages or ()
    if isinstance(fields.input, str):  # short for one message
        return [Raw(msgspec.json.encode({"role": "user", "content": fields.input}))]
    return fields.input or ()


def read_text(raw: Raw) -> str | None:
    return read_as(TEXT, raw)


def read_text_or_id(raw: Raw) -> str | None:
    """The field's text, or the `id` in the object that it holds."""
    text = read_text(raw)
    if text is not None or raw is ABSENT:
        return text
    named = read_as(_NAMED, raw)
    return None if named is None else read_text(named.id)


def read_as(decoder: msgspec.json.Decoder[T], raw: Raw | bytes | str) -> T | None:
    if raw is ABSENT:
        return None
    try:
        return decoder.decode(raw)
    except UNREADABLE:
        return None


def truth_of(raw: Raw) -> bool | None:
    """Yes or no, as leniently as the engines read it (pydantic); None if it is neither, or absent."""
    if raw is ABSENT:
        return None
    text = bytes(raw)
    if text in (b"true", b"false"):
        return text == b"true"
    if len(text) > _MAX_FLAG_BYTES:
        return None
    value = read_as(_FLAG, raw)
    if isinstance(value, str):
        return _WORDS.get(value.lower())
    return bool(value) if value in (0.0, 1.0) else None


def is_true(raw: Raw) -> bool:
    return raw is not ABSENT and (bytes(raw) == b"true" or truth_of(raw) is True)


def is_false(raw: Raw) -> bool:
    return raw is not ABSENT and truth_of(raw) is False
