"""Asking for another model: one name in a body is replaced, and nothing else changes.

The name is found by the bytes around it, and then the body is read again as it would be sent: so nothing is
replaced but what a parser takes for the model. Where that fails (something is spelt with escapes, or the body
is too large to be read again), the name follows as the last field, which wins.
"""

import re
from itertools import islice
from typing import Final

import msgspec

from gateway.wire.body import MAX_OUTLINE_BYTES, UNREADABLE, decode_outline, read_text
from gateway.wire.form import find_form_field
from gateway.wire.splice import splice_fields

_NAMED: Final = re.compile(rb'"model"[ \t\r\n]*:[ \t\r\n]*("[^"\\]*")')
# Places: the text of a conversation may hold such bytes, too.
_MOST_TRIED: Final = 8


def with_model(body: bytes, model: str) -> bytes:
    """Of a JSON object that names another model.

    Raises ValueError if the body is not an object by its outer bytes.
    """
    if len(body) <= MAX_OUTLINE_BYTES:
        name = msgspec.json.encode(model)
        for found in islice(_NAMED.finditer(body), _MOST_TRIED):
            renamed = b"".join((body[: found.start(1)], name, body[found.end(1) :]))
            if _names(renamed, model):
                return renamed
    return b"".join(splice_fields(body, {"model": model}))


def with_model_in_form(content_type: str, body: bytes, model: str) -> bytes:
    span = find_form_field(content_type, body, "model")
    if span is None:
        return body
    start, end = span
    end = start + len(body[start:end].rstrip())
    return b"".join((body[:start], model.encode(), body[end:]))


def _names(body: bytes, model: str) -> bool:
    try:
        return read_text(decode_outline(body).model) == model
    except UNREADABLE:
        return False
