"""Answers that no reader of a protocol understands, read for what they may be all the same."""

from collections.abc import Callable
from typing import Any, Final

import msgspec

from gateway.responses.errors import ErrorFields, is_error
from gateway.responses.observed import AnswerReader, ObservedResponse
from gateway.wire.body import UNREADABLE
from gateway.wire.engine_json import read_loosely

# Of what is read again.
_MAX_BYTES: Final = 2**18
# Lists of a model's output; no error has one.
_ANSWERS: Final = ("choices", "content", "output")


def read_anyway(
    data: bytes, read: Callable[[bytes, ObservedResponse], None], observed: ObservedResponse
) -> bool | None:
    """Reads what is no strict JSON, or has fields of wrong types. Whether it holds an answer or an error;
    None if that is unknown."""
    if len(data) > _MAX_BYTES:
        whole = data.strip()
        return None if whole.startswith(b"{") and whole.endswith(b"}") else False
    try:
        value, copy = read_loosely(data)
    except RecursionError:
        return None
    except ValueError:
        return False
    if not isinstance(value, dict):
        return False
    try:
        if copy:
            read(copy, observed)
            return True
    except UNREADABLE:
        pass
    error = ErrorFields(*map(value.get, ErrorFields.__struct_fields__)).reported()
    if error is not None:
        observed.fail(error)
    has_answer = any(isinstance(value.get(name), list) and value[name] for name in _ANSWERS)
    return None if has_answer else error is not None


class _Answer(ErrorFields):
    id: Any = None
    status: Any = None


_ANSWER = msgspec.json.Decoder(_Answer)


class ErrorReader(AnswerReader):
    """For protocols without a reader: embeddings, scores, engines' own.

    Only an object counts as an error, as other values of `error` have other meanings. In a response with an
    id or a status it does not count: a job that is looked up may have failed, and JSON-RPC reports faulty
    calls.
    """

    knows_answers = False

    def read_event(self, data: bytes, observed: ObservedResponse) -> None:
        if b'"error"' in data:
            self.read_body(data, observed)

    def read_body(self, data: bytes, observed: ObservedResponse) -> None:
        answer = _ANSWER.decode(data)
        if isinstance(answer.error, dict) and is_error(answer.error):
            if answer.id is None and answer.status is None:
                observed.fail(answer.error)
        elif answer.object == "error":
            observed.fail({"code": answer.code})
